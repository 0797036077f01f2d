"""Audits: of a model and labelled samples of a program, or of a split of a configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd
from torch import Tensor, nn
from torch.utils.data import DataLoader, RandomSampler

from ..config import Config, ExtractConfig, FeaturesConfig, section
from ..data import FIT, Pixels, Samples, are_images, is_image
from ..errors import ConfigError, GradscoreError
from ..extractor import count_classes
from ..models import Interface, trusting_code
from ..pipeline import Progress, feature_table, given_samples, open_split, warn_of_overflow
from .heads import check_class_sizes
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
    samples = given_samples(model, data, preprocessing=preprocessing)
    if class_names is not None:
        with interface.attached(model):
            check_names(class_names, count_classes(model, samples.first))
    table = audited_features(
        model, samples, penultimate=penultimate or True, options=options, interface=interface, progress=progress
    )
    return ranked(table, class_names=class_names, seed=seed)


def audited_features(
    model: nn.Module,
    samples: Samples,
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
    images = samples.first.inputs
    look_again = isinstance(images, Tensor) and are_images(images) and min(images.shape[2:]) >= SMALLEST
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


def audit_config(
    config: Config,
    *,
    split: str = FIT,
    trust_code: bool = False,
    progress: Progress | None = None,
) -> tuple[Audit, Callable[[int], Pixels | None]]:
    """Audits the labels of a split.

    Of the section `features`, only `penultimate` counts.

    Args:
        config: the settings.
        split: which samples; all of them need labels.
        trust_code: allow a `python:` model or data, whose code is run.
        progress: told after every batch.

    Returns:
        What was found, and what finds the image (H, W, C) uint8 of a sample by its place in the audit: None where it is
        no image, or cannot be read any more.

    Raises:
        ConfigError: no such split, or a device that is not there.
        ModelError: a model that cannot be built, or ends in no linear layer.
        DataError: samples that cannot be used or have no label, or a class with too few.
        EngineError: gradients that cannot be computed.
    """
    with trusting_code(trust_code):
        opened = open_split(config, split, loss="label", command="audit")
    dataset = opened.dataset
    if dataset.labels is not None:  # as open_split made sure
        check_class_sizes(dataset.labels)
    table = audited_features(
        opened.model,
        opened.samples,
        penultimate=config.features.penultimate or True,
        options=config.extract,
        progress=None if progress is None else lambda _, done, total: progress(split, done, total),
    )
    found = ranked(table, class_names=dataset.class_names)
    places = {name: place for place, name in enumerate(dataset.ids)}

    def image(place: int) -> Pixels | None:
        try:
            raw = dataset.images.image(places[table["sample_id"].iloc[place]])
        except (GradscoreError, OSError):
            return None
        return raw if is_image(raw) else None

    return replace(found, notices=[*opened.notices, *found.notices]), image
