"""Prepares configs/fashion_mnist.yaml: data as npz files, and a LeNet-size CNN trained to at least 90 % test accuracy.

    python data_scripts/fashion_mnist.py               # files of Debian's package dataset-fashion-mnist
    python data_scripts/fashion_mnist.py --source DIR  # the four IDX files, plain or .gz, from elsewhere
    python data_scripts/fashion_mnist.py --download    # through torchvision

The first 50,000 training images train the classifier; the other 10,000 are left to fit a meta model.
"""

import argparse
import gzip
import hashlib
import sys
import zlib
from pathlib import Path

import numpy as np
import torch
from architectures import lenet
from numpy.typing import NDArray
from training import accuracy, save, train

TARGET = Path(__file__).parent.parent / "runs" / "fashion_mnist"
DEBIAN = Path("/usr/share/datasets/fashion-mnist")
TRAINED, WANTED = 50_000, 0.90

SHA256 = {
    "train-images-idx3-ubyte": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    "train-labels-idx1-ubyte": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    "t10k-images-idx3-ubyte": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    "t10k-labels-idx1-ubyte": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
}
"""Of the unpacked files."""


class DataNotHadError(Exception):
    """The data set is not there, or not what it should be."""


def read_idx(folder: Path, name: str, digests: dict[str, str] = SHA256) -> NDArray[np.uint8]:
    """Reads an IDX file of bytes, plain or packed.

    Args:
        folder: where it is.
        name: its name without .gz.
        digests: SHA-256 of the unpacked file by name.

    Returns:
        The array.

    Raises:
        DataNotHadError: the file is missing, damaged or not the expected one.
    """
    plain, packed = folder / name, folder / f"{name}.gz"
    try:
        content = plain.read_bytes() if plain.exists() else gzip.decompress(packed.read_bytes())
    except (OSError, EOFError, zlib.error) as error:
        raise DataNotHadError(
            f"cannot read {packed}: {error}. Install Debian's package dataset-fashion-mnist, name a folder with the "
            "four IDX files by --source, or use --download"
        ) from error
    digest = hashlib.sha256(content).hexdigest()
    if digest != digests[name]:
        raise DataNotHadError(
            f"{name} in {folder} has sha256 {digest}, wanted {digests[name]}: it is damaged or another"
        )
    axes = content[3]
    shape = [int(size) for size in np.frombuffer(content, ">i4", axes, 4)]
    return np.frombuffer(content, np.uint8, offset=4 + 4 * axes).reshape(shape)


def download(folder: Path) -> Path:
    """Has torchvision fetch the data set and returns the folder with its IDX files."""
    from gradscore.system import import_torchvision

    import_torchvision()
    from torchvision.datasets import FashionMNIST

    try:
        FashionMNIST(folder, download=True)
    except (OSError, RuntimeError) as error:
        raise DataNotHadError(f"the download failed: {error}; use Debian's package or --source instead") from error
    return folder / "FashionMNIST" / "raw"


def prepare(source: Path, target: Path, *, force: bool) -> None:
    """Writes the npz files and the weights, unless they are there already."""
    target.mkdir(parents=True, exist_ok=True)
    parts = {}
    for name, prefix in (("train", "train"), ("test", "t10k")):
        images, labels = (read_idx(source, f"{prefix}-{kind}-ubyte") for kind in ("images-idx3", "labels-idx1"))
        parts[name] = (images, labels.astype(np.int64))
        np.savez_compressed(target / f"{name}.npz", images=images, labels=parts[name][1])
    checkpoint = target / "model.safetensors"
    if checkpoint.exists() and not force:
        print(f"{checkpoint} is there already; --force trains again")
        return
    tensors = {
        name: ((torch.from_numpy(images.copy()).float().unsqueeze(1) / 255 - 0.286) / 0.353, torch.from_numpy(labels))
        for name, (images, labels) in parts.items()
    }
    torch.set_num_threads(2)
    torch.manual_seed(0)
    model = lenet(10)
    images, labels = tensors["train"]
    train(model, images[:TRAINED], labels[:TRAINED], epochs=5, batch_size=128, rate=3e-3)
    reached = accuracy(model, *tensors["test"])
    digest = save(model, checkpoint)
    print(f"accuracy on the test images: {reached:.4f}")
    print(f"wrote {checkpoint}, sha256 {digest[:16]}")
    if reached < WANTED:
        raise DataNotHadError(f"the classifier reached {reached:.4f}, wanted {WANTED}")


def main(arguments: list[str]) -> int:
    """Runs the script and returns its exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", type=Path, default=DEBIAN, help="folder with the four IDX files")
    parser.add_argument("--download", action="store_true", help="let torchvision download the data")
    parser.add_argument("--out", type=Path, default=TARGET, help="where data and weights go")
    parser.add_argument("--force", action="store_true", help="train again even if the weights are there")
    options = parser.parse_args(arguments)
    try:
        prepare(download(options.out) if options.download else options.source, options.out, force=options.force)
    except DataNotHadError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
