"""Feature tables of made-up samples, and the inputs of meta models that are made of them."""

import numpy as np
import pandas as pd

from gradscore.baselines import FittedBaselines, InDistribution
from gradscore.columns import PENULTIMATE, augmentation_column
from gradscore.meta import MetaInputs, TrainingSet, outputs_of
from gradscore.models import Head

CLASSES, WIDTH = 2, 6
AUGMENTATION = "flip"
HEAD = Head(weight=np.repeat(np.eye(CLASSES), WIDTH // CLASSES, axis=1), bias=np.zeros(CLASSES))


def make_table(*, seed, positive, in_gradients=3.0, in_features=0.7, look=True, augmentation=False):
    """One row for each of `positive` (N,); positives are off in their gradients and in their features.

    Args:
        seed: of the random values.
        positive: (N,) bool, or how unusual each sample is.
        in_gradients: decades that the gradients of positives are larger.
        in_features: share that the penultimate features of positives are smaller by.
        look: with penultimate features.
        augmentation: with an augmentation, and its penultimate features.
    """
    generator = np.random.default_rng(seed)
    positive = np.asarray(positive, dtype=np.float64)
    size = len(positive)
    features = np.abs(generator.normal(1.0, 0.5, (size, WIDTH))) * (1 - in_features * positive[:, None])
    columns = looks("", features, look=look)
    if augmentation:
        columns |= looks(
            augmentation_column(AUGMENTATION, ""),
            np.abs(features + generator.normal(0, 0.1, features.shape)),
            look=look,
        )
    l1 = 10.0 ** (generator.normal(size=size) - 20 + in_gradients * positive)
    gradients = {
        "u/body/l1": 10.0 ** generator.normal(size=size),
        "u/head/mean": l1 * generator.uniform(-1, 1, size),
        "u/head/l1": l1,
        "u/head/l2": l1 * generator.uniform(0.5, 1, size),
    }
    hashes = [f"{seed}-{place}" for place in range(size)]
    return pd.DataFrame({"content_hash": hashes, **columns, **gradients})


def looks(start, features, *, look):
    logits = features @ HEAD.weight.T
    found = {f"{start}logit_{place}": logits[:, place] for place in range(CLASSES)}
    if look:
        found |= {f"{start}{PENULTIMATE}{place}": features[:, place] for place in range(WIDTH)}
    return found


def make_inputs(in_dist, *, augmentation=False, twice=None):
    """Inputs fitted on in-distribution samples, some of which may have been computed twice."""
    samples = outputs_of(in_dist)
    head = HEAD if samples.penultimate is not None else None
    of_what = InDistribution(outputs=samples, classes=samples.predictions, head=head)
    return MetaInputs.fit(
        in_dist, FittedBaselines.fit(of_what, augmentations=[AUGMENTATION] if augmentation else []), twice=twice
    )


def make_rows(inputs, frame, target, sets=None):
    """The rows of a table; positives are of one set unless told otherwise."""
    names = np.where(target, "ood.a", "in_dist.fit") if sets is None else np.asarray(sets)
    return TrainingSet(scaled=inputs.scaled(frame), target=np.asarray(target, dtype=bool), sets=names)
