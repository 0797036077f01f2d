"""The audit of a split of a configuration."""

from __future__ import annotations

from dataclasses import dataclass

from ..config import Config
from ..data import FIT, Peeked, Pixels, SampleDataset, is_image
from ..errors import GradscoreError
from ..features import Progress, open_split
from ..models import USERS_OWN, RunCode
from .heads import check_class_sizes
from .of_samples import audited_features
from .ranking import Audit, ranked


@dataclass(frozen=True)
class AuditedSplit:
    """An audit, and the samples it is of.

    Attributes:
        audit: what was found.
        split: the name of the split.
        images: finds the samples by their places in the audit.
    """

    audit: Audit
    split: str
    images: Images


class Images:
    """The images of audited samples.

    Args:
        dataset: the split.
        places: by place in the audit, the place in the split.
    """

    def __init__(self, dataset: SampleDataset, places: list[int]) -> None:
        self._dataset, self._places = dataset, places

    def __call__(self, place: int) -> Pixels | None:
        """The image (H, W, C) uint8 of a sample; None where it is no image, or cannot be read any more."""
        try:
            raw = self._dataset.images.image(self._places[place])
        except (GradscoreError, OSError):
            return None
        return raw if is_image(raw) else None


def audit_config(
    config: Config,
    *,
    split: str = FIT,
    trust_code: bool = False,
    code: RunCode = USERS_OWN,
    progress: Progress | None = None,
) -> AuditedSplit:
    """Audits the labels of a split.

    Of the section `features`, only `penultimate` counts.

    Args:
        config: the settings.
        split: which samples; all of them need labels.
        trust_code: allow a `python:` model or data, whose code is run.
        code: what the run folder that the configuration is from says of that code.
        progress: told after every batch.

    Returns:
        What was found.

    Raises:
        ConfigError: no such split, or a device that is not there.
        ModelError: a model that cannot be built, or ends in no linear layer.
        DataError: samples that cannot be used or have no label, or a class with too few.
        EngineError: gradients that cannot be computed.
    """
    opened = open_split(config, split, loss="label", command="audit", trust_code=trust_code, code=code)
    dataset = opened.samples.dataset
    if dataset.labels is not None:  # as open_split made sure
        check_class_sizes(dataset.labels)
    table = audited_features(
        opened.model,
        Peeked.of(opened.samples),
        penultimate=config.features.penultimate or True,
        options=config.extract,
        progress=None if progress is None else lambda _, done, total: progress(split, done, total),
    )
    found = ranked(table, class_names=dataset.class_names)
    places = {name: place for place, name in enumerate(dataset.ids)}
    images = Images(dataset, [places[name] for name in table["sample_id"]])
    audit = Audit(
        table=found.table,
        nearest=found.nearest,
        class_names=found.class_names,
        notices=[*opened.notices, *found.notices],
    )
    return AuditedSplit(audit, split, images)
