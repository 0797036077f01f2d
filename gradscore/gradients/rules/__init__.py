"""One rule per kind of autograd node: from output gradient and saved tensors to per-sample gradients of one input.

A rule is a pure function `rule(use, gradients) -> PerSample`. `RULES` is the whole list, but for those that
other packages add: a node that is not in it, or an input that its rule does not cover (`NotCoveredError`), is left to
the reference.
"""

from __future__ import annotations

from ...system import Registry
from . import elementwise, normalisation, products, recurrent, tables
from .use import EntryPerSampleError, NotCoveredError, Rule, Use, output_gradient, sum_to_shape

__all__ = ["RULES", "EntryPerSampleError", "NotCoveredError", "Rule", "Use", "output_gradient", "sum_to_shape"]

RULES: Registry[Rule] = Registry(
    "rule",
    "gradscore.rules",
    {
        "AddBackward0": elementwise.add,
        "AddcmulBackward0": elementwise.addcmul,
        "AddmmBackward0": products.addmm,
        "BaddbmmBackward0": products.baddbmm,
        "BmmBackward0": products.bmm,
        "ConvolutionBackward0": products.convolution,
        "CudnnBatchNormBackward0": normalisation.batch_norm,
        "DivBackward0": elementwise.div,
        "EmbeddingBackward0": tables.embedding,
        "EmbeddingBagBackward0": tables.embedding_bag,
        "ExpandBackward0": elementwise.expand,
        "FusedRmsNormBackward0": normalisation.rms_norm,
        "IndexBackward0": tables.index,
        "IndexSelectBackward0": tables.index_select,
        "LerpBackward0": elementwise.lerp,
        "LerpBackward1": elementwise.lerp,
        "MaskedFillBackward1": elementwise.masked_fill,
        "MaximumBackward0": elementwise.maximum,
        "MinimumBackward0": elementwise.minimum,
        "MkldnnRnnLayerBackward0": recurrent.lstm_layer,
        "MmBackward0": products.mm,
        "MulBackward0": elementwise.mul,
        "MvBackward0": products.mv,
        "NativeBatchNormBackward0": normalisation.batch_norm,
        "NativeGroupNormBackward0": normalisation.group_norm,
        "NativeLayerNormBackward0": normalisation.layer_norm,
        "PowBackward1": elementwise.power,
        "PreluKernelBackward0": elementwise.prelu,
        "RepeatBackward0": elementwise.repeat,
        "SubBackward0": elementwise.sub,
        "ThnnFusedGruCellBackward0": recurrent.gru_cell,
        "ThnnFusedLstmCellBackward0": recurrent.lstm_cell,
        "TrilinearBackward0": products.bilinear,
        "WhereBackward0": elementwise.where,
    },
)
"""Node name -> rule."""
