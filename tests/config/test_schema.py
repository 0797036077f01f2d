import math
from itertools import pairwise
from pathlib import Path

import pytest
import yaml

from gradscore.config import dump_config, load_config, parse_config
from gradscore.data.dataset import label_of
from gradscore.errors import ConfigError

MINIMAL = """
model:
  source: "python:models/net.py:small"
  checkpoint: weights.safetensors
  num_classes: 3
data:
  in_dist:
    fit: {source: "sklearn:digits"}
    test: {source: "sklearn:digits", select: {start: 5}}
  ood:
    - {name: novel, source: "folder:novel", group: near}
run: ../run
"""


@pytest.fixture
def config_file(tmp_path: Path) -> Path:
    file = tmp_path / "configs" / "small.yaml"
    file.parent.mkdir()
    file.write_text(MINIMAL)
    return file


PATHS = {
    "run": (lambda config: config.run, "run"),
    "checkpoint": (lambda config: config.model.checkpoint, "configs/weights.safetensors"),
    "python source": (lambda config: config.model.source, "python:{}/configs/models/net.py:small"),
    "folder source": (lambda config: config.data.ood[0].source, "folder:{}/configs/novel"),
    "root of torchvision data": (lambda config: config.data.in_dist.fit.arguments["root"], "{}/shared"),
}


@pytest.mark.parametrize(("read", "wanted"), PATHS.values(), ids=PATHS)
def test_paths_are_relative_to_the_file(config_file: Path, tmp_path: Path, read, wanted: str) -> None:
    config = load_config(config_file, ["data.in_dist.fit.arguments.root=../shared"])
    assert str(read(config)) in (wanted.format(tmp_path), str(tmp_path / wanted))


def test_defaults_are_filled_in_and_shown(config_file: Path) -> None:
    shown = yaml.safe_load(dump_config(load_config(config_file)))
    defaults = {"batch_size": 64, "workers": 0, "device": "auto", "on_error": "fail", "part_size": 1024, "seed": 0}
    assert shown["extract"] == defaults
    assert shown["features"]["statistics"] == ["max", "min", "mean", "std", "l1", "l2"]
    assert shown["data"]["ood"][0]["select"]["count"] is None
    assert shown["model"]["arguments"] == {}


def test_what_is_shown_reads_back_as_the_same_config(config_file: Path) -> None:
    config = load_config(config_file)
    assert parse_config(dump_config(config), where="copy") == config


BANK = 'data.in_dist.bank={source: "sklearn:digits"}'
AUXILIARY = {
    "unknown": ("data.auxiliary=[fog]", "no synthetic set 'fog'"),
    "one name": ("data.auxiliary=mixup", "wanted 'auto' or a list of kinds, got 'mixup'"),
    "sets of one's own": ("data.auxiliary=[{name: other, source: npz:a.npz}]", r"wanted 'auto' or a list of kinds "
                          r"\(.*mixup.*\); a set of your own is one of data\.ood with auxiliary: true$"),
    "twice": ("data.auxiliary=[mixup, mixup]", "mixup"),
    "the name of a given set": ("data={in_dist: {fit: {source: a}, test: null}, auxiliary: [mixup], ood: "
                                "[{name: mixup, source: a, auxiliary: true}]}", "mixup"),
}  # fmt: skip


@pytest.mark.parametrize(("override", "message"), AUXILIARY.values(), ids=AUXILIARY)
def test_auxiliary_sets_that_cannot_be_made_are_refused(config_file: Path, override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config(config_file, [override])


def test_a_bank_needs_penultimate_features(config_file: Path) -> None:
    with pytest.raises(ConfigError, match=r"features\.penultimate is false, .* data\.in_dist\.bank .*: remove"):
        load_config(config_file, [BANK, "features.penultimate=false"])


def test_code_of_augmentations_is_relative_to_the_file(config_file: Path, tmp_path: Path) -> None:
    config = load_config(config_file, ["features.augmentations=['python:augmentations.py:halved', 'shift:1,0']"])
    assert config.features.augmentations == [f"python:{tmp_path}/configs/augmentations.py:halved", "shift:1,0"]


OVERRIDES = {
    "number": ("extract.batch_size=7", lambda config: config.extract.batch_size, 7),
    "list": ("features.losses=[entropy]", lambda config: config.features.losses, ["entropy"]),
    "list entry": ("data.ood.0.group=far", lambda config: config.data.ood[0].group, "far"),
    "null": ("model.checkpoint=null", lambda config: config.model.checkpoint, None),
    "value with an equals sign": ("model.arguments.x=a=b", lambda config: config.model.arguments["x"], "a=b"),
    "section that is not in the file": ("meta.seed=3", lambda config: config.meta.seed, 3),
    "an array called y": (
        "data.ood.0.arguments={inputs: x, labels: y}",
        lambda config: config.data.ood[0].arguments,
        {"inputs": "x", "labels": "y"},
    ),
}


@pytest.mark.parametrize(("override", "read", "wanted"), OVERRIDES.values(), ids=OVERRIDES)
def test_override(config_file: Path, override: str, read, wanted: object) -> None:
    assert read(load_config(config_file, [override])) == wanted


NAMES = {"yes": "yes", "no": "no", "010": "010", "12:30": "12:30", "2024-01-31": "2024-01-31", "1_000": "1_000"}
NAMES |= {"7": 7, "-1": -1, '"true"': "true", '"1e-3"': "1e-3", "1e3x": "1e3x", "null and": "null and"}


@pytest.mark.parametrize(("written", "wanted"), NAMES.items(), ids=NAMES)
def test_what_may_be_the_name_of_a_class_stays_one(config_file: Path, written: str, wanted: object) -> None:
    overrides = [f"data.ood.0.select.classes=[{written}]", f"data.in_dist.fit.label_map={{{written}: {written}}}"]
    config = load_config(config_file, overrides)
    for each in (config, parse_config(dump_config(config), where="copy")):
        assert each.data.ood[0].select.classes == [wanted]
        ((key, value),) = each.data.in_dist.fit.label_map.items()
        assert (label_of(key, None), value) == (label_of(wanted, None), wanted)
        assert isinstance(wanted, int) or key == wanted


def test_numbers_and_truth_values_are_read_as_in_yaml_1_2(config_file: Path) -> None:
    text = "{a: 1e-3, b: 0x10, c: .5, d: -2.5E+3, e: 'on', f: True, g: ~, h: .inf, i: 0, j: 08, k: 1.0}"
    config = load_config(config_file, [f"data.ood.0.arguments={text}", "data.ood.0.auxiliary=no"])
    wanted = {"a": 0.001, "b": 16, "c": 0.5, "d": -2500.0, "e": "on", "f": True, "g": None, "h": math.inf, "i": 0}
    assert config.data.ood[0].arguments == {**wanted, "j": "08", "k": 1.0}
    assert config.data.ood[0].auxiliary is False


ENVIRONMENT = {
    "set": ("folder:/${GRADSCORE_TEST}", "folder:/set"),
    "set, default unused": ("folder:/${GRADSCORE_TEST:-other}", "folder:/set"),
    "unset, default": ("folder:/${GRADSCORE_TEST_UNSET:-other}", "folder:/other"),
    "unset, empty default": ("sklearn:digits${GRADSCORE_TEST_UNSET:-}", "sklearn:digits"),
    "no variable": ("sklearn:$digits", "sklearn:$digits"),
}


@pytest.mark.parametrize(("source", "wanted"), ENVIRONMENT.values(), ids=ENVIRONMENT)
def test_environment(monkeypatch: pytest.MonkeyPatch, config_file: Path, source: str, wanted: str) -> None:
    monkeypatch.setenv("GRADSCORE_TEST", "set")
    monkeypatch.delenv("GRADSCORE_TEST_UNSET", raising=False)
    assert load_config(config_file, [f"data.in_dist.fit.source={source}"]).data.in_dist.fit.source == wanted


REFUSED = {
    "unknown key in a list": ("data.ood.0.nam=x", r"data\.ood\.0\.nam: unknown key; did you mean 'name'\?"),
    "unknown key like nothing": ("evaluate.zzz=1", r"evaluate\.zzz: unknown key; valid: protocols, near_duplicates"),
    "wrong type": ("model.num_classes=eight", r"model\.num_classes: wanted a whole number, got 'eight'"),
    "one logit beside a number of classes": ("model.one_logit=true", r"model\.one_logit: unknown key; valid: source, "),
    "a truth value for a number": ("model.num_classes=true", r"model\.num_classes: wanted no truth value, got true"),
    "unknown choice": ("extract.on_error=stop", r"extract\.on_error: wanted 'fail' or 'skip', got 'stop'"),
    "section is a value": ("data=3", r"data: wanted a section of settings, got 3"),
    "size": ("preprocessing.resize=[0, 3]", r"preprocessing\.resize: wanted a number of pixels from 1"),
    "a size beyond memory": ("preprocessing.crop=100000", r"preprocessing\.crop: .* from 1 to 16384, .* got 100000"),
    "a class beyond int64": (
        "data.in_dist.fit.label_map={a: 10000000000000000000}",
        r"label_map: 10000000000000000000 is too large for a class",
    ),
    "a class that is a truth value": (
        "data.ood.0.select.classes=[true]",
        r"data\.ood\.0\.select\.classes: wanted no truth value, got true; write quotes around a name",
    ),
    "a class that is a fraction": ("data.in_dist.fit.label_map={1.0: 0}", r"label_map.*number or a name, got 1\.0"),
    "a number that is a truth value": ("extract.seed=true", r"extract\.seed: wanted no truth value, got true"),
    "an argument that may be a truth value": (
        "data.in_dist.fit.arguments={of: [{train: no}]}",
        r"arguments: no may be a truth value or text; write true or false, or quotes around text",
    ),
    "a setting that may be a truth value": ("features.penultimate=off", r"penultimate: off may be a truth value or"),
    "a size that is a truth value": ("preprocessing.resize=[true, 8]", r"resize: wanted no truth value, got true"),
    "no workers": ("extract.workers=no", r"extract\.workers: wanted a whole number, got 'no'"),
    "mean without std": ("preprocessing.mean=[0.5]", r"mean and std belong together"),
    "lengths of mean and std": ("preprocessing={mean: [0, 0], std: [1, 1, 1]}", r"mean has 2 values and std 3"),
    "no mean and no std": ("preprocessing={mean: [], std: []}", r"mean has 0 values and std 0: give one per channel"),
    "a seed that no generator takes": (
        "extract.seed=99999999999",
        r"extract\.seed: wanted .*4294967296, got 99999999999",
    ),
    "std of zero": (
        "preprocessing={mean: 0, std: 0}",
        r"preprocessing\.std\.0: wanted greater than or equal to 0\.000000000001, got 0",
    ),
    "mean that is no number": (
        "preprocessing={mean: .nan, std: 1}",
        r"mean\.0: wanted less than or equal to 1000000000000, got nan",
    ),
    "an infinite penalty": ("meta.Cs=[.inf]", r"meta\.Cs\.0: wanted less than or equal to 1000000000, got inf"),
    "a penalty that is no number": ("meta.Cs=[.nan]", r"meta\.Cs\.0: wanted less than or equal to 1000000000, got nan"),
    "a penalty of next to nothing": (
        "meta.Cs=[1.0e-320]",
        r"meta\.Cs\.0: wanted greater than or equal to 0\.000000001, got",
    ),
    "an infinite factor": (
        "meta.boosts=[3, .inf]",
        r"meta\.boosts\.1: wanted less than or equal to 1000000000, got inf",
    ),
    "a factor whose square overflows": ("meta.boosts=[1.0e+300]", r"meta\.boosts\.0: .* got 1e\+300"),
    "weights and resize": ("preprocessing={weights: A, resize: 3}", r"weights brings its own .*remove resize"),
    "empty interval of hashes": ("data.in_dist.fit.select.hash=[0.5, 0.5]", r"hash must be an interval"),
    "stop before start": ("data.in_dist.test.select.stop=5", r"stop \(5\) must be greater than start \(5\)"),
    "repeated statistic": ("features.statistics=[max, max]", r"features\.statistics: named more than once: max"),
    "unknown loss": ("features.losses=[uniform, nope]", r"small\.yaml: features\.losses\.1: no loss 'nope'; valid: "),
    "unknown statistic": ("features.statistics=[maxx]", r"features\.statistics\.0: .*maxx"),
    "unknown augmentation": ("features.augmentations=[flip]", r"features\.augmentations\.0: no augmentation 'flip'"),
    "name with a slash": ("data.ood.0.name=a/b", r"data\.ood\.0\.name: .*got 'a/b'"),
    "unset variable": ("run=${GRADSCORE_TEST_UNSET}", r"run: environment variable GRADSCORE_TEST_UNSET is not set"),
    "override without a value": ("extract.batch_size", r"wanted key\.path=value"),
    "override beyond a list": ("data.ood.4.name=x", r"wanted a position 0 to 0 in the list, got '4'"),
    "override inside a value": ("run.x=1", r"run is '../run', not a section"),
}


@pytest.mark.parametrize(("override", "message"), REFUSED.values(), ids=REFUSED)
def test_unusable_setting_is_named(
    monkeypatch: pytest.MonkeyPatch, config_file: Path, override: str, message: str
) -> None:
    monkeypatch.delenv("GRADSCORE_TEST_UNSET", raising=False)
    with pytest.raises(ConfigError, match=message):
        load_config(config_file, [override])


LINE = "\n"
BOMB = "a: &a [lol, lol, lol, lol, lol, lol, lol, lol, lol]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n" for before, name in pairwise("abcdefghi")
)
FILES = {
    "not YAML": ("model: [", "not valid YAML"),
    "a list": ("- model", "wanted a YAML mapping of settings .*got a list"),
    "empty": ("", "wanted a YAML mapping of settings .*got nothing"),
    "a merge key": (MINIMAL + "<<: {seed: 1}", "<<: unknown key"),
    "a tag that does not fit": ("run: !!bool maybe", "not valid YAML"),
    "key given twice": (MINIMAL + "run: other", rf"'run' is given twice.* line {MINIMAL.count(LINE) + 1}, column 1"),
    "aliases of aliases": (BOMB, r"its aliases stand for 4.9e\+08 values, wanted 1,000,000 at most"),
    "a group of that name": (
        MINIMAL.replace("group: near", "group: all"),
        "data.ood.0.group: .*'all' are the sets of all",
    ),
    "setting without a default": (
        MINIMAL.replace("  checkpoint: weights.safetensors\n", ""),
        "model.checkpoint: missing",
    ),
    "OOD sets of the same name": (
        MINIMAL.replace("run:", '    - {name: novel, source: "sklearn:digits"}\nrun:'),
        "data.ood: named more than once: novel",
    ),
    "nested too deeply": ("run: " + "[" * 5000, "nested too deeply"),
    "aliases in themselves": ("run: &a [*a]", "not valid YAML: found unconstructable recursive node"),
    "several mistakes at once": (
        "mdl: {}\n" + MINIMAL.replace("num_classes: 3", "num_classes: x"),
        "mdl: .*; model.num",
    ),
}


@pytest.mark.parametrize(("text", "message"), FILES.values(), ids=FILES)
def test_unusable_file(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=f"bad.yaml: .*{message}"):
        load_config(file)


UNREADABLE = {
    "nothing": (lambda path: None, "no such configuration file"),
    "folder": (lambda path: path.mkdir(), "wanted a configuration file, got a folder; give the path of a YAML file"),
    "binary": (lambda path: path.write_bytes(b"\xff\xfe\x00\x80"), "cannot be read"),
}


@pytest.mark.parametrize(("make", "message"), UNREADABLE.values(), ids=UNREADABLE)
def test_unreadable_file(tmp_path: Path, make, message: str) -> None:
    make(tmp_path / "bad.yaml")
    with pytest.raises(ConfigError, match=rf"bad\.yaml: {message}"):
        load_config(tmp_path / "bad.yaml")
