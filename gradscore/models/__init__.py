"""Classifiers: building them, and looking into them.

In come a model source and a checkpoint; out comes a module in eval mode with its weights, told apart by hashes
(`weights`). `sources` has the section `model` of a configuration, knows where models come from and builds them,
`processors` what folders of transformers make of samples; `code` is asked which code of others may run, and `interface`
says what models take and return. `layers` says which parameters make a group of features, and catches what layers take
and put out.
"""

from __future__ import annotations

from .code import CodeOrigin, code_hash, is_code_trusted, load_function, trusting_code
from .interface import OTHER_MODELS, Interface, check_logits, check_module, refuse_foreign, refuse_probabilities
from .layers import Head, LastLayer, find_last_layer, first_parameter, first_tensor, group_parameters, last_layer
from .processors import FolderProcessor
from .sources import (
    LIVE,
    MODEL_SOURCES,
    NO_CHECKPOINT,
    TRANSFORMERS,
    CodeSource,
    ModelConfig,
    ModelRequest,
    ModelSource,
    at_path,
    build_model,
    class_names,
    code_sha256,
    is_file_source,
    processor_files,
    processor_sha256,
    source_path,
    to_be_named,
    to_eval,
    weight_files_sha256,
)
from .weights import (
    COUNTER,
    WEIGHT_SUFFIXES,
    StateDict,
    attribute_state,
    coarsest_dtype,
    is_of_weights,
    memory_state,
    read_weights,
    weights_sha256,
)
