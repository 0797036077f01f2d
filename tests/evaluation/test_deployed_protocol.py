"""Which OOD model a bundle has, by what models find of sets that were left out."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from gradscore.evaluation import deployed

AREAS = {
    "another is a little ahead": ({"known": 0.936, "auxiliary": 0.937, "in_dist_only": 0.938}, "known"),
    "another is ahead": ({"known": 0.90, "auxiliary": 0.93, "in_dist_only": 0.94}, "known"),
    "another is far ahead": ({"known": 0.88, "auxiliary": 0.93, "in_dist_only": 0.94}, "auxiliary"),
    "the next is ahead of those": ({"known": 0.88, "auxiliary": 0.93, "in_dist_only": 0.945}, "in_dist_only"),
    "nobody knows": ({"known": float("-inf"), "in_dist_only": float("-inf")}, "known"),
    "none is there": ({}, None),
}


@pytest.mark.parametrize(("areas", "wanted"), AREAS.values(), ids=AREAS)
def test_the_model_that_knows_more_stays_unless_another_is_shown_to_be_ahead(
    areas: dict[str, float], wanted: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in areas:
        (tmp_path / deployed.ood_place(name)).mkdir(parents=True)
    monkeypatch.setattr(deployed, "auroc_left_out", lambda _run, name: areas[name])
    protocols = SimpleNamespace(evaluate=SimpleNamespace(protocols=list(deployed.DEPLOYABLE)))
    run = SimpleNamespace(config=protocols, meta_path=tmp_path)
    assert deployed.deployed_protocol(run) == wanted  # type: ignore[arg-type]
