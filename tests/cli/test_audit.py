"""`gradscore audit`: a configuration or run folder to a page, and what it refuses."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from commands import cli, words
from trusted import built
from wrapped_data import Wrapped

import gradscore
from gradscore import label_audit
from gradscore.config import Config, dump_config
from gradscore.data import SampleDataset, collate, open_source
from gradscore.pipeline import open_datasets
from gradscore.store import RunFolder, verify_run
from gradscore_cli.audit import PRINTED


def test_the_command_and_the_function_say_the_same(small_run: Path, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(dump_config(RunFolder(small_run).config))
    found = cli("audit", tmp_path / "config.yaml", "--trust-code", "--out", tmp_path / "out", "--json", "--quiet")
    assert found.exit_code == 0, found.output
    report = json.loads(found.stdout)
    table = pd.read_parquet(tmp_path / "out" / "in_dist.fit" / "audit.parquet")
    config = RunFolder(small_run).config
    dataset = open_datasets(config)["in_dist.fit"]
    batch = collate(list(dataset))
    model = built(config.model)
    direct = gradscore.audit(model, (batch.inputs, batch.labels), batch_size=config.extract.batch_size)
    assert report["suspected"] == direct.suspected
    assert report["wrong"] == {**direct.wrong._asdict(), "sentence": direct.sentence}
    assert direct.sentence.capitalize() in (tmp_path / "out/in_dist.fit/audit.html").read_text()
    assert report["samples"] == len(dataset)
    assert report["report"].endswith("audit.html")
    assert [row["sample_id"] for row in report["first"]] == table["sample_id"].head(PRINTED).tolist()
    assert [row["score"] for row in report["first"]] == table["score"].head(PRINTED).tolist()
    fitting = table["suggested"].where(table["suspected"]).head(PRINTED)
    assert [row["suggested"] for row in report["first"]] == [None if np.isnan(k) else str(int(k)) for k in fitting]
    assert table["sample_id"].tolist() == [dataset.ids[place] for place in direct.table["place"]]
    columns = ["rank", "place", "label", "suggested", "score", "grand", "neighbours_label"]
    pd.testing.assert_frame_equal(table[columns], direct.table[columns], check_exact=True)


def test_files_are_where_the_manual_and_the_page_say(small_run: Path, tmp_path: Path, monkeypatch) -> None:
    manual = (Path(__file__).parents[2] / "docs" / "audit.md").read_text()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_model").mkdir()
    config = RunFolder(small_run).config.model_copy(update={"run": Path("run")})
    (tmp_path / "my_model" / "gradscore.yaml").write_text(dump_config(config))
    found = cli("audit", "my_model/gradscore.yaml", "--split", "in_dist.fit", "--trust-code", "--json", "--quiet")
    assert found.exit_code == 0, found.output
    (folder,) = {Path(each).resolve().parent for each in json.loads(found.stdout)["tables"]}
    assert f"`{folder.relative_to(tmp_path.resolve())}`" in manual
    assert (folder / ".gitignore").read_text() == "*\n"
    assert "audit.csv and audit.parquet beside this page" in (folder / "audit.html").read_text()


def test_a_selection_and_what_suspected_means_are_said(small_run: Path, tmp_path: Path) -> None:
    config = RunFolder(small_run).config
    whole = len(open_source(config.data.in_dist.fit.source).ids)
    found = cli("audit", small_run, "--trust-code", "--out", tmp_path / "out")
    looked_at = len(RunFolder(small_run).read("in_dist.fit"))
    assert looked_at < whole
    said = f"only the {looked_at} samples that data.in_dist.fit.select takes of {config.data.in_dist.fit.source} were"
    remedy = "by a configuration with --set data.in_dist.fit.select={}"
    assert f"{said} looked at; all {whole:,} of them {remedy}" in words(found)
    assert 0 < words(found).index("suspected (not all are wrong)") < words(found).index("suggested")


def test_a_selection_of_all_samples_is_none(small_run: Path, tmp_path: Path) -> None:
    config = dump_config(RunFolder(small_run).config)
    (tmp_path / "own.yaml").write_text(config)
    every = ("--set", "data.in_dist.fit.select={start: 0}", "--trust-code", "--out", tmp_path / "out")
    found = cli("audit", tmp_path / "own.yaml", *every)
    assert found.exit_code == 0, found.output
    assert "samples that data.in_dist.fit.select takes" not in words(found)


def test_audits_of_two_splits_stay_beside_each_other(make_run: Callable[..., Path]) -> None:
    run = make_run(evaluate=False)
    splits = ["in_dist.fit", "in_dist.test"]
    found = [cli("audit", run, "--split", split, "--trust-code", "--shown", "5") for split in splits]
    assert [each.exit_code for each in found] == [0, 0]
    page = (run / "audit" / "in_dist.test" / "audit.html").read_text()
    assert page.count("<article") == 5
    assert '<img src="data:image/png' in page
    tables = [pd.read_parquet(run / "audit" / split / "audit.parquet") for split in splits]
    wanted = [set(RunFolder(run).read(split)["sample_id"]) for split in splits]
    assert [set(table["sample_id"]) for table in tables] == wanted
    assert wanted[0] != wanted[1]
    assert not verify_run(run).damaged


@pytest.mark.parametrize("options", [[], ["--quiet"], ["--json"]], ids=["said", "quiet", "json"])
def test_labels_in_another_order_are_said_in_place_of_a_count(
    small_run: Path, tmp_path: Path, options: list[str]
) -> None:
    (tmp_path / "config.yaml").write_text(dump_config(RunFolder(small_run).config))
    turned = {digit: (digit + 1) % 10 for digit in range(10)}
    settings = ["--set", f"data.in_dist.fit.label_map={json.dumps(turned)}", "--out", tmp_path / "out"]
    found = cli("audit", tmp_path / "config.yaml", "--trust-code", *settings, *options)
    assert found.exit_code == 3, found.output
    assert "labels are probably in that other order" in words(found)
    assert "labels are wrong" not in words(found)
    page = (tmp_path / "out/in_dist.fit/audit.html").read_text()
    assert "labels are probably in that other order" in page
    assert "labels are wrong" not in page


class OfOneClass(Wrapped):
    """A data set whose labels are all the same."""

    def __init__(self, inner: SampleDataset) -> None:
        super().__init__(inner)
        self.labels = np.zeros_like(inner.labels)


def test_a_mistyped_split_is_told_those_with_labels(small_run: Path) -> None:
    found = cli("audit", small_run, "--split", "nowhere", "--trust-code")
    assert found.exit_code == 2, found.output
    assert "audit: no split 'nowhere'; valid: in_dist.fit, in_dist.test" in words(found)
    assert "ood." not in found.stderr


def test_labels_are_looked_at_before_anything_is_computed(small_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def opened(config: Config, **options: Any) -> dict[str, Any]:
        return {name: OfOneClass(each) for name, each in open_datasets(config, **options).items()}

    monkeypatch.setattr("gradscore.pipeline.extraction.open_datasets", opened)
    monkeypatch.setattr("gradscore.label_audit.audits.audited_features", None)
    found = cli("audit", small_run, "--trust-code")
    assert found.exit_code == 2, found.output
    assert "wanted samples of two classes or more, got 1" in words(found)


def a_file(folder: Path) -> Path:
    (folder / "file").write_text("something")
    return folder / "file"


def with_a_folder_in_the_place_of_a_table(folder: Path) -> Path:
    (folder / "in_dist.fit" / "audit.csv").mkdir(parents=True)
    return folder


TARGETS = {
    "a file": (a_file, "file is a file, wanted a folder"),
    "a folder in the place of a table": (with_a_folder_in_the_place_of_a_table, "audit.csv: wanted a file"),
}


@pytest.mark.parametrize(("place", "message"), TARGETS.values(), ids=TARGETS)
def test_targets_are_refused_before_anything_is_computed(
    small_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: Callable[[Path], Path], message: str
) -> None:
    monkeypatch.setattr(label_audit, "audit_config", None)
    found = cli("audit", small_run, "--trust-code", "--out", place(tmp_path))
    assert found.exit_code == 2
    assert message in words(found)
