"""Computes on the processor, by Triton's interpreter, what product tiles compute on a CUDA device.

The interpreter has to be asked for before Triton is imported, so this runs as a program of its own: it reads products
and gradients from one file and writes what becomes of them to another.
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

STATISTICS = ("max", "min", "mean", "std", "l1", "l2", "linf")


def interpreted(folder: Path, **given: Any) -> dict[str, Any]:
    """What `_compute` makes of things, in a process in which Triton interprets.

    Args:
        folder: for the files that are handed over.
        given: what `_compute` takes.
    """
    import torch

    torch.save(given, folder / "given.pt")
    command = [sys.executable, __file__, str(folder / "given.pt"), str(folder / "found.pt")]
    # NumPy, with which it computes, warns of what is not finite.
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONWARNINGS": "ignore"}
    subprocess.run(command, env=environment, check=True)
    found: dict[str, Any] = torch.load(folder / "found.pt", weights_only=False)
    return found


def _compute(products: dict[str, Any], gradients: dict[str, Any]) -> dict[str, Any]:
    """Moments of products of two factors, and statistics of per-sample gradients, by their ids."""
    import torch

    from gradscore import kernels
    from gradscore.kernels import dispatch, product_tiles
    from gradscore.statistics.measure import _on_accelerator
    from gradscore.statistics.statistic import evaluate, needs

    kernels.product_moments = lambda *each, **how: kernels.RowMoments(
        *product_tiles.product_moments(*each, **how).unbind(1)
    )
    found = {name: _on_accelerator(each, needs(STATISTICS)) for name, each in gradients.items()}
    return {
        "products": {
            name: {about: product_tiles.product_moments(*each, about_mean=about) for about in (True, False)}
            for name, each in products.items()
        },
        "gradients": {
            name: {statistic: torch.as_tensor(evaluate(statistic, each)) for statistic in STATISTICS}
            for name, each in found.items()
        },
        "works": dispatch._has_tiles(torch.device("cpu")),
    }


if __name__ == "__main__":
    import torch

    torch.save(_compute(**torch.load(sys.argv[1], weights_only=False)), sys.argv[2])
