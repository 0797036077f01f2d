"""What the host process switched on does not show, and comes back."""

from collections.abc import Callable, Iterator

import pytest
import torch

from gradscore.system import full_precision


def settings() -> dict[str, object]:
    cudnn, mkldnn = torch.backends.cudnn, torch.backends.mkldnn
    found = {"matmul": torch.backends.cuda.matmul.fp32_precision, "benchmark": cudnn.benchmark}
    found |= {"convolution": cudnn.conv.fp32_precision, "recurrent": cudnn.rnn.fp32_precision}
    return found | {"product on the CPU": mkldnn.matmul.fp32_precision, "deterministic": cudnn.deterministic}


def old_language() -> None:
    torch.set_float32_matmul_precision("medium")
    torch.backends.cudnn.benchmark = True


def new_language() -> None:
    torch.backends.fp32_precision = "tf32"


def mixed() -> None:
    torch.backends.cudnn.conv.fp32_precision = "tf32"
    torch.backends.mkldnn.matmul.fp32_precision = "bf16"


HOSTS = {"as it comes": lambda: None, "old language": old_language, "new language": new_language, "mixed": mixed}


@pytest.fixture(params=HOSTS.values(), ids=HOSTS)
def host(request: pytest.FixtureRequest) -> Iterator[Callable[[], None]]:
    """What another part of the process has set; taken back afterwards."""
    cudnn, mkldnn = torch.backends.cudnn, torch.backends.mkldnn
    backends = (torch.backends.cuda.matmul, cudnn.conv, cudnn.rnn, mkldnn.matmul, mkldnn.conv, mkldnn.rnn)
    before = [backend.fp32_precision for backend in backends]
    request.param()
    yield request.param
    torch.backends.fp32_precision = "none"
    torch.set_float32_matmul_precision("highest")
    cudnn.benchmark = False
    for backend, precision in zip(backends, before, strict=True):
        backend.fp32_precision = precision


@pytest.mark.usefixtures("host")
def test_digits_before_speed() -> None:
    with full_precision():
        found = settings()
    assert {found.pop("benchmark"), found.pop("deterministic")} == {False, True}
    assert not {"tf32", "bf16"} & set(found.values())


@pytest.mark.usefixtures("host")
def test_everything_is_as_it_was() -> None:
    before = settings()
    with pytest.raises(RuntimeError, match="on the way"), full_precision():
        raise RuntimeError("on the way")
    assert settings() == before


def test_a_model_may_set_flags_of_its_own() -> None:
    """As recurrent models do that differentiate twice."""
    with full_precision(), torch.backends.cudnn.flags(enabled=False):
        assert not torch.backends.cudnn.enabled
