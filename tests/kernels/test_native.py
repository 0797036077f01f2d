"""How loops are compiled, kept on disk and called, and what they call in PyTorch's library."""

import ctypes
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("numba", reason="the extra `fast` is missing")
from gradscore.kernels import native  # needs Numba as well

needs_products = pytest.mark.skipif(platform.machine() != "x86_64", reason="PyTorch carries MKL on x86 only")

SAME_BITS = """
import hashlib, sys, torch
from gradscore import kernels
from gradscore.kernels import dispatch

def values(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) + 0.1

torch.set_num_threads(2)
found = {}
for threshold in sys.argv[1:]:
    dispatch.PARALLEL_ELEMENTS = int(threshold)
    results = [
        kernels.row_sums(values(9, 20000)),
        kernels.moments_of_all([values(9, 20000)], about_mean=True)[3],
        kernels.moments_of_all([values(9, 20000).double()], about_mean=True)[3],
        kernels.centred_products(values(3, 3, 20000), torch.arange(3.0), values(3, 3, 20000, seed=1)),
        kernels.normed_products(values(9, 70, 200), values(9, 70), values(9, 70), values(9, 70, 200, seed=1)),
        kernels.product_sums(values(9, 300, 20), values(9, 200, 20, seed=1)),
        kernels.window_sums(values(9, 1, 20, 16, 16), values(9, 1, 30, 16, 16, seed=1), kernel=(3, 3), stride=(1, 1),
                            dilation=(1, 1), padding=(1, 1)),
        kernels.window_sums(values(9, 20, 1, 16, 16), values(9, 20, 1, 16, 16, seed=1), kernel=(3, 3), stride=(1, 1),
                            dilation=(1, 1), padding=(1, 1)),
    ]
    print(*[hashlib.md5(torch.as_tensor(each).numpy().tobytes()).hexdigest()[:8] for each in results])
"""
ORDERS = {"many threads first": ("0", "1000000000"), "one thread first": ("1000000000", "0"), "many threads": ("0",)}


@pytest.mark.slow
@needs_products
def test_the_same_bits_whatever_was_compiled_before(tmp_path):
    """Freshly compiled or from the cache on disk, in whichever order, on one thread or more."""
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    printed = []
    for thresholds in [ORDERS["many threads first"], *ORDERS.values()]:
        command = [sys.executable, "-c", SAME_BITS, *thresholds]
        printed += subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.split(
            "\n"
        )[:-1]
    assert len(printed) == 7
    assert len(set(printed)) == 1


ANOTHER_LOOP = """
import sys
import numba
import torch
from gradscore import kernels

for _ in range(int(sys.argv[1])):
    numba.njit(lambda x: x + 1)(1)
if "all" in sys.argv:
    kernels.moments_of_all([torch.ones(3, 40, dtype=torch.float64)], about_mean=True)
if "products" in sys.argv:
    kernels.product_sums(torch.ones(3, 40, 5), torch.ones(3, 60, 5))
if "rows" in sys.argv:
    kernels.row_sums(torch.ones(3, 4000))
if "compare" in sys.argv:
    values = torch.randn(3, 40, 5, generator=torch.Generator().manual_seed(0))
    others = torch.eye(5).expand(3, 5, 5).contiguous()
    found = kernels.product_sums(values, others), kernels.row_sums(values.flatten(1))
    print((found[0] == found[1]).all())
"""


@pytest.mark.slow
@needs_products
def test_one_machine_code_for_all_callers(tmp_path: Path) -> None:
    """Whatever processes that compile at the same time leave on disk: callers and what they call from different ones.

    Numba counts the functions of a process in their names, so a copy of a loop inside its caller has another name than
    the loop itself where another process compiled that, and both were used; sums in any order differed in the last bit.
    """

    def run(*arguments: str) -> str:
        environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
        command = [sys.executable, "-c", ANOTHER_LOOP, *arguments]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout

    run("3", "products")
    (loop,) = (each for each in tmp_path.rglob("*.nbi") if "_sum_rows" in each.name)
    loop.unlink()  # as if the other process had not been there yet
    run("0", "rows")
    assert run("0", "compare") == "True\n"


@needs_products
def test_pytorchs_functions_are_used_where_it_has_them():
    assert native.has_products()
    assert native.start_team() is not None


@needs_products
@pytest.mark.parametrize("name", [native.PRODUCT, native.PRODUCT_THREADS])
def test_products_are_not_used_where_the_library_lacks_them(monkeypatch, name):
    known = native.address_in_pytorch
    monkeypatch.setattr(native, "address_in_pytorch", lambda each: 0 if each == name else known(each))
    assert not native.has_products.__wrapped__()


@needs_products
def test_a_product_that_is_another_function_is_not_used(monkeypatch):
    idle = ctypes.cast(ctypes.CDLL(None).getpid, ctypes.c_void_p).value  # takes no notice of arguments
    known = native.address_in_pytorch
    monkeypatch.setattr(native, "address_in_pytorch", lambda name: idle if name == native.PRODUCT else known(name))
    assert not native.has_products.__wrapped__()
