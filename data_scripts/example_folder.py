"""Writes a folder like the one a user has: a network, its weights and folders of images.

    python data_scripts/example_folder.py my_model

    my_model/net.py              a function that builds the network
    my_model/weights.pt          its state dict
    my_model/images/fit/<class>/*.png    labelled images that did not train the network
    my_model/images/test/<class>/*.png   others
    my_model/images/strange/*.png        images of none of the classes

The network and the images are those of configs/digits.yaml.
"""

import argparse
import inspect
import sys
from pathlib import Path

import numpy as np
import torch
from architectures import digits_cnn
from digits import CLASSES, TRAINED, trained_model
from PIL import Image
from sklearn.datasets import load_digits

NET = "from torch import nn\n\n\n" + inspect.getsource(digits_cnn).replace("def digits_cnn", "def build")
FITTING = 520


def main(arguments: list[str]) -> None:
    """Trains the network and writes everything."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="the folder to make")
    folder: Path = parser.parse_args(arguments).folder
    if folder.exists():
        parser.error(f"{folder} is there already")
    digits = load_digits()
    known = digits.target < CLASSES
    images, labels = digits.images[known][TRAINED:], digits.target[known][TRAINED:]
    for part, rows in (("fit", slice(None, FITTING)), ("test", slice(FITTING, None))):
        for number, (image, label) in enumerate(zip(images[rows], labels[rows], strict=True)):
            write(image, folder / "images" / part / f"digit{label}" / f"{number:03}.png")
    for number, image in enumerate(digits.images[~known]):
        write(image, folder / "images" / "strange" / f"{number:03}.png")
    (folder / "net.py").write_text(NET)
    torch.save(trained_model().state_dict(), folder / "weights.pt")
    print(f"wrote {folder}")


def write(image: np.ndarray, path: Path) -> None:
    """Writes an 8x8 image with values 0..16 as a grey PNG."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.round(image * (255 / 16)).astype(np.uint8)).save(path)


if __name__ == "__main__":
    main(sys.argv[1:])
