"""What the host process switched on does not show, and comes back."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from gradscore.system import FloatArray, full_precision, product
from gradscore.system.tensors import ENTRIES_TOGETHER

KNOWS_BOTH = hasattr(torch.backends, "fp32_precision")
"""Whether this PyTorch has the newer language of settings, beside the older one."""


def in_new_language() -> list[Any]:
    """What has a precision of its own in the newer language; nothing where there is none."""
    if not KNOWS_BOTH:
        return []
    cudnn, mkldnn = torch.backends.cudnn, torch.backends.mkldnn
    return [torch.backends.cuda.matmul, cudnn.conv, cudnn.rnn, mkldnn.matmul, mkldnn.conv, mkldnn.rnn]


def settings() -> dict[str, object]:
    cudnn = torch.backends.cudnn
    found: dict[str, object] = {"benchmark": cudnn.benchmark, "deterministic": cudnn.deterministic}
    found |= {str(number): each.fp32_precision for number, each in enumerate(in_new_language())}
    return found if KNOWS_BOTH else found | {"products": torch.get_float32_matmul_precision(), "tf32": cudnn.allow_tf32}


def old_language() -> None:
    torch.set_float32_matmul_precision("medium")
    torch.backends.cudnn.benchmark = True


def new_language() -> None:
    torch.backends.fp32_precision = "tf32"


def mixed() -> None:
    torch.backends.cudnn.conv.fp32_precision = "tf32"
    torch.backends.mkldnn.matmul.fp32_precision = "bf16"


HOSTS = {"as it comes": lambda: None, "old language": old_language}
HOSTS |= {"new language": new_language, "mixed": mixed} if KNOWS_BOTH else {}


@pytest.fixture(params=HOSTS.values(), ids=HOSTS)
def host(request: pytest.FixtureRequest) -> Iterator[Callable[[], None]]:
    """What another part of the process has set; taken back afterwards."""
    before = [backend.fp32_precision for backend in in_new_language()]
    request.param()
    yield request.param
    if KNOWS_BOTH:
        torch.backends.fp32_precision = "none"
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.benchmark = False
    for backend, precision in zip(in_new_language(), before, strict=True):
        backend.fp32_precision = precision


@pytest.mark.usefixtures("host")
def test_digits_before_speed() -> None:
    with full_precision():
        found = settings()
    assert {found.pop("benchmark"), found.pop("deterministic")} == {False, True}
    assert found.pop("tf32", False) is False
    assert set(found.values()) <= {"ieee", "none", "highest"}


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
