"""Only what changed is fitted again, and settings of a run may change with it."""

import shutil
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from commands import cli, words

from gradscore.deployment import make_bundle
from gradscore.errors import ConfigError, StoreError
from gradscore.evaluation import evaluate_run, fit_run, protocols, read_scores, stored_verdicts
from gradscore.store import RunFolder, verify_run

SECTIONS = ("meta", "evaluate")


def contents(run: RunFolder) -> dict[str, bytes]:
    files = (path for path in run.meta_path.rglob("*") if path.is_file())
    return {path.relative_to(run.path).as_posix(): path.read_bytes() for path in files}


def test_what_changed_is_fitted_again_and_the_same_settings_keep_every_model(report_copy: RunFolder) -> None:
    fit_run(report_copy)
    changed = report_copy.with_settings(["meta.Cs=[0.1]"], sections=SECTIONS)
    assert fit_run(changed).kept == ["ood/in_dist_only/all"]
    kept_models = contents(report_copy)
    shutil.rmtree(report_copy.meta_path)
    anew = fit_run(RunFolder(report_copy.path))
    assert anew.kept == []
    assert contents(report_copy) == kept_models
    assert fit_run(RunFolder(report_copy.path)).kept == [fitted.spec.label for fitted in anew.models]
    assert contents(report_copy) == kept_models
    assert not verify_run(report_copy.path).damaged
    evaluate_run(RunFolder(report_copy.path))


def test_fewer_protocols_leave_fewer_models(report_copy: RunFolder) -> None:
    fit_run(report_copy.with_settings(["evaluate.protocols=[in_dist_only]"], sections=SECTIONS))
    assert RunFolder(report_copy.path).config.evaluate.protocols == ["in_dist_only"]
    assert {path.parent.name for path in report_copy.meta_path.glob("ood/*/*")} == {"in_dist_only"}
    assert not verify_run(report_copy.path).damaged


DAMAGES = {
    "a flipped bit": lambda folder: flip(folder / "arrays.safetensors"),
    "a model without its baseline": lambda folder: shutil.rmtree(folder / "score_lr"),
    "another file": lambda folder: (folder / "notes.txt").write_text("mine"),
}  # fmt: skip


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_what_is_damaged_is_fitted_again(report_copy: RunFolder, damage) -> None:
    fit_run(report_copy)
    before = contents(report_copy)
    damage(report_copy.meta_path / "ood/known/all")
    report = fit_run(report_copy)
    assert "ood/known/all" not in report.kept
    assert len(report.kept) == len(report.models) - 1
    assert contents(report_copy) == before


@pytest.mark.parametrize("name", ["manifest.json", "config.yaml"])
def test_what_a_fit_or_a_bundle_would_take_damaged_is_refused(report_copy: RunFolder, name: str) -> None:
    fit_run(report_copy)
    text = (report_copy.path / name).read_bytes()
    (report_copy.path / name).write_bytes(text[:-9] + bytes([text[-9] ^ 1]) + text[-8:])
    for command in (fit_run, make_bundle):
        with pytest.raises(StoreError, match=rf"{name}: not the content .*restore it .*, or extract"):
            command(report_copy)  # whose manifest and configuration were read before the damage


def test_damaged_figures_are_refused_before_a_bundle_tells_of_them(report_copy: RunFolder) -> None:
    fit_run(report_copy)
    evaluate_run(report_copy)
    figures = report_copy.evaluation_path / "metrics.json"
    figures.write_text(figures.read_text().replace('"dataset"', '"datasep"', 1))
    with pytest.raises(StoreError, match=r"metrics\.json: not the content .*or evaluate again"):
        stored_verdicts(report_copy)


def test_changed_scores_are_refused_before_anything_compares_them(report_copy: RunFolder) -> None:
    fit_run(report_copy)
    evaluate_run(report_copy)
    path = report_copy.evaluation_path / "scores.parquet"
    table = pq.read_table(path)
    place = table.column_names.index("chosen")
    pq.write_table(table.set_column(place, table.field(place), pc.negate(table.column(place))), path)
    with pytest.raises(StoreError, match=r"scores\.parquet: not the content .*or evaluate again"):
        read_scores(report_copy)


def test_another_version_of_a_package_fits_again(report_copy: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    fit_run(report_copy)
    monkeypatch.setattr(protocols, "package_versions", lambda: {"gradscore": "99"})
    assert fit_run(report_copy).kept == []


def test_settings_of_what_was_extracted_are_refused(report_copy: RunFolder) -> None:
    with pytest.raises(ConfigError, match=r"--set features.losses=\[uniform\]: wanted a setting of meta or evaluate"):
        report_copy.with_settings(["features.losses=[uniform]"], sections=SECTIONS)


ADVICE = {"fit-meta": (SECTIONS, False), "evaluate": (["evaluate"], True)}


@pytest.mark.parametrize(("sections", "is_named"), ADVICE.values(), ids=ADVICE)
def test_a_command_does_not_name_itself_for_what_it_refuses(
    report_copy: RunFolder, sections: list[str], is_named: bool
) -> None:
    with pytest.raises(ConfigError, match=r"for `gradscore extract` with the changed") as refused:
        report_copy.with_settings(["features.losses=[uniform]"], sections=sections)
    assert ("fit-meta" in str(refused.value)) == is_named


def test_an_unusable_setting_is_named_as_it_was_given(report_copy: RunFolder) -> None:
    with pytest.raises(ConfigError, match=r"^--set meta\.cv_fold=3: meta\.cv_fold: unknown key"):
        report_copy.with_settings(["meta.cv_fold=3"], sections=SECTIONS)


def test_unknown_settings_are_refused_and_nothing_is_stored(report_copy: RunFolder) -> None:
    before = (report_copy.path / "config.yaml").read_bytes()
    result = cli("fit-meta", report_copy.path, "--set", "meta.strenghts=[1]")
    assert result.exit_code == 2
    assert "Cs" in words(result)
    assert (report_copy.path / "config.yaml").read_bytes() == before


def test_fit_meta_stores_settings_and_says_how_many_it_kept(report_copy: RunFolder) -> None:
    fit_run(report_copy)
    result = cli("fit-meta", report_copy.path, "--set", "evaluate.protocols=[known, in_dist_only]")
    assert result.exit_code == 0
    assert "3 meta models, 3 of them kept as they were" in words(result)
    assert RunFolder(report_copy.path).config.evaluate.protocols == ["known", "in_dist_only"]


def test_evaluate_reports_other_protocols_and_stores_nothing(report_copy: RunFolder) -> None:
    before = (report_copy.path / "config.yaml").read_bytes()
    assert cli("evaluate", report_copy.path, "--set", "evaluate.protocols=[in_dist_only]").exit_code == 0
    report = (report_copy.evaluation_path / "metrics.csv").read_text()
    assert "leave_one_dataset_out" not in report
    assert (report_copy.path / "config.yaml").read_bytes() == before


def test_evaluate_refuses_settings_of_fits(report_copy: RunFolder) -> None:
    result = cli("evaluate", report_copy.path, "--set", "meta.seed=1")
    assert result.exit_code == 2
    assert "wanted a setting of evaluate" in words(result)
