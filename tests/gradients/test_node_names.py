"""PyTorch's nodes have the names, and save under the names, that the engine looks for.

Neither is promised from one version of PyTorch to the next, and what is not found is passed over: a setting that went
away would leave two graphs alike that differ, and a batch norm in training mode unnoticed.
"""

import torch

from gradscore.gradients.graph import ALONG_AN_AXIS, CAST, INDICES, RESHAPES, SETTINGS, TRANSPOSE
from gradscore.gradients.plan import ATTENTION, BATCH_NORMS, BATCHED, MAY_MOVE, PRODUCTS, ROW_BY_ROW, TABLES
from gradscore.gradients.rules import RULES

READ_BY_RULES = {
    "CudnnBatchNormBackward0": "training input result1 result2 running_mean running_var epsilon",
    "FusedRmsNormBackward0": "input result1",
    "ThnnFusedGruCellBackward0": "input_gates hidden_gates input_bias hidden_bias hx",
    "ThnnFusedLstmCellBackward0": "input_gates hidden_gates input_bias hidden_bias cx",
}
"""Nodes that a processor never makes: what the rules of others read is there where they equal the reference."""

HAVE_SETTINGS = {
    "AsStridedBackward0": "storage_offset stride",
    "CatBackward0": "dim",
    "ConstantPadNdBackward0": "pad",
    "DiagonalBackward0": "dim1 dim2 offset",
    "FlipBackward0": "dims",
    "MeanBackward1": "dim",
    "MkldnnRnnLayerBackward0": "batch_first",
    "PermuteBackward0": "dims",
    "RollBackward0": "dims shifts",
    "Rot90Backward0": "k dims",
    "SelectBackward0": "dim index",
    "SliceBackward0": "dim start step",
    "SoftmaxBackward0": "dim",
    "SplitBackward0": "dim split_size",
    "SplitWithSizesBackward0": "dim split_sizes",
    "StackBackward0": "dim",
    "SumBackward1": "dim",
    "TransposeBackward0": "dim0 dim1",
    "UnbindBackward0": "dim",
    "UnfoldBackward0": "dimension step",
}

ONLY_NEWER = {
    node
    for node, operation in {"FusedRmsNormBackward0": "_fused_rms_norm", "GroupedMmBackward0": "_grouped_mm"}.items()
    if not hasattr(torch.ops.aten, operation)
}
"""Nodes of operations that an older PyTorch lacks."""

NAMES = {
    *RULES.built_in,
    *RESHAPES,
    TRANSPOSE,
    CAST,
    *PRODUCTS,
    *BATCHED,
    *TABLES,
    *BATCH_NORMS,
    *INDICES,
    *MAY_MOVE,
    *ROW_BY_ROW,
}

SAVED = {
    *((node, name) for table in (READ_BY_RULES, HAVE_SETTINGS) for node, names in table.items()
      for name in names.split()),
    *INDICES.items(),
    *((node, "dim") for node in ALONG_AN_AXIS),
    *((node, "training") for node in BATCH_NORMS),
    *((node, "scale_grad_by_freq") for node in TABLES),
}  # fmt: skip


def test_there_is_a_node_of_each_name() -> None:
    assert {name for name in NAMES if not hasattr(torch._C._functions, name)} == ONLY_NEWER


def test_each_node_saves_what_is_looked_for() -> None:
    there = {pair for pair in SAVED if pair[0] not in ONLY_NEWER}
    assert {
        (node, name) for node, name in there if not hasattr(getattr(torch._C._functions, node), f"_saved_{name}")
    } == set()


def test_all_settings_are_listed_here() -> None:
    assert set(SETTINGS) <= {name for names in HAVE_SETTINGS.values() for name in names.split()}


def test_attention_goes_by_the_name_that_is_looked_for() -> None:
    x = torch.randn(2, 1, 4, 8, requires_grad=True)
    found = torch.nn.functional.scaled_dot_product_attention(x, x, x).grad_fn
    assert found is not None
    assert found.name().startswith(ATTENTION)
