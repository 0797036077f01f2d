"""Classifiers: building them, and looking into them.

In come a model source and a checkpoint; out comes a module in eval mode with its weights (`build`, `checkpoint`), told
apart by hashes (`identity`; `weight_hashes` has those of the files); `code` says which code of others may run and
`interface` what models take and return.
`parameter_groups` says which parameters make a group of features, `last_layer` catches what enters the last layer,
`layer_watch` what layers put out, and `copies` has copies for several forward passes at once. `settings` is the
section `model` of a configuration.
"""

from __future__ import annotations

from .build import LIVE, BuiltModel, build_classifier, build_model, to_eval, weight_notices
from .checkpoint import COUNTER, load_checkpoint, read_weights
from .code import USERS_OWN, ModelCode, NamedCode, RunCode, TellCode, load_function
from .copies import ForwardLook, copy_of, is_hooked, look_at_forward, memory_size, memory_state
from .identity import (
    at_path,
    coarsest_dtype,
    code_sha256,
    code_syntax_sha256,
    is_file_source,
    source_path,
    to_be_named,
    weights_sha256,
)
from .interface import Interface, check_module, refuse_foreign, refuse_probabilities
from .last_layer import Head, LastLayer, find_last_layer
from .layer_watch import Call, LayerWatch, owners
from .naming import class_names
from .parameter_groups import LAST_LAYER, ROOT, WHOLE_MODEL, Granularity, group_parameters
from .processor import TRANSFORMERS, FolderProcessor, processor_files, processor_sha256
from .settings import CodeSource, ModelConfig
from .sources import MODEL_SOURCES, ModelRequest, ModelSource
from .weight_hashes import weight_files_sha256

__all__ = [
    "COUNTER",
    "LAST_LAYER",
    "LIVE",
    "MODEL_SOURCES",
    "ROOT",
    "TRANSFORMERS",
    "USERS_OWN",
    "WHOLE_MODEL",
    "BuiltModel",
    "Call",
    "CodeSource",
    "FolderProcessor",
    "ForwardLook",
    "Granularity",
    "Head",
    "Interface",
    "LastLayer",
    "LayerWatch",
    "ModelCode",
    "ModelConfig",
    "ModelRequest",
    "ModelSource",
    "NamedCode",
    "RunCode",
    "TellCode",
    "at_path",
    "build_classifier",
    "build_model",
    "check_module",
    "class_names",
    "coarsest_dtype",
    "code_sha256",
    "code_syntax_sha256",
    "copy_of",
    "find_last_layer",
    "group_parameters",
    "is_file_source",
    "is_hooked",
    "load_checkpoint",
    "load_function",
    "look_at_forward",
    "memory_size",
    "memory_state",
    "owners",
    "processor_files",
    "processor_sha256",
    "read_weights",
    "refuse_foreign",
    "refuse_probabilities",
    "source_path",
    "to_be_named",
    "to_eval",
    "weight_files_sha256",
    "weight_notices",
    "weights_sha256",
]
