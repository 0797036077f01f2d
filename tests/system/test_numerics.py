"""What the host process switched on does not show, and comes back."""

import math
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch

from gradscore.system import FloatArray, full_precision, product
from gradscore.system.numerics import ENTRIES_TOGETHER


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


SHAPES = {"square": (64, 64), "wide": (10, 300), "tall": (700, 3), "to one": (65, 1), "of one": (1, 5), "empty": (0, 4)}
SHAPES |= {"parts": (300, ENTRIES_TOGETHER // 100), "one row a part": (2, ENTRIES_TOGETHER + 1)}
LAYOUTS = {"as they come": np.ascontiguousarray, "columns first": np.asfortranarray}


def factors(shape: tuple[int, int]) -> tuple[FloatArray, FloatArray]:
    generator = np.random.default_rng(0)
    return generator.normal(size=(37, shape[0])), generator.normal(size=shape)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_a_product_is_its_sums(shape: tuple[int, int]) -> None:
    """Against sums without rounding, of some elements."""
    rows, matrix = factors(shape)
    found = product(rows, matrix)
    columns = range(0, shape[1], max(1, shape[1] // 20))
    wanted = [[math.fsum(row * matrix[:, column]) for column in columns] for row in rows]
    np.testing.assert_allclose(found[:, list(columns)], wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("size", [1, 2, 3, 7, 20])
def test_rows_of_a_product_are_the_same_in_any_company(
    shape: tuple[int, int], size: int, layout: Callable[[FloatArray], FloatArray]
) -> None:
    rows, matrix = factors(shape)
    parts = [product(layout(rows[start : start + size]), layout(matrix)) for start in range(0, len(rows), size)]
    np.testing.assert_array_equal(np.concatenate(parts), product(rows, matrix))
