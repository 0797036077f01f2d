"""The meta models of a run, by where they lie."""

from pathlib import Path

from gradscore.meta import MetaInputs, MetaModel
from gradscore.store import RunFolder

WRONG = "misclassification/in_dist_only/all"
OOD = "ood/known/all"


def meta_model(run: RunFolder | Path, place: str) -> MetaModel:
    """The model at a place of a run, with what makes its inputs."""
    folder = run if isinstance(run, RunFolder) else RunFolder(run)
    return MetaModel.load(folder.meta_path / place, MetaInputs.load(folder.inputs_path))
