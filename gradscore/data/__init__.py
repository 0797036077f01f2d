"""Samples: where they come from, and how they become tensors.

Wherever samples are from, they come as one thing: `Samples`, a stream of batches (`samples`). `dataset` has those of
the splits of a configuration (section `data`, in `splits`), `in_memory` what a program has, `user_files` what is named
on a command line. `sources` reads raw samples or makes them of others, `preprocessing` makes model inputs of them, and
`augmentations` change a batch a little.
"""

from __future__ import annotations

from .augmentations import (
    AUGMENTATIONS,
    Augmentation,
    AugmentationKind,
    augmentation_name,
    check_augmentations,
    open_augmentations,
)
from .dataset import NAME_CLASSES, Selected, are_whole_numbers, lots, open_splits, open_synthetic, select
from .in_memory import (
    check_classes,
    count_samples,
    dense_tensor,
    form_of,
    holds_others,
    inputs_of,
    refuse_masked,
    refuse_shuffled,
    samples_of,
    tensors_in,
    whole_batches,
    with_tensors,
)
from .preprocessing import Preprocessing, PreprocessingConfig
from .samples import (
    SIGNATURE_SIDE,
    SIGNED,
    BadSample,
    Batch,
    Sample,
    SampleDataset,
    Samples,
    are_images,
    are_signed,
    check_usable,
    collate,
    content_hash,
    finite_samples,
    form,
    load_batches,
    naming_lost_workers,
    signature_of,
    split_samples,
    stacked,
)
from .sources import GIVEN, SOURCES, file_kinds, kind_of, open_source
from .sources.columns import FILL, ID_NAMES, check_columns, empty_rows, is_number, is_row_index, is_text
from .sources.image_changes import SEVERITIES, SHIFTS
from .sources.raw_samples import (
    DECODING_ERRORS,
    IMAGE_SUFFIXES,
    LABEL_NAMES,
    ArraySource,
    Pixels,
    Raw,
    Request,
    SampleSource,
    SourceKind,
    as_pixels,
    channels_last,
    class_names_of,
    input_columns_of,
    is_image,
    is_pixels,
)
from .sources.shifted import ShiftedImages
from .sources.synthetic import SYNTHETIC, SyntheticKind, check_synthetic
from .sources.tables import table_columns
from .splits import (
    BANK,
    CALIBRATION,
    FILL_IN,
    FIT,
    HOLDOUT,
    LEAST_SETS,
    TEST,
    DataConfig,
    DatasetConfig,
    OodConfig,
    SplitInfo,
    SplitKind,
    base_split,
    planned_splits,
    with_auxiliary,
)
from .user_files import (
    RawSample,
    UserFile,
    UserSamples,
    check_options,
    name_user_files,
    open_user_file,
    open_user_samples,
    prepared_batches,
    refuse_inputs,
)
