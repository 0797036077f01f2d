"""Samples: where they come from, and how they become tensors.

In come the sections `data` and `preprocessing` of a configuration (`settings`); out come splits (`splits` lists them)
of samples with ids, labels and content hashes, in batches. `sources` reads samples or makes them of others, `given`
reads what a program has, `class_names` decides which class a label is, `user_files` finds and `user_images` reads what
is named on a command line, and `augmentations` look at a batch in other ways.
"""

from __future__ import annotations

from .augmentations import (
    AUGMENTATIONS,
    Augmentation,
    AugmentationKind,
    augmentation_name,
    check_augmentations,
    is_given_augmentation,
    open_augmentations,
)
from .batches import check_usable, count_shards, load_batches, naming_lost_workers, split_samples
from .class_names import NAME_CLASSES
from .containers import count_samples, tensors_in, whole_batches, with_tensors
from .content import SIGNATURE_SIDE, content_hash, signature_of
from .dataset import SampleDataset, Selected, open_images, open_split, open_splits
from .given import FORMS, check_classes, form_of, samples_of
from .named_column import table_column
from .preprocessing import Preprocessing
from .samples import BadSample, Batch, Sample, Samples, are_images, collate, form, stacked
from .settings import DataConfig, DatasetConfig, PreprocessingConfig, SelectConfig
from .sources import (
    DECODING_ERRORS,
    GIVEN,
    IMAGE_SUFFIXES,
    SOURCES,
    ArraySource,
    ImageSource,
    Pixels,
    Raw,
    Request,
    SourceKind,
    UnreadableImageError,
    as_pixels,
    check_names,
    class_names_of,
    describe_raw,
    file_kinds,
    is_image,
    is_pixels,
    kind_of,
    open_source,
)
from .sources.image_changes import SHIFTS as IMAGE_SHIFTS
from .sources.image_changes import STRENGTHS
from .sources.image_changes import SYNTHETIC as SYNTHETIC_KINDS
from .sources.made import ShiftedImages, SyntheticSource
from .splits import BANK, CALIBRATION, FIT, TEST, SplitInfo, base_split, planned_splits
from .user_files import UserFile, check_options, name_user_files, refuse_inputs
from .user_images import RawImage, UserImages, open_user_file, open_user_images, prepared_batches

__all__ = [
    "AUGMENTATIONS",
    "BANK",
    "CALIBRATION",
    "DECODING_ERRORS",
    "FIT",
    "FORMS",
    "GIVEN",
    "IMAGE_SHIFTS",
    "IMAGE_SUFFIXES",
    "NAME_CLASSES",
    "SIGNATURE_SIDE",
    "SOURCES",
    "STRENGTHS",
    "SYNTHETIC_KINDS",
    "TEST",
    "ArraySource",
    "Augmentation",
    "AugmentationKind",
    "BadSample",
    "Batch",
    "DataConfig",
    "DatasetConfig",
    "ImageSource",
    "Pixels",
    "Preprocessing",
    "PreprocessingConfig",
    "Raw",
    "RawImage",
    "Request",
    "Sample",
    "SampleDataset",
    "Samples",
    "SelectConfig",
    "Selected",
    "ShiftedImages",
    "SourceKind",
    "SplitInfo",
    "SyntheticSource",
    "UnreadableImageError",
    "UserFile",
    "UserImages",
    "are_images",
    "as_pixels",
    "augmentation_name",
    "base_split",
    "check_augmentations",
    "check_classes",
    "check_names",
    "check_options",
    "check_usable",
    "class_names_of",
    "collate",
    "content_hash",
    "count_samples",
    "count_shards",
    "describe_raw",
    "file_kinds",
    "form",
    "form_of",
    "is_given_augmentation",
    "is_image",
    "is_pixels",
    "kind_of",
    "load_batches",
    "name_user_files",
    "naming_lost_workers",
    "open_augmentations",
    "open_images",
    "open_source",
    "open_split",
    "open_splits",
    "open_user_file",
    "open_user_images",
    "planned_splits",
    "prepared_batches",
    "refuse_inputs",
    "samples_of",
    "signature_of",
    "split_samples",
    "stacked",
    "table_column",
    "tensors_in",
    "whole_batches",
    "with_tensors",
]
