"""Samples that are no photographs of one size: vectors, arrays, tokens with masks; from extract to a score."""

import importlib
import json
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from commands import cli
from net_configs import net_config

from gradscore.config import Config, DataConfig
from gradscore.data import open_user_samples, with_auxiliary
from gradscore.data.sources.synthetic import AUTO_OF_IMAGES
from gradscore.deployment import Scorer, make_bundle, write_bundle
from gradscore.deployment.raw_inputs import as_texts, raw_samples
from gradscore.errors import DataError, ModelError
from gradscore.evaluation import evaluate_run, fit_run
from gradscore.evaluation.near_duplicates import find_near_duplicates as search
from gradscore.models import trusting_code
from gradscore.pipeline import RunPlan, extract, open_datasets
from gradscore.store import RunFolder
from gradscore.system import import_torchvision

NET = """
import torch
from torch import nn


def vectors():
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))


def frozen():
    return vectors().requires_grad_(False)


def pictures():
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3))


class Text(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(50, 8)
        self.body = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))

    def forward(self, input_ids, attention_mask):
        mask = attention_mask.unsqueeze(2).to(self.words.weight.dtype)
        return self.body((self.words(input_ids) * mask).sum(1) / mask.sum(1).clamp(min=1))


def text():
    return Text()
"""

DATA = """
import numpy as np
from torch.utils.data import TensorDataset
import torch


def vectors(seed, count):
    random = np.random.default_rng(seed)
    labels = random.integers(0, 3, count)
    values = random.normal(size=(count, 4)).astype(np.float32) + labels[:, None]
    return TensorDataset(torch.tensor(values, dtype=torch.float32), torch.tensor(labels))
"""

COUNT = 60


def labels_of(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 3, COUNT)


def save_vectors(folder: Path, name: str, seed: int) -> dict[str, Any]:
    values = np.random.default_rng(seed + 100).normal(size=(COUNT, 4)) + labels_of(seed)[:, None]
    frame = pd.DataFrame(values, columns=list("abcd"))
    frame.assign(label=np.array(["ant", "bee", "cow"])[labels_of(seed)]).to_csv(folder / f"{name}.csv", index=False)
    return {"source": f"csv:{folder}/{name}.csv"}


def save_pictures(folder: Path, name: str, seed: int) -> dict[str, Any]:
    values = np.random.default_rng(seed + 100).random((COUNT, 3, 6, 6), dtype=np.float32)
    np.savez(folder / f"{name}.npz", images=values, labels=labels_of(seed))
    return {"source": f"npz:{folder}/{name}.npz"}


def save_tokens(folder: Path, name: str, seed: int) -> dict[str, Any]:
    random = np.random.default_rng(seed + 100)
    tokens = random.integers(0, 16, (COUNT, 9)) + 16 * labels_of(seed)[:, None]
    masks = (np.arange(9) < random.integers(4, 10, COUNT)[:, None]).astype(np.int64)
    np.savez(folder / f"{name}.npz", input_ids=tokens, attention_mask=masks, labels=labels_of(seed))
    return {"source": f"npz:{folder}/{name}.npz"}


def of_code(folder: Path, name: str, seed: int) -> dict[str, Any]:
    (folder / "data.py").write_text(DATA)
    random = np.random.default_rng(seed)
    labels = random.integers(0, 3, COUNT)
    values = random.normal(size=(COUNT, 4)).astype(np.float32) + labels[:, None]
    np.savez(folder / f"{name}.npz", x=values.astype(np.float32), y=labels)
    return {"source": f"python:{folder}/data.py:vectors", "arguments": {"seed": seed, "count": COUNT}}


KINDS: dict[str, tuple[Callable[[Path, str, int], dict[str, Any]], str, list[str], str]] = {
    "columns of a table": (
        save_vectors,
        "vectors",
        ["permuted_columns", "feature_mixture", "swapped_fields"],
        "test.csv",
    ),
    "float images": (save_pictures, "pictures", ["feature_mixture", "permuted_columns"], "test.npz"),
    "tokens and masks": (save_tokens, "text", ["shuffled_tokens", "swapped_fields"], "test.npz"),
    "a function": (of_code, "vectors", ["feature_mixture"], "test.npz"),
}
"""How the samples are saved, the model, what is made of them, and the file with the test samples."""


def make_config(folder: Path, kind: str, *, model: dict[str, Any] | None = None, **changes: Any) -> Config:
    save, net, synthetic, _ = KINDS[kind]
    made = [{"name": name, "source": f"synthetic:{name}", "auxiliary": True} for name in synthetic]
    sections = {
        "features": {"statistics": ["l2", "max"], "losses": ["uniform"]},
        "extract": {"batch_size": 16},
        "meta": {"Cs": [0.01], "cv_folds": 2},
        "evaluate": {"protocols": ["auxiliary", "in_dist_only"]},
    }
    return net_config(
        folder,
        NET,
        net,
        model={"num_classes": 3, **(model or {})},
        in_dist={"fit": save(folder, "fit", 1), "test": save(folder, "test", 2)},
        ood=[{"name": "other", **save(folder, "other", 3)}, *made],
        **sections | changes,
    )


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_is_scored_as_it_was_extracted(tmp_path: Path, kind: str) -> None:
    config = make_config(tmp_path, kind)
    extract(config, trust_code=True)
    run = RunFolder(config.run)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # random weights leave some figures without a value
        fit_run(run)
        evaluate_run(run)
    write_bundle(tmp_path / "b", make_bundle(run, alpha=0.5, with_weights=True, trust_code=True))
    scorer = Scorer.load(tmp_path / "b", trust_code=True)
    samples = open_user_samples([str(tmp_path / KINDS[kind][3])])[0]
    found = pd.concat(list(scorer.stream(samples, batch_size=16)))
    assert (found["error"] == "").all()
    assert set(found["decision"]) <= {"accept", "reject"}
    assert found["prediction"].tolist() == run.read("in_dist.test")["prediction"].tolist()
    assert list(found.columns) == scorer.columns()


RAW: dict[str, Callable[[pd.DataFrame], Any]] = {
    "a data frame": lambda table: table,
    "an array": lambda table: table.to_numpy(),
    "a tensor": lambda table: torch.tensor(table.to_numpy()),
    "lists": lambda table: table.to_numpy().tolist(),
    "a big-endian array": lambda table: table.to_numpy().astype(">f8"),
    "a negated view": lambda table: torch._neg_view(-torch.tensor(table.to_numpy())),
    "a data frame without names": lambda table: pd.DataFrame(table.to_numpy()),
    "series": lambda table: [
        table.assign(note="seen")[["c", "note", "b", "a", "d"]].iloc[row] for row in range(len(table))
    ],
    "named tuples": lambda table: list(table[list("cbad")].itertuples(index=False)),
    "mappings": lambda table: table[list("cbad")].to_dict("records"),
    "columns by name": lambda table: {name: table[name].to_numpy() for name in "dcab"},
    "numbers that may lack": lambda table: table.astype({"b": "Float64", "d": "Float32"}).astype({"d": "float64"}),
}
"""Forms of rows in a program; names are heeded where they have some."""


@pytest.fixture(scope="module")
def standardised(tmp_path_factory: pytest.TempPathFactory) -> tuple[Scorer, pd.DataFrame, pd.DataFrame]:
    """A scorer of rows of a table that go through a preprocessing, the rows, and how the file with them scores."""
    folder = tmp_path_factory.mktemp("standardised")
    preprocessing = {"mean": [1.0, 0.5, 0.0, 2.0], "std": [2.0, 1.0, 0.5, 1.0]}
    config = make_config(folder, "columns of a table", preprocessing=preprocessing)
    extract(config, trust_code=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        fit_run(RunFolder(config.run))
    write_bundle(folder / "b", make_bundle(RunFolder(config.run), alpha=0.5, with_weights=True, trust_code=True))
    scorer = Scorer.load(folder / "b", trust_code=True)
    return scorer, pd.read_csv(folder / "test.csv")[list("abcd")], scorer(str(folder / "test.csv"))


@pytest.mark.parametrize("given", RAW.values(), ids=RAW)
def test_raw_rows_score_as_their_file(standardised, given) -> None:
    scorer, table, wanted = standardised
    found = scorer(given(table), raw=True, sample_ids=(str(row) for row in range(len(table))))
    pd.testing.assert_frame_equal(found.drop(columns="sample_id"), wanted.drop(columns="sample_id"))


def test_raw_numbers_of_a_type_that_numpy_has_not_are_scored(standardised) -> None:
    scorer, table, _ = standardised
    rounded = torch.tensor(table.to_numpy()).bfloat16()
    pd.testing.assert_frame_equal(scorer(rounded, raw=True), scorer(rounded.float(), raw=True))


def test_other_forms_are_told_what_the_bundle_takes(standardised) -> None:
    scorer, table, _ = standardised
    with pytest.raises(DataError, match=r"takes one array or tensor \(N, 4\), got float64 \(4,\); .* with raw=True"):
        scorer(list(table.to_numpy()))
    assert scorer.form.files == ""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scorer.form, "_columns", None)
        assert scorer.form.files.endswith("a .csv of 4 columns of numbers or an .npz (N, 4)")


WRITTEN: dict[str, Callable[[pd.DataFrame, Path], Any]] = {
    "csv": lambda table, path: table.to_csv(path, index=False),
    "parquet": lambda table, path: table.to_parquet(path, index=False),
}

OTHER_TABLES: dict[str, Callable[[pd.DataFrame], pd.DataFrame]] = {
    "columns in another order": lambda table: table[list("dbca")],
    "names of classes beside them": lambda table: table.assign(species="ant", note="seen at night"),
    "numbers beside them": lambda table: table.assign(weight=2.5)[["weight", *"abcd"]],
}


SUFFIXES = dict(zip(OTHER_TABLES, ["csv", "parquet", "csv"], strict=True))


@pytest.mark.parametrize(("name", "suffix"), SUFFIXES.items(), ids=SUFFIXES)
def test_columns_of_a_table_are_known_by_name(standardised, tmp_path: Path, name: str, suffix: str) -> None:
    scorer, table, wanted = standardised
    change = OTHER_TABLES[name]
    WRITTEN[suffix](change(table), tmp_path / f"t.{suffix}")
    of_file, of_frame = scorer(str(tmp_path / f"t.{suffix}")), scorer(change(table), raw=True)
    pd.testing.assert_frame_equal(of_file.drop(columns="sample_id"), wanted.drop(columns="sample_id"))
    pd.testing.assert_frame_equal(of_frame.drop(columns="sample_id"), wanted.drop(columns="sample_id"))


def test_columns_called_by_numbers_are_names_where_they_are_known() -> None:
    table = pd.DataFrame([[3.0, 1.0, 2.0]], columns=[2, 0, 1])
    found = raw_samples(table, floats=True, columns=["0", "1", "2"])[0].raw
    assert isinstance(found, np.ndarray)
    assert found.tolist() == [1.0, 2.0, 3.0]
    with pytest.raises(DataError, match=r"wanted columns a, b, c, got 2, 0, 1: no column 'a'"):
        raw_samples(table, floats=True, columns=["a", "b", "c"])


def test_whole_numbers_and_truth_values_of_a_table_may_lack() -> None:
    table = pd.DataFrame({"a": pd.array([1.5, 2], "Float64"), "b": [True, False], "c": pd.array([3, None], "Int64")})
    found, without = raw_samples(table, floats=True, columns=["a", "b", "c"])
    np.testing.assert_array_equal(found.raw, [1.5, 1.0, 3.0])
    assert (without.raw, without.error) == (None, "a missing value in column 'c', wanted a finite number")


def test_what_is_no_finite_number_in_a_row_is_named(standardised) -> None:
    scorer, table, wanted = standardised
    broken = table.copy()
    broken.loc[table.index[1], "b"], broken.loc[table.index[2], "d"] = np.nan, np.inf
    found = scorer(broken, raw=True)
    assert found["error"].iloc[1] == "a missing value in column 'b', wanted a finite number"
    assert found["error"].iloc[2] == "inf in column 'd', wanted a finite number"
    assert found["decision"].eq("error").sum() == 2
    assert found["score_wrong"].iloc[[0, 3]].tolist() == pytest.approx(wanted["score_wrong"].iloc[[0, 3]].tolist())


OTHER_NAMES = {
    "another name": (list("abcx"), "wanted columns a, b, c, d, got a, b, c, x: no column 'd'"),
    "one less": (list("abc"), "wanted columns a, b, c, d, got a, b, c: no column 'd'"),
    "no names at all": (["1.5", "2", "0.25", "-1e3"], "got 1.5, 2, 0.25, -1e3: .* its first line holds numbers"),
}


@pytest.mark.parametrize(("names", "message"), OTHER_NAMES.values(), ids=OTHER_NAMES)
def test_columns_of_other_names_are_refused(standardised, tmp_path: Path, names: list[str], message: str) -> None:
    scorer, table, _ = standardised
    other = table.iloc[:, : len(names)].set_axis(names, axis=1)
    other.to_csv(tmp_path / "t.csv", index=False)
    with pytest.raises(DataError, match=message):
        scorer(str(tmp_path / "t.csv"))
    with pytest.raises(DataError, match=message.partition(":")[0]):
        scorer(other, raw=True)


def test_a_known_column_without_numbers_is_refused(standardised, tmp_path: Path) -> None:
    scorer, table, _ = standardised
    table.assign(b="low").to_csv(tmp_path / "t.csv", index=False)
    with pytest.raises(DataError, match=r"column 'b' holds 'low' in row 0, wanted numbers"):
        scorer(str(tmp_path / "t.csv"))


def test_the_command_knows_columns_by_name(standardised, tmp_path: Path) -> None:
    scorer, table, wanted = standardised
    write_bundle(tmp_path / "b", scorer.bundle)
    WRITTEN["csv"](table[list("dcba")].assign(species="ant"), tmp_path / "t.csv")
    samples = [tmp_path / "b", tmp_path / "t.csv", "--model", scorer.bundle.model.source, "--trust-code"]
    options = {"score": ["--out", tmp_path / "s.csv"], "monitor": ["--out", tmp_path / "watch", "--window", 50]}
    found = {name: cli(name, *samples, *given) for name, given in options.items()}
    assert {name: each.exit_code for name, each in found.items()} == {"score": 0, "monitor": 0}
    assert pd.read_csv(tmp_path / "s.csv")["decision"].tolist() == wanted["decision"].tolist()
    rejected = json.loads((tmp_path / "watch" / "windows.jsonl").read_text().splitlines()[0])["rejected"]
    assert rejected == pytest.approx((wanted["decision"][:50] == "reject").mean())


def test_splits_know_columns_by_name(tmp_path: Path) -> None:
    config = make_config(tmp_path, "columns of a table")
    wanted = {name: each[5].inputs for name, each in open_datasets(config).items()}
    for name, order in {"fit": "abcd", "test": "dacb", "other": "cdba"}.items():
        table = pd.read_csv(tmp_path / f"{name}.csv")
        table[["label", *order]].to_csv(tmp_path / f"{name}.csv", index=False)
    found = {name: each[5].inputs for name, each in open_datasets(config).items()}
    alone = open_datasets(with_class_names(config), only=["in_dist.test"])
    torch.testing.assert_close(found, wanted, rtol=0, atol=0)
    torch.testing.assert_close(alone["in_dist.test"][5].inputs, wanted["in_dist.test"], rtol=0, atol=0)


def with_class_names(config: Config) -> Config:
    data = {**config.data.model_dump(exclude_unset=True), "class_names": ["ant", "bee", "cow"]}
    return Config.model_validate({**config.model_dump(exclude_unset=True), "data": data})


def test_columns_that_the_arguments_name_are_taken_in_their_order(tmp_path: Path) -> None:
    config = make_config(tmp_path, "columns of a table")
    table = pd.read_csv(tmp_path / "other.csv").rename(columns={"a": "A"})
    table.to_csv(tmp_path / "other.csv", index=False)
    with pytest.raises(DataError, match=r"other.csv: wanted columns a, b, c, d, got A, b, c, d, label: no column 'a'"):
        open_datasets(config)
    data = config.data.model_dump(exclude_unset=True)
    data["ood"][0]["arguments"] = {"inputs": ["d", "c", "b", "A"]}
    found = open_datasets(Config.model_validate({**config.model_dump(exclude_unset=True), "data": data}))
    wanted = torch.tensor(table[list("dcbA")].to_numpy()[3], dtype=torch.float32)
    torch.testing.assert_close(found["ood.other"][3].inputs, wanted, rtol=0, atol=0)


NOT_RAW = {
    "a data frame without the word": (lambda table: table, {}, "with raw=True"),
    "names": (lambda table: table.assign(a="x"), {"raw": True}, "wanted numbers in column 'a' of the table"),
    "a row": (lambda table: table.to_numpy()[0], {"raw": True}, "give .values. of one"),
    "a text": (lambda _: "a good film", {}, "no such file or folder; .* itself comes with raw=True"),
    "a generator": (lambda _: iter([1]), {"raw": True}, "got list_iterator"),
    "a column twice": (lambda table: pd.concat([table, table[["a"]]], axis=1), {"raw": True}, "'a' is there twice"),
    "numbers as text": (lambda table: table.astype({"a": str}), {"raw": True}, "column 'a' of the table, got"),
    "masked": (lambda table: np.ma.masked_less(table.to_numpy(), 0), {}, "some inputs are masked"),
    "masked, before": (
        lambda table: np.ma.masked_less(table.to_numpy(), 0), {"raw": True}, "some inputs in the array are masked"
    ),
    "masked rows": (
        lambda table: list(np.ma.masked_less(table.to_numpy(), 0)), {"raw": True}, "some inputs in sample 1 are masked"
    ),
    "inputs of two sizes": (
        lambda table: {"a": table.to_numpy(), "b": table.to_numpy()[1:]}, {"raw": True}, "as many samples in every"
    ),
    "texts": (lambda table: table.to_numpy().astype(str), {}, "samples: wanted .* numbers, got ndarray of <U32"),
    "three axes": (lambda table: torch.zeros(3, 2, 4), {}, r"samples: wanted shape \(N, 4\), got \(3, 2, 4\)"),
    "whole numbers": (lambda table: torch.zeros(3, 4).long(), {}, r"samples: wanted floats, .* got torch.int64$"),
    "lists of two lengths": (lambda table: [[[1.0], [1.0, 2.0]]], {"raw": True}, "raw: wanted .* sample 0 .* got list"),
    "sparse, before": (lambda table: torch.eye(4).to_sparse(), {"raw": True}, "raw: wanted dense .* give its to_dense"),
}  # fmt: skip


@pytest.mark.parametrize(("given", "options", "message"), NOT_RAW.values(), ids=NOT_RAW)
def test_raw_samples_that_cannot_be_used(standardised, given, options: dict[str, bool], message: str) -> None:
    scorer, table, _ = standardised
    with pytest.raises(DataError, match=message):
        scorer(given(table), **options)


WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "good", "bad", "film", "a", "of", "day"]


def save_bert(folder: Path) -> str:
    """A small model of text with its tokenizer, and names of its classes in an order of their own."""
    import_torchvision()
    transformers = importlib.import_module("transformers")
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    names = {0: "cow", 1: "ant", 2: "bee"}
    torch.manual_seed(0)
    places = {word: place for place, word in enumerate(WORDS)}
    settings = transformers.BertConfig(vocab_size=len(WORDS), max_position_embeddings=12, id2label=names, **sizes)
    transformers.BertForSequenceClassification(settings).save_pretrained(folder / "bert")
    transformers.BertTokenizer(vocab=places).save_pretrained(folder / "bert")
    return f"transformers:{folder}/bert"


def save_texts(folder: Path, name: str, seed: int) -> dict[str, Any]:
    random = np.random.default_rng(seed)
    texts = [" ".join(random.choice(WORDS[4:], random.integers(3, 9))) for _ in range(COUNT)]
    labels = np.array(["ant", "bee", "cow"])[labels_of(seed)]
    pd.DataFrame({"text": texts, "label": labels}).to_csv(folder / f"{name}.csv", index=False)
    return {"source": f"csv:{folder}/{name}.csv"}


@pytest.fixture(scope="module")
def of_texts(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, RunFolder, Scorer]:
    """The folder of a run of texts, the run, and a scorer of its bundle."""
    tmp_path = tmp_path_factory.mktemp("texts")
    made = [{"name": each, "source": f"synthetic:{each}"} for each in ("shuffled_tokens", "swapped_fields")]
    data = {
        "auxiliary": [],
        "in_dist": {"fit": save_texts(tmp_path, "fit", 1), "test": save_texts(tmp_path, "test", 2)},
        "ood": [{"name": "other", **save_texts(tmp_path, "other", 3)}, *({**each, "auxiliary": True} for each in made)],
    }
    model = {"source": save_bert(tmp_path), "num_classes": 3}
    config = make_config(tmp_path, "tokens and masks", data=data, model=model)
    extract(config)
    run = RunFolder(config.run)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        fit_run(run)
        evaluate_run(run)
    write_bundle(tmp_path / "b", make_bundle(run, alpha=0.5))
    return tmp_path, run, Scorer.load(tmp_path / "b")


def test_text_is_scored_with_the_tokenizer_and_the_names_of_its_model(of_texts) -> None:
    folder, run, scorer = of_texts
    assert run.manifest.class_names == ["cow", "ant", "bee"]
    labels = run.read("in_dist.test")["label"].tolist()
    assert labels == [[1, 2, 0][place] for place in labels_of(2)]
    samples = open_user_samples([str(folder / "test.csv")])[0]
    found = pd.concat(list(scorer.stream(samples, batch_size=16)))
    assert (found["error"] == "").all()
    texts = pd.read_csv(folder / "test.csv")["text"].tolist()
    assert scorer(texts, raw=True)["score_wrong"].tolist() == pytest.approx(found["score_wrong"].tolist(), rel=1e-3)
    assert scorer(texts[0], raw=True)["prediction"].tolist() == found["prediction"].tolist()[:1]
    assert found["prediction"].tolist() == run.read("in_dist.test")["prediction"].tolist()
    assert set(found["prediction_name"]) <= {"cow", "ant", "bee"}


FORMS_OF_TEXTS: dict[str, Callable[[pd.DataFrame], Any]] = {
    "a table": lambda table: table,
    "a column": lambda table: table["text"],
    "an array of objects": lambda table: table["text"].to_numpy(object),
    "an array of text": lambda table: table["text"].to_numpy(str),
    "a mapping": lambda table: {"text": table["text"].tolist()},
    "rows": lambda table: table.to_dict("records"),
    "rows of pandas": lambda table: [row for _, row in table.iterrows()],
    "named tuples": lambda table: [*table.itertuples()],
}


@pytest.mark.parametrize("form", FORMS_OF_TEXTS.values(), ids=FORMS_OF_TEXTS)
def test_texts_of_a_program_come_in_columns_and_rows_too(of_texts, form: Callable[[pd.DataFrame], Any]) -> None:
    folder, _, scorer = of_texts
    table = pd.read_csv(folder / "test.csv")[:5]
    pd.testing.assert_frame_equal(scorer(form(table), raw=True), scorer(table["text"].tolist(), raw=True))


def test_empty_texts_are_refused_wherever_they_come_from(of_texts, tmp_path: Path) -> None:
    _, _, scorer = of_texts
    (tmp_path / "t.csv").write_text('text\na good day\n""\n" "\n')
    pd.DataFrame({"text": ["a good day", "", " "]}).to_parquet(tmp_path / "t.parquet")
    frame = pd.DataFrame({"text": ["a good day", None, " "]})
    found = [
        *(scorer(str(tmp_path / f"t.{suffix}")) for suffix in ("csv", "parquet")),
        *(scorer(given, raw=True) for given in (["a good day", "", " "], frame)),
    ]
    assert [table["decision"].eq("error").tolist() for table in found] == [[False, True, True]] * 4
    assert all(table["error"].str.contains("a missing value in column 'text'")[1:].all() for table in found)


NO_TEXTS: dict[str, tuple[Any, dict[str, bool], str]] = {
    "no such column": (pd.DataFrame({"body": ["a"]}), {"raw": True}, "wanted the texts in column 'text' of the table"),
    "a column twice": (pd.DataFrame([["a", "b"]], columns=["text"] * 2), {"raw": True}, "'text' is there twice"),
    "a number": (["a", 5], {"raw": True}, "wanted texts, got int in sample 1"),
    "a column without raw": (pd.Series(["a"]), {}, "got a column, .*with raw=True"),
    "a text too long for a path": ("word " * 300, {}, "File name too long; .*with raw=True"),
}


@pytest.mark.parametrize(("given", "options", "message"), NO_TEXTS.values(), ids=NO_TEXTS)
def test_texts_that_cannot_be_scored(of_texts, given: Any, options: dict[str, bool], message: str) -> None:
    with pytest.raises(DataError, match=message):
        of_texts[2](given, **options)


def test_texts_that_are_taken_for_paths_say_how_texts_come(of_texts) -> None:
    found = of_texts[2](["a good day", "word " * 300])
    assert found["decision"].tolist() == ["error", "error"]
    assert found["error"].str.endswith("a text or other sample itself comes with raw=True").all()


NO_TABLES_OF_TEXTS = {
    "lines": (
        "new.txt",
        "a good day\n",
        "new.txt: this bundle takes texts; give them in a .csv, .*a column 'text', or an",
    ),
    "JSON": ("new.jsonl", '{"text": "a"}\n', "new.jsonl: this bundle takes texts; give them in a .csv"),
    "another column": (
        "new.csv",
        "body,when\na good day,1\n",
        "no column 'text'; .*gradscore score takes another one by --column",
    ),
    "a sentence": ("", "", "a good day: no such file or folder; .*texts come in a table"),
}


@pytest.mark.parametrize(("name", "content", "message"), NO_TABLES_OF_TEXTS.values(), ids=NO_TABLES_OF_TEXTS)
def test_score_says_how_texts_are_given(of_texts, tmp_path: Path, name: str, content: str, message: str) -> None:
    given = "a good day"
    if name:
        (tmp_path / name).write_text(content)
        given = str(tmp_path / name)
    result = cli("score", of_texts[0] / "b", given)
    assert result.exit_code == 2
    assert re.search(message, " ".join(result.stderr.split()))


def test_the_only_column_of_a_table_has_the_texts_where_its_name_is_not_known() -> None:
    assert as_texts(pd.DataFrame({"any": ["a", None]}), None) == ["a", ""]
    with pytest.raises(DataError, match=r"not known in which column of the table \(any, other\)"):
        as_texts(pd.DataFrame({"any": ["a"], "other": ["b"]}), None)


REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "resize of vectors": (
        "columns of a table",
        {"preprocessing": {"resize": 8}},
        r"preprocessing\.resize is for images",
    ),
    "as many means as columns": (
        "columns of a table",
        {"preprocessing": {"mean": [0.0, 1.0], "std": [1.0, 1.0]}},
        r"preprocessing\.mean has 2 values, .*one for each column",
    ),
    "augmentations of tokens": (
        "tokens and masks",
        {"features": {"augmentations": ["mirror"]}},
        "augmentations: they look at one tensor, and these inputs are input_ids",
    ),
    "blur of vectors": (
        "columns of a table",
        {"data": {"ood": [{"name": "made", "source": "synthetic:blur"}]}},
        "synthetic:blur is for images, .*permuted_columns",
    ),
    "shuffled tokens of vectors": (
        "columns of a table",
        {"data": {"ood": [{"name": "made", "source": "synthetic:shuffled_tokens"}]}},
        "synthetic:shuffled_tokens is for text and for tokens",
    ),
    "corrupted vectors": (
        "columns of a table",
        {"data": {"shifted": [{"name": "noisy", "source": "corrupted:noise"}]}},
        "corrupted:noise is for images",
    ),
}


@pytest.mark.parametrize(("kind", "changes", "message"), REFUSED.values(), ids=REFUSED)
def test_settings_for_images_are_refused_for_others(tmp_path: Path, kind: str, changes: dict, message: str) -> None:
    whole = make_config(tmp_path, kind).data.model_dump()
    changed = changes | {"data": whole | changes.get("data", {})}
    with pytest.raises((DataError, ModelError), match=message):
        extract(make_config(tmp_path, kind, **changed), trust_code=True)
    assert not (tmp_path / "run").exists()


def test_columns_are_standardised_by_mean_and_std(tmp_path: Path) -> None:
    mean, std = [1.0, 2.0, 3.0, 4.0], [1.0, 2.0, 4.0, 8.0]
    config = make_config(tmp_path, "columns of a table", preprocessing={"mean": mean, "std": std})
    sample = open_datasets(config)["in_dist.test"][3]
    raw = pd.read_csv(tmp_path / "test.csv")[list("abcd")].to_numpy()[3]
    np.testing.assert_allclose(sample.inputs, (raw - mean) / std, rtol=1e-6)


def test_samples_of_several_lengths_are_refused(tmp_path: Path) -> None:
    tokens = [list(range(length)) for length in (3, 4, 5, 3)]
    frame = pd.DataFrame({"input_ids": tokens, "attention_mask": tokens, "label": [0, 1, 2, 0]})
    frame.to_parquet(tmp_path / "t.parquet")
    source = {"source": f"parquet:{tmp_path}/t.parquet"}
    data = {"auxiliary": [], "in_dist": {"fit": source, "test": source}}
    with pytest.raises(DataError, match=r"has shape .*input_ids \(4,\).*pad or cut them"):
        extract(make_config(tmp_path, "tokens and masks", data=data), trust_code=True)


def test_sets_that_would_be_copies_of_samples_are_not_made(tmp_path: Path) -> None:
    """Permuted columns of which one is 1 are those of another sample."""
    places = np.arange(80) % 4
    table = pd.DataFrame(np.eye(4)[places], columns=list("abcd")).assign(label=places % 3)
    table.to_csv(tmp_path / "t.csv", index=False)
    source = {"source": f"csv:{tmp_path}/t.csv"}
    data = {"in_dist": {"fit": source, "test": source}}
    plan = RunPlan.of(make_config(tmp_path, "columns of a table", data=data), trust_code=True)
    assert "ood.permuted_columns" not in plan.datasets
    assert "ood.feature_mixture" in plan.datasets
    (said,) = [each for each in plan.notices if each.startswith("auxiliary sets that are not made, as most would be")]
    assert "permuted_columns (100%)" in said


def test_few_auxiliary_sets_are_said_with_what_helps(tmp_path: Path) -> None:
    """Without labels of two classes only permuted columns are made of vectors; with them there are six kinds."""
    config = make_config(tmp_path, "columns of a table")
    source = {"source": config.data.in_dist.fit.source}
    lone = {"in_dist": {"fit": {**source, "select": {"classes": [0]}}, "test": source}}
    for data, wanted in ((lone, 1), ({"in_dist": {"fit": source, "test": source}}, 0)):
        plan = RunPlan.of(make_config(tmp_path, "columns of a table", data=data), trust_code=True)
        said = [each for each in plan.notices if "permuted_columns alone" in each]
        assert len(said) == wanted
        assert all("data.ood" in each and "fit(ood=...)" in each for each in said)


def test_auxiliary_sets_of_ones_own_count_with_those_that_are_made() -> None:
    image = np.zeros((8, 8, 1), np.uint8)
    in_dist = {"fit": {"source": "sklearn:digits"}, "test": {"source": "sklearn:digits"}}
    for own in (AUTO_OF_IMAGES[:-1], AUTO_OF_IMAGES[:-2], ()):
        ood = [{"name": kind, "source": f"synthetic:{kind}", "auxiliary": True} for kind in own]
        data = DataConfig.model_validate({"in_dist": in_dist, "ood": ood, "auxiliary": "auto"})
        found, said = with_auxiliary(data, image, base=None, samples=9, seed=0, has_classes=True)
        assert {each.name for each in found.ood} == {*AUTO_OF_IMAGES}
        assert said == []


NO_PIXELS = {
    "columns of a table": [],
    "tokens and masks": [],
    "float images": [
        "near-duplicates were not looked for: the images of in_dist.fit are no pixels (uint8) of 1 or 3 channels"
    ],
}


@pytest.mark.parametrize(("kind", "wanted"), NO_PIXELS.items(), ids=NO_PIXELS)
def test_near_duplicates_are_of_images(tmp_path: Path, kind: str, wanted: list[str]) -> None:
    """What can be no image needs no word of them."""
    config = make_config(tmp_path, kind)
    extract(config, trust_code=True)
    found = search(RunFolder(config.run))
    assert found.pairs == []
    assert found.notices == wanted


def test_code_that_changed_since_the_run_is_not_run_again(tmp_path: Path) -> None:
    config = make_config(tmp_path, "a function")
    extract(config, trust_code=True)
    with trusting_code(origin=RunFolder(config.run).code):
        assert len(open_datasets(config)) == 4
        (tmp_path / "data.py").write_text("raise SystemExit(0)\n" + DATA)
        with pytest.raises(ModelError, match="nothing of it was run"):
            open_datasets(config)


def test_text_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    pd.DataFrame({"text": ["a b", "c d"], "label": [0, 1]}).to_csv(tmp_path / "t.csv", index=False)
    source = {"source": f"csv:{tmp_path}/t.csv"}
    data = {"auxiliary": [], "in_dist": {"fit": source, "test": source}}
    with pytest.raises(DataError, match="the samples are text, and this model has no tokenizer"):
        extract(make_config(tmp_path, "tokens and masks", data=data), trust_code=True)


def test_names_of_classes_beside_numbers_are_not_taken_for_the_samples(tmp_path: Path) -> None:
    config = make_config(tmp_path, "columns of a table")
    for name in ("fit", "test", "other"):
        table = pd.read_csv(tmp_path / f"{name}.csv").rename(columns={"label": "species"})
        table.to_csv(tmp_path / f"{name}.csv", index=False)
    advice = r"fit.csv: text in column 'species' \('bee' in row 0\) beside numbers in a, b, c, d.*: \{labels: species\}"
    with pytest.raises(DataError, match=advice):
        open_datasets(config)
    data = config.data.model_dump(exclude_unset=True)
    for spec in data["in_dist"].values():
        spec["arguments"] = {"labels": "species"}
    found = open_datasets(Config.model_validate({**config.model_dump(exclude_unset=True), "data": data}))
    assert [found[name].input_columns for name in ("in_dist.fit", "in_dist.test", "ood.other")] == [list("abcd")] * 3


def test_parameters_that_code_freezes_have_the_features_of_others(tmp_path: Path) -> None:
    runs = {}
    for name in ("vectors", "frozen"):
        config = make_config(tmp_path, "columns of a table", run=tmp_path / name)
        model = config.model.model_copy(update={"source": f"python:{tmp_path}/net.py:{name}"})
        extract(config.model_copy(update={"model": model}), trust_code=True)
        runs[name] = RunFolder(tmp_path / name).read("in_dist.test")
    pd.testing.assert_frame_equal(runs["frozen"], runs["vectors"])
    layer = [name for name in runs["frozen"] if "0.weight" in name]
    assert layer
    assert (runs["frozen"][layer] != 0).any().all()
