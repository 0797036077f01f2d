"""Compiled loops (extra `fast`, Numba): what PyTorch would take several passes for, in one.

In come tensors of per-sample gradients, or the factors of their products; out go sums over their elements as NumPy
arrays, or None where there is no kernel for them and the caller goes the ordinary way. `dispatch`, `histograms` and
`signs` choose; `row_loops`, `matrix_loops`, `product_loops`, `window_loops`, `histogram_loops` and `sign_loops`
compute; `mkl` calls PyTorch's own matrix products from inside a loop; `compile` compiles; `threads` decides on how many
threads a loop runs, and `regions` starts PyTorch's from inside it; `exports` finds functions of PyTorch's library;
`loading` finds out whether there are any loops. On CUDA `accelerated` chooses, and `product_tiles` computes with
Triton: what comes out stays on the device.
"""

from __future__ import annotations

from .accelerated import product_moments
from .dispatch import (
    Doubles,
    Sliding,
    centred_products,
    has_products,
    moments_of_all,
    normed_products,
    product_sums,
    row_moments,
    row_sums,
    window_sums,
    write_window_products,
)
from .histograms import add_deviations, count_bins, count_products
from .signs import RUN, add_runs, sign_rows
from .threads import keep_processors

__all__ = [
    "RUN",
    "Doubles",
    "Sliding",
    "add_deviations",
    "add_runs",
    "centred_products",
    "count_bins",
    "count_products",
    "has_products",
    "keep_processors",
    "moments_of_all",
    "normed_products",
    "product_moments",
    "product_sums",
    "row_moments",
    "row_sums",
    "sign_rows",
    "window_sums",
    "write_window_products",
]
