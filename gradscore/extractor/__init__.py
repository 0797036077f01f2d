"""From a model and batches of inputs to logits, penultimate features and statistics of gradients.

`extractor` has what is computed of a classifier. `batch_losses` has losses of a program's own, which call the model
themselves.
"""

from __future__ import annotations

from .batch_losses import BatchLosses, LossExtractor, LossOfBatch, Tokens
from .extractor import FAILURES, WARM_UP, Extractor, ForwardPass, check_mode, count_classes, input_dtype, refusal
