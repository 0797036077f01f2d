"""Data sets: where samples come from, and how they become tensors."""

from .dataset import SampleDataset, open_split
from .samples import BadSample, Batch, Sample, collate
from .sources import ImageSource

__all__ = ["BadSample", "Batch", "ImageSource", "Sample", "SampleDataset", "collate", "open_split"]
