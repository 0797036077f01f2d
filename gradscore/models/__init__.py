"""Classifiers: building them, and looking into them.

In come a model source and a checkpoint; out comes a module in eval mode with its weights, told apart by hashes
(`build`, `weights`). `sources` has the section `model` of a configuration and knows where models come from,
`processors` what folders of transformers make of samples; `code` is asked which code of others may run, and `interface`
says what models take and return. `layers` says which parameters make a group of features, and catches what layers take
and put out.
"""

from __future__ import annotations

from .build import (
    LIVE,
    BuiltModel,
    build_model,
    class_names,
    coarsest_dtype,
    code_sha256,
    memory_state,
    processor_sha256,
    to_eval,
    weight_files_sha256,
    weights_sha256,
)
from .code import CodeOrigin, is_code_trusted, load_function, trusting_code
from .interface import OTHER_MODELS, Interface, check_module, refuse_foreign, refuse_probabilities
from .layers import Head, LastLayer, find_last_layer, first_tensor, group_parameters
from .processors import FolderProcessor
from .sources import (
    MODEL_SOURCES,
    TRANSFORMERS,
    CodeSource,
    ModelConfig,
    ModelRequest,
    ModelSource,
    at_path,
    is_file_source,
    processor_files,
    source_path,
    to_be_named,
)
from .weights import COUNTER, StateDict, read_weights
