"""Trains the classifier of configs/digits.yaml: a small CNN for the digits 0 to 7 of scikit-learn's digits.

    python data_scripts/digits.py

Only the first 400 of the samples of these eight classes are used, so that the rest can fit and test a meta model; the
digits 8 and 9 are never seen.
"""

import argparse
import sys
from pathlib import Path

import torch
from architectures import digits_cnn
from sklearn.datasets import load_digits
from torch import Tensor, nn
from training import accuracy, save, train

TARGET = Path(__file__).parent.parent / "runs" / "digits" / "model.safetensors"
CLASSES, TRAINED = 8, 400


def main(arguments: list[str]) -> None:
    """Trains and writes the weights, unless they are there already."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=TARGET, help="where the weights go")
    parser.add_argument("--force", action="store_true", help="train again even if the weights are there")
    options = parser.parse_args(arguments)
    if options.out.exists() and not options.force:
        print(f"{options.out} is there already; --force trains again")
        return
    model = trained_model()
    digest = save(model, options.out)
    images, labels = known_digits()
    held_out = accuracy(model, images[TRAINED:], labels[TRAINED:])
    print(f"accuracy on the {len(images) - TRAINED} samples not trained on: {held_out:.4f}")
    print(f"wrote {options.out}, sha256 {digest[:16]}")


def trained_model() -> nn.Module:
    """The classifier, trained on the first of the samples."""
    torch.set_num_threads(1)  # steps this small only wait for each other
    torch.manual_seed(0)
    model = digits_cnn(CLASSES)
    images, labels = known_digits()
    train(model, images[:TRAINED], labels[:TRAINED], epochs=12, batch_size=32, rate=2e-3)
    return model


def known_digits() -> tuple[Tensor, Tensor]:
    """Images (N, 1, 8, 8) and labels (N,) of the known classes, prepared as the configuration does it."""
    digits = load_digits()
    # 0..16 stretched to 0..255 and rounded, then scaled to -1..1.
    pixels = torch.from_numpy(digits.images * (255 / 16)).round().float().unsqueeze(1)
    images, labels = (pixels / 255 - 0.5) / 0.5, torch.from_numpy(digits.target).long()
    known = labels < CLASSES
    return images[known], labels[known]


if __name__ == "__main__":
    main(sys.argv[1:])
