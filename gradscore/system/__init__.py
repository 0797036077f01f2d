"""What has nothing to do with gradients: files, devices, hashes, names in messages, kinds of settings.

Nothing comes in from other rooms but `errors`. Everything here may be used everywhere.
"""

from __future__ import annotations

from .addresses import address_problem, as_address, is_address
from .arrays import BoolArray, FloatArray, IntArray, is_whole
from .device import Device, resolve_device
from .fields import AnchoredPath, Names, NotNegative, Positive, Section, Slug, anchored, as_written, without_repeats
from .files import (
    check_target,
    clear_page,
    held,
    is_leftover,
    is_temporary,
    only_writer,
    replacing,
    write_bytes,
    write_text,
    writing,
)
from .hashes import file_sha256, sha256
from .influence import Elsewhere, InFeatures, Influence, InModels, InReport, influence_of, settings_of
from .inputs import Inputs, described, each_input, finite_rows, rows_of, sample_count
from .json_text import are_texts, parse_json
from .loaded_modules import forget, loaded
from .names import closest, some
from .numerics import SQUARABLE, full_precision, product, repeatable_kernels, squared_norms
from .registry import Registry, first_line
from .spreadsheets import csv_quoting, without_formulas
from .torchvision_compat import import_torchvision

__all__ = [
    "SQUARABLE",
    "AnchoredPath",
    "BoolArray",
    "Device",
    "Elsewhere",
    "FloatArray",
    "InFeatures",
    "InModels",
    "InReport",
    "Influence",
    "Inputs",
    "IntArray",
    "Names",
    "NotNegative",
    "Positive",
    "Registry",
    "Section",
    "Slug",
    "address_problem",
    "anchored",
    "are_texts",
    "as_address",
    "as_written",
    "check_target",
    "clear_page",
    "closest",
    "csv_quoting",
    "described",
    "each_input",
    "file_sha256",
    "finite_rows",
    "first_line",
    "forget",
    "full_precision",
    "held",
    "import_torchvision",
    "influence_of",
    "is_address",
    "is_leftover",
    "is_temporary",
    "is_whole",
    "loaded",
    "only_writer",
    "parse_json",
    "product",
    "repeatable_kernels",
    "replacing",
    "resolve_device",
    "rows_of",
    "sample_count",
    "settings_of",
    "sha256",
    "some",
    "squared_norms",
    "without_formulas",
    "without_repeats",
    "write_bytes",
    "write_text",
    "writing",
]
