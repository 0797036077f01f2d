"""Arrays and tensors: inputs of models, devices, and products and squares that keep their digits every time."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from types import ModuleType
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import TypeIs

from ..errors import ConfigError, MissingExtraError

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]


NESTED = (
    "got a nested tensor, whose samples have shapes of their own; pad them to one shape, as to_padded_tensor(0.0) "
    "does, with a mask where the model takes one"
)
"""Message about samples that are nested tensors."""


def is_whole(value: object) -> TypeIs[int | np.integer[Any]]:
    """Whether a value is an integer of Python's or NumPy's; a truth value, which Python takes for one, is none.

    Example:
        >>> is_whole(3), is_whole(np.int64(3)), is_whole(True), is_whole(3.0)
        (True, True, False, False)
    """
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def is_number(value: object) -> TypeIs[float | np.floating[Any] | np.integer[Any]]:
    """Whether something is a number of Python's or NumPy's, whole or not."""
    return is_whole(value) or isinstance(value, float | np.floating)


def as_rate(value: object, name: str) -> float:
    """A number of Python's or NumPy's between 0 and 1, as its digits read; a `ConfigError` for anything else.

    Example:
        >>> as_rate(np.float32(0.1), "alpha")
        0.1
    """
    if isinstance(value, float | np.floating) and 0 < value < 1:
        return float(str(value))
    share = f"; {value:g} % is {value / 100:g}" if isinstance(value, float | int) and 1 < value < 100 else ""
    raise ConfigError(f"{name}: wanted a number between 0 and 1, got {value!r}{share}")


Inputs: TypeAlias = Tensor | Mapping[str, Tensor]
"""A batch of N samples: (N, ...), or such tensors by the names of the arguments they are."""


def sample_count(inputs: Inputs) -> int:
    """N.

    Example:
        >>> sample_count({"input_ids": torch.ones(3, 8), "attention_mask": torch.ones(3, 8)})
        3
    """
    return len(inputs) if isinstance(inputs, Tensor) else len(next(iter(inputs.values()), ()))


def each_input(inputs: Inputs, change: Callable[[Tensor], Tensor]) -> Inputs:
    """Inputs with every tensor changed: moved to a device, cut to some rows."""
    return change(inputs) if isinstance(inputs, Tensor) else {name: change(each) for name, each in inputs.items()}


def rows_of(inputs: Inputs, rows: slice | Tensor) -> Inputs:
    """Subset of the samples, by their places or a mask, which may lie on another device."""
    return each_input(inputs, lambda tensor: tensor[rows if isinstance(rows, slice) else rows.to(tensor.device)])


def magnitudes(inputs: Inputs) -> dict[str, Tensor]:
    """The largest finite absolute value of each sample (N,) in what is no whole number, by the name of the argument.

    Example:
        >>> magnitudes(torch.tensor([[1.0, -255.0], [0.5, torch.inf]]))
        {'': tensor([255.0000,   0.5000])}
    """
    named = {"": inputs} if isinstance(inputs, Tensor) else inputs
    floats = {name: each for name, each in named.items() if each.is_floating_point() and each.numel()}
    return {
        name: each.abs().nan_to_num(nan=0.0, posinf=0.0).reshape(len(each), -1).amax(dim=1)
        for name, each in floats.items()
    }


def described(inputs: Inputs) -> str:
    """Shapes of inputs, for messages: of a sample, without N.

    Example:
        >>> described({"input_ids": torch.ones(3, 8)})
        'input_ids (8,)'
    """
    if isinstance(inputs, Tensor):
        return str(tuple(inputs.shape[1:]))
    return ", ".join(f"{name} {tuple(each.shape[1:])}" for name, each in inputs.items())


def finite_rows(inputs: Inputs) -> Tensor:
    """Mask (N,) of the samples that hold finite numbers alone.

    Example:
        >>> finite_rows({"tokens": torch.ones(2, 8), "length": torch.tensor([8.0, torch.inf])}).tolist()
        [True, False]
    """
    tensors = [inputs] if isinstance(inputs, Tensor) else list(inputs.values())
    return torch.stack([as_rows(each.isfinite()).all(1) for each in tensors]).all(0)


SQUARABLE = {torch.float32: (1e-12, 1e12), torch.float64: (1e-140, 1e140)}
"""Euclidean norms in this range have squares whose sum the type holds with all its digits: float32 from 1e-38 on, less
a factor of 1e14 for elements far smaller than the norm; float64 likewise."""


SQUARES_TOGETHER = 1 << 13
"""Squares that are added up in float32 before they join a sum in float64. Norms of 8,192 normal numbers are then off by
1e-7, those of 5 million by 1e-8, where one sum in float32 is off by 1e-4."""


def as_rows(tensor: Tensor) -> Tensor:
    """A tensor (n, ...) with all elements of a row on one axis (n, p), p = 1 of one without other axes."""
    return tensor.unsqueeze(-1).flatten(1)


def squared_norms(rows: Tensor) -> Tensor:
    """The sum of squares of each row.

    Args:
        rows: (n, p) float32 or float64; norms within `SQUARABLE`, or digits are lost.

    Returns:
        (n,) float64.
    """
    rows = rows.contiguous()  # along strides, sums are added up one by one, and round more
    samples, elements = rows.shape
    whole = elements // SQUARES_TOGETHER * SQUARES_TOGETHER
    found: Tensor = torch.linalg.vector_norm(rows[:, whole:], dim=1).double().square()
    if whole:
        parts = rows[:, :whole].reshape(samples, -1, SQUARES_TOGETHER)
        found += torch.linalg.vector_norm(parts, dim=2).double().square().sum(1)
    return found


ENTRIES_TOGETHER = 1 << 17
"""Entries of a matrix (1 MB) that are multiplied by all rows before the next ones, while they are in the cache. Of 256
rows and 2,048 x 2,048 entries, a product takes 1.1 s so, 2.8 s without, and 0.1 s by OpenBLAS with AVX-512."""


def product(rows: FloatArray, matrix: FloatArray) -> FloatArray:
    """`rows @ matrix`, where a row of the product has the same bits whatever other rows there are.

    Libraries of linear algebra (BLAS) round a row otherwise by how many rows there are, and how many matter differs
    between processors. Here the terms of every sum are added in one order.

    Args:
        rows: (N, D) float64.
        matrix: (D, E) float64.

    Returns:
        (N, E) float64.
    """
    # NumPy's own loops, which ask no BLAS; their order depends on what lies side by side in memory.
    left, right = np.ascontiguousarray(rows), np.ascontiguousarray(matrix)
    step = max(1, ENTRIES_TOGETHER // max(1, right.shape[1]))
    found = np.zeros((len(left), right.shape[1]))
    for start in range(0, len(right), step):
        found += np.einsum("nd,de->ne", left[:, start : start + step], right[start : start + step])
    return found


_depth = 0


def pass_depth() -> int:
    """How many blocks of `unwatched` the caller is in."""
    return _depth


@contextmanager
def unwatched(*, depth: int | None = None) -> Iterator[int]:
    """Keeps the passes of a block from hooks that were made outside it: they are no steps of what trains a model.

    Such a hook compares the depth it was made at with `pass_depth`. It is one number for all threads, since autograd
    has threads of its own.

    Args:
        depth: of an outer block, whose hooks see the passes of this one.

    Yields:
        The depth outside.
    """
    global _depth
    before = _depth
    _depth = before + 1 if depth is None else depth
    try:
        yield before
    finally:
        _depth = before


@contextmanager
def full_precision() -> Iterator[None]:
    """Switches off what trades digits of float32 for speed (TF32, bfloat16), and the choice of kernels by time.

    Features, thresholds and scores are compared with each other across commands and processes, and what the host
    process has switched on must not show in them, nor its `no_grad`; and who watches its training must not see them.
    Everything is as it was afterwards.
    `features.autocast` stays what it is: the network then runs in half precision because the settings say so.
    """
    with ExitStack() as stack:
        stack.enter_context(unwatched())
        stack.enter_context(repeatable_kernels())
        stack.enter_context(torch.inference_mode(mode=False))
        stack.enter_context(torch.enable_grad())
        try:
            _switch_off(stack)
        except RuntimeError:  # the host speaks the newer language of settings, and PyTorch minds mixing the two
            _switch_off_each(stack)
        yield


@contextmanager
def repeatable_kernels() -> Iterator[None]:
    """Has cuDNN take the same kernel every time."""
    cudnn: Any = torch.backends.cudnn
    before = cudnn.benchmark, cudnn.deterministic
    cudnn.benchmark, cudnn.deterministic = False, True
    try:
        yield
    finally:
        cudnn.benchmark, cudnn.deterministic = before


def _switch_off(stack: ExitStack) -> None:
    """Through the settings that all versions of PyTorch know; `RuntimeError` where the host used the others."""
    cudnn: Any = torch.backends.cudnn
    matmul, convolution = torch.get_float32_matmul_precision(), cudnn.allow_tf32
    backends: Any = torch.backends
    if hasattr(backends, "fp32_precision"):
        if backends.fp32_precision != "none":
            raise RuntimeError("a precision for everything is set, which these settings do not override")
        for backend in (torch.backends.cuda.matmul, backends.mkldnn.matmul):  # the settings below make "none" explicit
            stack.callback(setattr, backend, "fp32_precision", backend.fp32_precision)
    stack.callback(torch.set_float32_matmul_precision, matmul)
    torch.set_float32_matmul_precision("highest")
    stack.callback(setattr, cudnn, "allow_tf32", convolution)
    cudnn.allow_tf32 = False


def _switch_off_each(stack: ExitStack) -> None:
    """Through one setting for each kind of product."""
    cudnn: Any = torch.backends.cudnn
    mkldnn: Any = torch.backends.mkldnn
    for backend in (torch.backends.cuda.matmul, cudnn.conv, cudnn.rnn, mkldnn.matmul, mkldnn.conv, mkldnn.rnn):
        stack.callback(setattr, backend, "fp32_precision", backend.fp32_precision)
        backend.fp32_precision = "ieee"


Device = str
"""`auto`, `cpu`, or the name by which PyTorch has an accelerator: `cuda`, `xpu`, or that of a package of others."""


def resolve_device(name: Device) -> torch.device:
    """The device of a name; `auto` is a CUDA device where there is one, and otherwise the CPU.

    Raises:
        ConfigError: PyTorch has no such device here, or the device has no float64.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name == "cpu":
        return torch.device("cpu")
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if accelerator is None or accelerator.type != name:
        others = "cpu" if accelerator is None else f"{accelerator.type}, cpu"
        raise ConfigError(f"device {name}: {_why_not(name)}; use {others} or auto")
    device = torch.device(name)
    try:
        torch.zeros(1, dtype=torch.float64, device=device)
    except (RuntimeError, TypeError) as error:
        raise ConfigError(
            f"device {name}: it has no float64, in which gradients at the logits are computed ({error}); use cpu"
        ) from None
    return device


def _why_not(name: str) -> str:
    if name == "cuda" and torch.version.cuda is None:
        return "this PyTorch was built without it (a CUDA build of PyTorch has it)"
    return "PyTorch finds no such device here"


SCHEMAS = tuple(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor" for name in ("nms", "qnms"))

_declared: list[Any] = []
"""Keeps the declarations alive: they go with their library object."""


def import_torchvision() -> ModuleType:
    """Imports torchvision, declaring the operators it misses only where it does not import by itself.

    Returns:
        The module.

    Raises:
        MissingExtraError: torchvision is not installed, or does not import for another reason.
    """
    try:
        try:
            return _import()
        except RuntimeError as error:
            if "torchvision::nms" not in str(error) or _declared:
                raise
        for name in [each for each in list(sys.modules) if each.partition(".")[0] == "torchvision"]:
            del sys.modules[name]  # it is there in part
        _declare_operators()
        return _import()
    except RuntimeError as error:
        raise MissingExtraError(f"torchvision cannot be imported: {error}; reinstall it to match torch") from error


def _declare_operators() -> None:
    make_library: Any = torch.library.Library  # torch leaves it untyped
    library = make_library("torchvision", "DEF")
    for schema in SCHEMAS:
        library.define(schema)
    _declared.append(library)


def _import() -> ModuleType:
    try:
        return importlib.import_module("torchvision")
    except ModuleNotFoundError as error:
        raise MissingExtraError(f"torchvision cannot be imported: {error}; run `pip install torchvision`") from error
