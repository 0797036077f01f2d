"""The devices that tests run on."""

from collections.abc import Sequence

import torch


def devices(named: Sequence[str] | None) -> list[str]:
    """Those that are named; otherwise the processor, and the accelerator that PyTorch finds."""
    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return list(named) if named else ["cpu", *([] if found is None else [found.type])]
