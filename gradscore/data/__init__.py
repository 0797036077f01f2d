"""Samples: where they come from, and how they become tensors.

Wherever samples are from, they come as one thing: `Samples`, a stream of batches (`samples`). `dataset` has those of
the splits of a configuration (sections `data` and `preprocessing`, in `settings`; `splits` lists them), `given` what a
program has, `containers` batches that are left as they are, `user_files` what is named on a command line. `sources`
reads raw samples or makes them of others, `class_names` decides which class a label is, `content` tells samples apart,
and `augmentations` look at a batch in other ways.
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
from .class_names import NAME_CLASSES
from .containers import count_samples, tensors_in, whole_batches, with_tensors
from .content import SIGNATURE_SIDE, content_hash, signature_of
from .dataset import (
    SampleDataset,
    Selected,
    check_usable,
    count_shards,
    load_batches,
    naming_lost_workers,
    open_images,
    open_split,
    open_splits,
    split_samples,
)
from .given import FORMS, check_classes, form_of, samples_of
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
from .user_files import (
    RawImage,
    UserFile,
    UserImages,
    check_options,
    name_user_files,
    open_user_file,
    open_user_images,
    prepared_batches,
    refuse_inputs,
    table_column,
)

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
