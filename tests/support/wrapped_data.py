"""A data set that is another one but for what a test changes."""

from typing import Any

from gradscore.data import SampleDataset


class Wrapped:
    """Hands on what is asked of it."""

    def __init__(self, inner: SampleDataset) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def __len__(self) -> int:
        return len(self.inner)

    def __getitem__(self, index: int) -> Any:
        return self.inner[index]
