"""Writes the images of `gradscore demo`, gradscore/demo/images.xz: a small part of Fashion-MNIST.

    python data_scripts/demo_images.py               # files of Debian's package dataset-fashion-mnist
    python data_scripts/demo_images.py --source DIR  # the four IDX files, plain or .gz, from elsewhere

Which images was decided before anything was measured: the first eight classes are known and the last two are not, as
in configs/digits.yaml, and each part takes images in the order of the files. `train`, `fit` and `calibration` are the
first known images of the training file, `test` the first known ones of the test file, `unknown` the first of the other
two classes there.
"""

import argparse
import io
import lzma
import sys
from pathlib import Path

import numpy as np
from fashion_mnist import DEBIAN, DataNotHadError, read_idx
from numpy.typing import NDArray

TARGET = Path(__file__).parent.parent / "gradscore" / "demo" / "images.xz"
KNOWN = 8
TRAIN, FIT, CALIBRATION, TEST, UNKNOWN = 2000, 600, 600, 2000, 800


def packed(source: Path) -> bytes:
    """The images (N, 28, 28) and labels (N,) of all parts, as a compressed npz."""
    images, labels = (read_idx(source, f"train-{kind}-ubyte") for kind in ("images-idx3", "labels-idx1"))
    train, fit, calibration, _ = np.split(np.flatnonzero(labels < KNOWN), np.cumsum([TRAIN, FIT, CALIBRATION]))
    later, later_labels = (read_idx(source, f"t10k-{kind}-ubyte") for kind in ("images-idx3", "labels-idx1"))
    parts = {
        "train": (images, labels, train),
        "fit": (images, labels, fit),
        "calibration": (images, labels, calibration),
        "test": (later, later_labels, np.flatnonzero(later_labels < KNOWN)[:TEST]),
        "unknown": (later, later_labels, np.flatnonzero(later_labels >= KNOWN)[:UNKNOWN]),
    }
    arrays: dict[str, NDArray[np.uint8]] = {}
    for name, (pixels, classes, rows) in parts.items():
        arrays |= {name: pixels[rows], f"{name}_labels": classes[rows]}
    file = io.BytesIO()
    np.savez(file, **arrays)
    return lzma.compress(file.getvalue(), preset=9 | lzma.PRESET_EXTREME)


def main(arguments: list[str]) -> int:
    """Runs the script and returns its exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", type=Path, default=DEBIAN, help="folder with the four IDX files")
    options = parser.parse_args(arguments)
    try:
        TARGET.write_bytes(packed(options.source))
    except DataNotHadError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"wrote {TARGET}, {TARGET.stat().st_size / 1e6:.1f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
