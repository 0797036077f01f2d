"""Classifiers: building them, and looking into them.

In come a model source and a checkpoint; out comes a module in eval mode with its weights (`build`, `checkpoint`), told
apart by hashes (`identity`); `code` says which code of others may run. `parameter_groups` says which parameters make a
group of features, `last_layer` catches what enters the last layer, `layer_watch` what layers put out. `settings` is the
section `model` of a configuration.
"""

from __future__ import annotations

from .build import build_model
from .checkpoint import load_checkpoint, read_weights
from .code import ModelCode, NamedCode, TellCode, load_function
from .identity import code_sha256, code_syntax_sha256, is_file_source, weights_sha256
from .last_layer import Head, LastLayer, find_last_layer
from .layer_watch import Call, LayerWatch, owners
from .parameter_groups import LAST_LAYER, ROOT, WHOLE_MODEL, Granularity, group_parameters
from .settings import CodeSource, ModelConfig

__all__ = [
    "LAST_LAYER",
    "ROOT",
    "WHOLE_MODEL",
    "Call",
    "CodeSource",
    "Granularity",
    "Head",
    "LastLayer",
    "LayerWatch",
    "ModelCode",
    "ModelConfig",
    "NamedCode",
    "TellCode",
    "build_model",
    "code_sha256",
    "code_syntax_sha256",
    "find_last_layer",
    "group_parameters",
    "is_file_source",
    "load_checkpoint",
    "load_function",
    "owners",
    "read_weights",
    "weights_sha256",
]
