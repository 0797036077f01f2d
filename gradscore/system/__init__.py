"""What has nothing to do with gradients: files, devices, settings, registries.

Nothing comes in from other packages but `errors`. Everything here may be used everywhere.
"""

from __future__ import annotations

from .files import (
    address_problem,
    as_address,
    check_target,
    clear_page,
    file_sha256,
    held,
    is_address,
    is_leftover,
    is_temporary,
    only_writer,
    parse_json,
    replacing,
    sha256,
    write_bytes,
    write_csv,
    write_text,
    writing,
)
from .settings import (
    AnchoredPath,
    Elsewhere,
    InFeatures,
    Influence,
    InModels,
    InReport,
    Names,
    NotNegative,
    Positive,
    Registry,
    Section,
    Seed,
    Slug,
    anchored,
    as_written,
    closest,
    first_line,
    influence_of,
    settings_of,
    some,
    without_repeats,
)
from .tensors import (
    SQUARABLE,
    BoolArray,
    Device,
    FloatArray,
    Inputs,
    IntArray,
    described,
    each_input,
    finite_rows,
    full_precision,
    import_torchvision,
    is_whole,
    product,
    repeatable_kernels,
    resolve_device,
    rows_of,
    sample_count,
    squared_norms,
)
