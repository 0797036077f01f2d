"""Compiled loops (extra `fast`, Numba): what PyTorch would take several passes for, in one.

`dispatch` has the functions of tensors, which choose a loop and on how many threads it runs; `row_loops` and
`product_loops` compute; `native` compiles, and knows the functions of PyTorch's library that loops call.
"""

from __future__ import annotations

from .dispatch import (
    LARGEST,
    MAGNITUDES,
    RUN,
    SMALLEST,
    SQUARES,
    TOTAL,
    RowMoments,
    Sliding,
    add_deviations,
    add_runs,
    centred_products,
    count_products,
    has_products,
    join_sums,
    moments_of_all,
    normed_products,
    product_sums,
    row_sums,
    window_sums,
    write_window_products,
)
