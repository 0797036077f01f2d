"""What the host process switched on does not show, and comes back."""

import pytest
import torch

from gradscore.system import full_precision


def settings() -> list[object]:
    cudnn, mkldnn = torch.backends.cudnn, torch.backends.mkldnn
    backends = (torch.backends.cuda.matmul, cudnn.conv, cudnn.rnn, mkldnn.matmul, mkldnn.conv, mkldnn.rnn)
    return [*(backend.fp32_precision for backend in backends), cudnn.benchmark, cudnn.deterministic]


@pytest.fixture
def fast_and_loose():
    before = torch.backends.fp32_precision, torch.backends.cudnn.benchmark
    torch.backends.fp32_precision, torch.backends.cudnn.benchmark = "tf32", True
    yield
    torch.backends.fp32_precision, torch.backends.cudnn.benchmark = before


@pytest.mark.usefixtures("fast_and_loose")
def test_digits_before_speed() -> None:
    with full_precision():
        assert settings() == [*["ieee"] * 6, False, True]


@pytest.mark.usefixtures("fast_and_loose")
def test_everything_is_as_it_was() -> None:
    before = settings()
    with pytest.raises(RuntimeError, match="on the way"), full_precision():
        raise RuntimeError("on the way")
    assert settings() == before
    assert before[0] == "tf32"
