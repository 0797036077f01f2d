"""Data sets: where samples come from, and how they become tensors."""

from .dataset import SampleDataset, Selected, content_hash, open_images, open_split
from .samples import BadSample, Batch, Sample, collate
from .sources import ImageSource

__all__ = [
    "BadSample",
    "Batch",
    "ImageSource",
    "Sample",
    "SampleDataset",
    "Selected",
    "collate",
    "content_hash",
    "open_images",
    "open_split",
]
