"""`gradscore.audit`: a model and labelled samples that a program has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from torch import nn
from torch.utils.data import DataLoader, RandomSampler

from ..config import ExtractConfig, FeaturesConfig, section
from ..data import Peeked, are_images
from ..errors import ConfigError
from ..features import Progress, count_classes, feature_table, given_samples, warn_of_overflow
from ..models import Interface
from .ranking import Audit, check_names, ranked

AUGMENTATIONS = ("mirror", "shift:1,0", "shift:-1,0", "shift:0,1", "shift:0,-1")
"""How images are looked at as well; an augmentation that costs the classifier accuracy is not counted."""

SMALLEST = 8
"""Pixels that an image has in height and width at least."""


PLAIN = ExtractConfig()
"""How samples are computed where nothing else is said."""

AS_IT_IS = Interface(num_classes=0, in_python=True)
"""The model returns logits in a way that is obvious."""


def audit(
    model: nn.Module,
    data: Any,
    *,
    class_names: Sequence[str] | None = None,
    preprocessing: Mapping[str, Any] | None = None,
    penultimate: str | None = None,
    batch_size: int = PLAIN.batch_size,
    output: str | int | None = None,
    one_logit: bool = False,
    seed: int = 0,
    progress: Progress | None = None,
) -> Audit:
    """Ranks labelled samples by how likely their given label is wrong.

    Args:
        model: the classifier, in eval mode; it may have been trained on these very samples and labels.
        data: labelled samples as `gradscore.features` takes them.
        class_names: in the order of the outputs of the model.
        preprocessing: as for `gradscore.features`.
        penultimate: the name of the linear layer whose inputs are compared; the last one by default.
        batch_size: samples that go through the model at a time.
        output: as for `gradscore.features`.
        one_logit: as for `gradscore.features`.
        seed: of the folds.
        progress: told how far it is.

    Returns:
        The samples, the most suspicious first.

    Raises:
        ConfigError: another `penultimate` or batch size, or a DataLoader that shuffles.
        DataError: a sample without a label, a class with too few samples, or names of other classes.
        ModelError: the model is in training mode, cannot take the samples, or ends in no linear layer.
        EngineError: gradients that cannot be computed.

    Example:
        >>> import torch
        >>> samples = torch.arange(400.0)[:, None]
        >>> labels = (torch.arange(400) >= 200).long()
        >>> labels[390] = 0
        >>> model = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 2)).eval()
        >>> audit(model, (samples, labels)).table["sample_id"].iloc[0]
        '390'
    """
    if not isinstance(penultimate, str | None):
        raise ConfigError(f"penultimate: wanted the name of a linear layer of the model, got {penultimate!r}")
    options = section(ExtractConfig, {"batch_size": batch_size}, where="extract")
    interface = Interface(num_classes=0, output=output, one_logit=one_logit, in_python=True)
    if isinstance(data, DataLoader) and isinstance(data.sampler, RandomSampler):
        raise ConfigError(
            "data: a DataLoader that shuffles, so that places in its data set say nothing of the samples that are "
            "found; give it with shuffle=False"
        )
    samples = Peeked.of(given_samples(model, data, preprocessing=preprocessing))
    if class_names is not None:
        with interface.attached(model):
            check_names(class_names, count_classes(model, samples.first))
    table = audited_features(
        model, samples, penultimate=penultimate or True, options=options, interface=interface, progress=progress
    )
    return ranked(table, class_names=class_names, seed=seed)


def audited_features(
    model: nn.Module,
    samples: Peeked,
    *,
    penultimate: bool | str = True,
    options: ExtractConfig = PLAIN,
    interface: Interface = AS_IT_IS,
    progress: Progress | None = None,
) -> pd.DataFrame:
    """The features that an audit looks at.

    Args:
        model: as for `audit`.
        samples: what is audited.
        penultimate: the name of the linear layer, or True for the last one.
        options: batch size and part size.
        interface: how the model returns logits.
        progress: told how far it is.

    Raises:
        DataError: as `audit`; so do ConfigError, ModelError and EngineError.
    """
    images = samples.first.images
    look_again = are_images(images) and min(samples.first.tensor.shape[2:]) >= SMALLEST
    settings = {
        "losses": ["label"],
        "statistics": ["l2"],
        "granularity": "model",
        "penultimate": penultimate,
        "augmentations": list(AUGMENTATIONS) if look_again else [],
    }
    features = section(FeaturesConfig, settings, where="features")
    table = feature_table(model, samples, features, options, interface=interface, progress=progress)
    warn_of_overflow(table)
    return table
