"""What the classes of a model are called, where its source says so."""

from __future__ import annotations

from .settings import ModelConfig
from .sources import MODEL_SOURCES


def class_names(config: ModelConfig) -> list[str] | None:
    """The names of the classes in the order of the logits; None where the source of the model does not name them.

    Args:
        config: the model; nothing of it is built, and no code of others runs.

    Raises:
        ModelError: the source cannot be used.
    """
    kind, _, name = config.source.partition(":")
    find = MODEL_SOURCES[kind].class_names if kind in MODEL_SOURCES else None
    names = None if find is None else find(name)
    return names if names is not None and len(names) == config.num_classes else None
