"""What is asked for: the settings of a run.

In comes a YAML file with overrides and environment variables; out comes a checked `Config` with every default filled
in. The sections `model`, `preprocessing` and `data` belong to the packages they are about; `schema` has the others,
puts all together, reads and words errors.
"""

from __future__ import annotations

from ..data import DataConfig, PreprocessingConfig
from ..models import ModelConfig
from .schema import (
    AUTO,
    Config,
    ExtractConfig,
    FeaturesConfig,
    MetaConfig,
    Protocol,
    as_flow,
    check_features,
    dump_config,
    load_config,
    parse_config,
    section,
)
