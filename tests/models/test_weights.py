"""Weights from files of every kind, and files that are something else."""

import argparse
import os
import pickle
import re
import warnings
import zipfile
from collections import deque
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from gradscore.errors import ModelError
from gradscore.models import is_of_weights, read_weights
from gradscore.models.weights import load_checkpoint


class Whole(nn.Linear):
    """A module that is saved with its code."""

    def __init__(self) -> None:
        super().__init__(3, 2)


def make_net(outputs: int = 4) -> nn.Module:
    return nn.Sequential(nn.Linear(3, outputs), nn.Dropout(), nn.BatchNorm1d(outputs))


def save_half(content: object, path: Path) -> None:
    torch.save(content, path)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def save_half_safetensors(content: dict, path: Path) -> None:
    save_file(content, path)
    path.write_bytes(path.read_bytes()[:-5])


def save_arrays(content: dict, path: Path) -> None:
    with path.open("wb") as file:
        np.savez(file, **{name: tensor.numpy() for name, tensor in content.items()})


def save_script(_content: dict, path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TorchScript is deprecated, and people have it
        torch.jit.script(nn.Linear(3, 2)).save(path)


def save_program(_content: dict, path: Path) -> None:
    torch.export.save(torch.export.export(nn.Linear(3, 2), (torch.zeros(1, 3),)), path.with_suffix(".pt2"))
    path.with_suffix(".pt2").rename(path)


def save_older_program(_content: dict, path: Path) -> None:
    """The parts that PyTorch 2.6 writes, which has no folder around them."""
    with zipfile.ZipFile(path, "w") as archive:
        for part in ("exported_program.json", "state_dict.pt", "constants.pt", "example_inputs.pt"):
            archive.writestr(f"serialized_{part}", b"")
        archive.writestr("version", b"8.2")


CHECKPOINTS = {
    "safetensors": ("model.safetensors", save_file, lambda state: state),
    "pt": ("model.pt", torch.save, lambda state: state),
    "safetensors under another name": ("model.pt", save_file, lambda state: state),
    "torch.save under another name": ("model.safetensors", torch.save, lambda state: state),
    "nested under state_dict": ("model.pt", torch.save, lambda state: {"epoch": 3, "state_dict": state}),
    "any prefix": ("model.pt", torch.save, lambda state: {f"net.inner.{name}": state[name] for name in state}),
    "nested and prefixed twice": (
        "model.ckpt",
        torch.save,
        lambda state: {"state_dict": {f"module._orig_mod.{name}": state[name] for name in state}},
    ),
}


@pytest.mark.parametrize(("name", "save", "wrap"), CHECKPOINTS.values(), ids=CHECKPOINTS)
def test_checkpoint_is_loaded(tmp_path: Path, name: str, save, wrap) -> None:
    state = make_net().state_dict()
    save(wrap(state), tmp_path / name)
    model = make_net()
    load_checkpoint(model, tmp_path / name)
    torch.testing.assert_close(dict(model.state_dict()), dict(state), rtol=0, atol=0)


STATE = {"weight": torch.zeros(2, 3), "bias": torch.zeros(2)}
MANY = {f"extra{number}": torch.zeros(1) for number in range(20)}
MISFITS = {
    "missing": ({"weight": STATE["weight"]}, "1 missing: bias"),
    "wrong shape": ({**STATE, "bias": torch.zeros(5)}, r"bias \(model \(2,\), file \(5,\)\)"),
    "a long list": ({**STATE, **MANY}, r"20 unexpected: extra0, .*, extra7 and 12 more\."),
    "not tensors": ({**STATE, "epoch": 3}, "1 entry that is not a tensor: epoch"),
    "several that are not tensors": ({**STATE, "epoch": 3, "best": 0.9}, "2 entries that are not tensors: epoch, best"),
    "an optimizer alone": (
        torch.optim.SGD([nn.Parameter(torch.ones(1))], momentum=0.9).state_dict(),
        "2 entries that are not tensors: state, param_groups",
    ),
    "numbers of an optimizer": (
        {"optimizer": {"state": {0: {"exp_avg": torch.ones(2, 3)}}}},
        "1 entry that is not a tensor: optimizer",
    ),
    "a network beside other things": (
        {"model": nn.Linear(3, 2), "epoch": 3},
        r"save its weights alone: torch\.save\(.*\['model'\]\.state_dict\(\)",
    ),
    "a list": ([1, 2], "holds list, wanted a state dict"),
    "nothing": ({}, "holds dict, wanted a state dict"),
}


@pytest.mark.parametrize(("state", "message"), MISFITS.values(), ids=MISFITS)
def test_checkpoint_that_does_not_fit(tmp_path: Path, state: object, message: str) -> None:
    torch.save(state, tmp_path / "model.pt")
    model = nn.Linear(3, 2)
    before = model.weight.detach().clone()
    with pytest.raises(ModelError, match=message):
        load_checkpoint(model, tmp_path / "model.pt")
    assert torch.equal(model.weight, before)


QUANTISED = {
    "by itself": (lambda weight: {**STATE, "weight": weight, "scale": torch.ones(1)}, "weight"),
    "packed by a layer": (  # as torch.ao.quantization.quantize_dynamic leaves it
        lambda weight: {"_packed_params.dtype": torch.qint8, "_packed_params._packed_params": (weight, None)},
        "_packed_params._packed_params",
    ),
}


@pytest.mark.parametrize(("state_with", "name"), QUANTISED.values(), ids=QUANTISED)
@pytest.mark.filterwarnings("ignore:.*quantize")  # making them is deprecated, and people have them
def test_quantised_weights_are_said_to_have_no_gradients(tmp_path: Path, state_with, name: str) -> None:
    weight = torch.quantize_per_tensor(STATE["weight"], 0.1, 0, torch.qint8)
    torch.save(state_with(weight), tmp_path / "model.pt")
    message = f"holds quantised weights, which have no gradients: {name}; wanted those of the network before it was"
    with pytest.raises(ModelError, match=message):
        load_checkpoint(nn.Linear(3, 2), tmp_path / "model.pt")


POINTER = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 12345\n"

UNREADABLE = {
    "truncated pt": ("model.pt", save_half, "cannot be read"),
    "truncated safetensors": ("model.safetensors", save_half_safetensors, "is it damaged"),
    "empty pt": ("model.pt", lambda _, path: path.write_bytes(b""), "is it damaged, or a download that failed"),
    "text": ("model.pt", lambda _, path: path.write_text("hello"), "no file of weights, by its first bytes"),
    "a zip archive": ("model.pt", save_arrays, "a zip archive of something else than weights"),
    "a pointer": ("model.pt", lambda _, path: path.write_text(POINTER), "pointer of Git LFS.*git lfs pull"),
    "a program of PyTorch 2.6": ("model.pt", save_older_program, r"a program of torch\.export"),
    "a program": ("model.pt", save_program, r"a program of torch\.export"),
    "a pickle": ("model.pt", lambda state, path: path.write_bytes(pickle.dumps(state)), "a pickle that torch.save did"),
    "missing": ("model.pt", lambda _, path: None, "does not exist"),
}


@pytest.mark.parametrize(("name", "save", "message"), UNREADABLE.values(), ids=UNREADABLE)
def test_unreadable_checkpoint(tmp_path: Path, name: str, save, message: str) -> None:
    save(STATE, tmp_path / name)
    with pytest.raises(ModelError, match=message):
        load_checkpoint(nn.Linear(3, 2), tmp_path / name)


class Payload:
    """Unpickling this makes a folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


LEGACY = {"zip format": True, "legacy format": False}


@pytest.mark.parametrize("zipped", LEGACY.values(), ids=LEGACY)
def test_code_in_a_checkpoint_does_not_run(tmp_path: Path, zipped: bool) -> None:
    path = tmp_path / "model.pt"
    torch.save({**STATE, "extra": Payload(tmp_path / "ran")}, path, _use_new_zipfile_serialization=zipped)
    with pytest.raises(ModelError, match=r"holds objects of \S*mkdir and is refused"):
        load_checkpoint(nn.Linear(3, 2), path)
    assert not (tmp_path / "ran").exists()
    torch.load(path, weights_only=False)
    assert (tmp_path / "ran").exists()  # the payload is a real one


def test_a_torchscript_archive_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch.load hands such an archive to torch.jit.load, whatever weights_only says."""
    save_script(STATE, tmp_path / "model.pt")
    monkeypatch.setattr(torch.jit, "load", lambda *_: pytest.fail("it was loaded"))
    with pytest.raises(ModelError, match="TorchScript"):
        load_checkpoint(nn.Linear(3, 2), tmp_path / "model.pt")


def test_the_prefix_that_was_taken_off_is_said(tmp_path: Path) -> None:
    state = make_net().state_dict()
    torch.save({f"model.{name}": value for name, value in state.items()}, tmp_path / "model.pt")
    (notice,) = load_checkpoint(make_net(), tmp_path / "model.pt")
    assert "begin with 'model.', which was taken off" in notice
    torch.save(state, tmp_path / "plain.pt")
    assert load_checkpoint(make_net(), tmp_path / "plain.pt") == []


class Settings(argparse.Namespace):
    """An object that is unpickled with a state."""


BESIDE = {
    "objects": {"state_dict": None, "arguments": Settings(rate=0.1), "path": Path("runs")},
    "numbers of NumPy": {"model": None, "best": np.float64(0.9), "history": [np.float32(0.5)]},
    "an optimizer": {"weights": None, "optimizer": torch.optim.SGD(make_net().parameters(), momentum=0.9).state_dict()},
    "two keys": {"checkpoint": {"epoch": 1}, "model": {"state_dict": None}},
    "keys of the script's own": {"network": {"params": None, "step": 3}, "optimizer": {"state": {}}},
    "a list": [None, {"lr": 0.1}],
    "a list of dictionaries": [{"weights": None}, 3],
    "an optimizer beside keys of the script's own": {
        "network": {"params": None},
        "optimizer": torch.optim.SGD([nn.Parameter(torch.ones(1))], momentum=0.9).state_dict(),
    },
}


def filled(content: object, state: dict) -> object:
    """The same with the state in place of None."""
    if isinstance(content, dict):
        return {name: filled(value, state) for name, value in content.items()}
    if isinstance(content, list):
        return [filled(value, state) for value in content]
    return state if content is None else content


@pytest.mark.parametrize("content", BESIDE.values(), ids=BESIDE)
def test_weights_are_taken_out_of_other_things(tmp_path: Path, content: dict) -> None:
    state = make_net().state_dict()
    torch.save(filled(content, state), tmp_path / "last.ckpt")
    model = make_net()
    load_checkpoint(model, tmp_path / "last.ckpt")
    torch.testing.assert_close(dict(model.state_dict()), dict(state), rtol=0, atol=0)


def test_nothing_of_the_objects_beside_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.save({"state_dict": make_net().state_dict(), "arguments": Settings(rate=0.1)}, tmp_path / "last.ckpt")
    monkeypatch.setattr(Settings, "__setattr__", lambda *_: pytest.fail("it was made"))
    load_checkpoint(make_net(), tmp_path / "last.ckpt")


WHOLE = {
    "a module": lambda _, path: torch.save(Whole(), path),
    "a module in the old format": lambda _, path: torch.save(Whole(), path, _use_new_zipfile_serialization=False),
    "TorchScript": save_script,
    "objects beside them in the old format": lambda state, path: torch.save(
        {"state_dict": state, "arguments": Settings()}, path, _use_new_zipfile_serialization=False
    ),
    "weights beside other things": lambda state, path: torch.save({"state_dict": state, "h": deque([1])}, path),
}


@pytest.mark.parametrize("save", WHOLE.values(), ids=WHOLE)
def test_a_line_that_is_advised_saves_the_weights(tmp_path: Path, save) -> None:
    save(STATE, tmp_path / "weights.pt")
    before = (tmp_path / "weights.pt").read_bytes()
    with pytest.raises(ModelError) as caught:
        load_checkpoint(nn.Linear(3, 2), tmp_path / "weights.pt")
    run_line(str(caught.value))
    assert (tmp_path / "weights.pt").read_bytes() == before
    model = nn.Linear(3, 2)
    load_checkpoint(model, tmp_path / "weights_weights.pt")
    assert model.weight.shape == (2, 3)


def linear(value: float, start: str = "") -> dict[str, torch.Tensor]:
    return {f"{start}weight": torch.full((2, 3), float(value)), f"{start}bias": torch.zeros(2)}


def arrays(state: dict) -> dict:
    return {name: tensor.numpy() for name, tensor in state.items()}


OF_NUMPY = {
    "alone": arrays,
    "under a usual name": lambda state: {"epoch": 3, "state_dict": arrays(state)},
    "under another name": lambda state: {"weights": arrays(state), "epoch": np.float64(3)},
    "in a list": lambda state: [arrays(state), {"lr": 0.1}],
    "with a number": lambda state: {**arrays(state), "steps": 3},
}


@pytest.mark.parametrize("wrap", OF_NUMPY.values(), ids=OF_NUMPY)
def test_the_line_for_arrays_of_numpy_makes_tensors_of_them(tmp_path: Path, wrap) -> None:
    torch.save(wrap(linear(3)), tmp_path / "model.pt")
    with pytest.raises(ModelError, match="holds arrays of NumPy") as caught:
        load_checkpoint(nn.Linear(3, 2), tmp_path / "model.pt")
    run_line(str(caught.value))
    made = torch.load(tmp_path / "model_weights.pt")
    assert torch.equal(made["weight"], torch.full((2, 3), 3.0))
    assert torch.equal(made["bias"], torch.zeros(2))


SEVERAL = {
    "beside each other": ({"student": STATE, "teacher": STATE}, "'student', 'teacher'", STATE),
    "each below a key of its own": (
        {"student": {"params": STATE}, "teacher": {"params": STATE}},
        "'student'/'params', 'teacher'/'params'",
        STATE,
    ),
    "in a list": ([STATE, linear(2)], "0, 1", STATE),
    "beside an object": ({"student": STATE, "teacher": STATE, "arguments": Settings()}, "'student', 'teacher'", STATE),
}


@pytest.mark.parametrize(("content", "named", "first"), SEVERAL.values(), ids=SEVERAL)
def test_several_state_dicts_are_asked_about(tmp_path: Path, content: object, named: str, first: dict) -> None:
    torch.save(content, tmp_path / "model.pt")
    with pytest.raises(ModelError, match=f"several state dicts: {named}; save the one that is meant") as caught:
        load_checkpoint(nn.Linear(3, 2), tmp_path / "model.pt")
    run_line(str(caught.value))
    torch.testing.assert_close(torch.load(tmp_path / "model_weights.pt"), first, rtol=0, atol=0)


NOT_DENSE = {"sparse": Tensor.to_sparse, "meta": lambda value: value.to("meta")}


@pytest.mark.parametrize("made", NOT_DENSE.values(), ids=NOT_DENSE)
def test_tensors_without_dense_values_are_no_weights(tmp_path: Path, made: Callable[[Tensor], Tensor]) -> None:
    torch.save({**STATE, "weight": made(STATE["weight"])}, tmp_path / "model.pt")
    with pytest.raises(ModelError, match=r"sparse, or on device meta without values: weight; save dense ones"):
        load_checkpoint(nn.Linear(3, 2), tmp_path / "model.pt")


@pytest.mark.parametrize("dtype", [torch.int8, torch.bool, torch.int64])
def test_whole_numbers_are_no_weights_of_a_model_of_floats(tmp_path: Path, dtype: torch.dtype) -> None:
    torch.save({name: value.to(dtype) for name, value in STATE.items()}, tmp_path / "model.pt")
    model = nn.Linear(3, 2)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(ModelError, match=rf"2 that are no floats, where the model has floats: weight \({dtype}\)"):
        load_checkpoint(model, tmp_path / "model.pt")
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)


BOTH = {
    "an average": ({"model": linear(1), "model_ema": linear(2), "optimizer": {"lr": 0.1}}, "model", "model_ema"),
    "that of a parallel model": ({"ema": linear(2, "module."), "state_dict": linear(1)}, "state_dict", "ema"),
    "both below another key": ({"checkpoint": 3, "model": {"net": linear(1), "best": linear(2)}}, "net", "best"),
}


@pytest.mark.parametrize(("content", "taken", "left"), BOTH.values(), ids=BOTH)
def test_the_state_dict_that_was_taken_of_several_is_said(tmp_path: Path, content, taken: str, left: str) -> None:
    torch.save(content, tmp_path / "model.pt")
    (notice,) = notices_of(tmp_path / "model.pt")
    assert f"holds several state dicts: {taken!r} was taken, {left!r} was not" in notice
    assert is_of_weights(notice)
    assert read_weights(tmp_path / "model.pt").tensors["weight"].unique().tolist() == [1]


NORMED = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2), nn.Linear(2, 2))
AVERAGED = [torch.full_like(each, 3.0) for each in NORMED.parameters()]
LISTS = {
    "as of torch_ema": {"ema": {"decay": 0.99, "shadow_params": AVERAGED, "collected_params": []}},
    "by itself": {"averages": tuple(AVERAGED)},
    "beside an object": {"ema": {"shadow_params": AVERAGED}, "arguments": Settings()},
}


@pytest.mark.parametrize("beside", LISTS.values(), ids=LISTS)
def test_averages_without_names_are_said_and_the_line_for_them_copies_them(tmp_path: Path, beside: dict) -> None:
    torch.save({"model": NORMED.state_dict(), "rng": [torch.zeros(8, dtype=torch.uint8)], **beside}, tmp_path / "m.pt")
    model = deepcopy(NORMED)
    (notice,) = load_checkpoint(model, tmp_path / "m.pt")
    assert "holds weights without names in [" in notice
    assert is_of_weights(notice)
    run_copying(notice, model)
    found = torch.load(tmp_path / "m_weights.pt")
    assert all(bool((found[name] == 3).all()) for name, _ in NORMED.named_parameters())
    torch.testing.assert_close(found["1.running_var"], NORMED.state_dict()["1.running_var"])


def test_lists_of_other_shapes_are_no_averages(tmp_path: Path) -> None:
    torch.save(
        {"model": NORMED.state_dict(), "losses": [torch.ones(())], "turned": AVERAGED[::-1], "some": AVERAGED[:1]},
        tmp_path / "m.pt",
    )
    assert load_checkpoint(deepcopy(NORMED), tmp_path / "m.pt") == []


ALONE = {
    "below a key": ({"optimizer": {"lr": 0.1}, "ema": {"decay": 0.9, "shadow_params": AVERAGED}}, "'ema'"),
    "outermost": ({"decay": 0.9, "shadow_params": AVERAGED}, "'shadow_params'"),
}


@pytest.mark.parametrize(("content", "key"), ALONE.values(), ids=ALONE)
def test_averages_without_names_alone_are_refused_with_a_line_that_names_them(tmp_path: Path, content, key) -> None:
    torch.save(content, tmp_path / "m.pt")
    with pytest.raises(ModelError, match=r"entries that are not tensors: .*may be weights without names") as caught:
        load_checkpoint(deepcopy(NORMED), tmp_path / "m.pt")
    assert f"[{key}]" in str(caught.value)
    run_copying(str(caught.value), deepcopy(NORMED))
    again = deepcopy(NORMED)
    assert load_checkpoint(again, tmp_path / "m_weights.pt") == []
    assert all(bool((each == 3).all()) for each in again.parameters())


def run_copying(message: str, model: nn.Module) -> None:
    """Runs the line that a message advises to copy weights into a model."""
    line = re.search(r"import torch; \[own\..+; torch\.save\(model\.state_dict\(\), '[^']+_weights\.pt'\)", message)
    assert line is not None, message
    exec(line[0], {"model": model})


@pytest.mark.parametrize("beside", [{}, {"arguments": Settings()}], ids=["nothing else", "an object"])
def test_the_line_for_another_state_dict_takes_it_out(tmp_path: Path, beside: dict) -> None:
    torch.save({"model": {"net": linear(1), "best": linear(2)}} | beside, tmp_path / "model.pt")
    (notice,) = notices_of(tmp_path / "model.pt")
    run_line(notice)
    assert torch.equal(torch.load(tmp_path / "model_weights.pt")["weight"], torch.full((2, 3), 2.0))


def test_the_line_for_another_state_dict_names_the_file_as_the_configuration_finds_it(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    torch.save({"model": linear(1), "ema": linear(2)}, path)
    (notice,) = notices_of(path, called=str(path))
    run_line(notice)
    assert torch.equal(torch.load(tmp_path / "model_weights.pt")["weight"], torch.full((2, 3), 2.0))


def run_line(message: str) -> None:
    """Runs the line that a message advises, wherever one is."""
    line = re.search(r"import torch; (found = torch\.load.+; )?torch\.save\(.+?, '[^']+_weights\.pt'\)", message)
    assert line is not None, message
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that of TorchScript says it is deprecated
        exec(line[0], {})


def notices_of(path: Path, **settings: str) -> list[str]:
    return load_checkpoint(nn.Linear(3, 2), path, **settings)


def test_tensors_of_other_things_are_no_second_state_dict(tmp_path: Path) -> None:
    other = {"mean": torch.zeros(3), "std": torch.ones(3)}
    torch.save({"model": nn.Linear(3, 2).state_dict(), "normalizer": other}, tmp_path / "model.pt")
    assert notices_of(tmp_path / "model.pt") == []


def test_names_without_the_prefix_are_said_to_be_left_out(tmp_path: Path) -> None:
    state = {f"net.{name}": value for name, value in nn.Linear(3, 2).state_dict().items()}
    torch.save({**state, "criterion.weight": torch.ones(2), "train_acc.tp": torch.ones(1)}, tmp_path / "model.pt")
    (notice,) = notices_of(tmp_path / "model.pt", prefix="net.")
    assert "all names" not in notice
    assert "the 2 names in checkpoint" in notice
    assert "2 others were left out: criterion.weight, train_acc.tp" in notice


def test_one_name_without_the_prefix_is_one(tmp_path: Path) -> None:
    state = {f"net.{name}": value for name, value in nn.Linear(3, 2).state_dict().items()}
    torch.save({**state, "criterion.weight": torch.ones(2)}, tmp_path / "model.pt")
    assert "1 other was left out: criterion.weight" in notices_of(tmp_path / "model.pt", prefix="net.")[0]


def test_damaged_content_is_called_damaged(tmp_path: Path) -> None:
    torch.save(STATE, tmp_path / "model.pt", _use_new_zipfile_serialization=False)
    content = bytearray((tmp_path / "model.pt").read_bytes())
    content[20:60] = bytes(range(200, 240))
    (tmp_path / "model.pt").write_bytes(content)
    with pytest.raises(ModelError, match=r"cannot be read: .*is it damaged") as caught:
        load_checkpoint(nn.Linear(3, 2), tmp_path / "model.pt")
    assert "weights_only" not in str(caught.value)


class Wrapped(nn.Module):
    """A module whose own names begin with `module.`."""

    def __init__(self) -> None:
        super().__init__()
        self.module = nn.Linear(3, 2)


def test_names_that_modules_translate_are_loaded(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        old = nn.Sequential(nn.utils.weight_norm(nn.Linear(3, 2)))
    torch.save(old.state_dict(), tmp_path / "model.pt")
    model = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(3, 2)))
    assert load_checkpoint(model, tmp_path / "model.pt") == []
    torch.testing.assert_close(model(torch.eye(3)), old(torch.eye(3)))
    other = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(4, 2)))
    with pytest.raises(ModelError, match="size mismatch"):
        load_checkpoint(other, tmp_path / "model.pt")


@pytest.mark.parametrize("in_file", [True, False], ids=["file", "model"])
def test_a_parametrised_weight_on_one_side_is_named(tmp_path: Path, in_file: bool) -> None:
    plain, normed = nn.Linear(3, 2), nn.utils.parametrizations.weight_norm(nn.Linear(3, 2))
    saved, model = (normed, plain) if in_file else (plain, normed)
    torch.save(saved.state_dict(), tmp_path / "model.pt")
    message = f"the {'file' if in_file else 'model'} holds a weight in parts (parametrizations.weight.original0)"
    with pytest.raises(ModelError, match=re.escape(message)):
        load_checkpoint(model, tmp_path / "model.pt")


def test_names_that_begin_with_module_in_the_model_too_stay(tmp_path: Path) -> None:
    state = Wrapped().state_dict()
    torch.save(state, tmp_path / "model.pt")
    model = Wrapped()
    assert load_checkpoint(model, tmp_path / "model.pt") == []
    assert torch.equal(model.module.weight, state["module.weight"])


def student_and_teacher(tmp_path: Path) -> Path:
    both = {f"{name}.{key}": value for name in ("student", "teacher") for key, value in make_net().state_dict().items()}
    torch.save(both, tmp_path / "model.ckpt")
    return tmp_path / "model.ckpt"


def test_a_prefix_leaves_out_the_others(tmp_path: Path) -> None:
    path, model = student_and_teacher(tmp_path), make_net()
    load_checkpoint(model, path, prefix="teacher.")
    assert torch.equal(model[0].weight, torch.load(path)["teacher.0.weight"])


WOULD_FIT = {
    "one": ({"student": 4}, r"begin with 'student\.' would fit: set model.prefix to it to"),
    "two": (
        {"student": 4, "teacher": 4},
        r"begin with 'student\.' or 'teacher\.' would fit: set model.prefix to one of",
    ),
    "one by its shapes": ({"student": 6, "teacher": 4}, r"begin with 'teacher\.' would fit: set model.prefix to it to"),
    "two by their names": ({"student": 6, "teacher": 5}, r"begin with 'student\.' or 'teacher\.' would fit: set"),
}


@pytest.mark.parametrize(("networks", "message"), WOULD_FIT.values(), ids=WOULD_FIT)
def test_the_prefixes_that_would_fit_are_advised(tmp_path: Path, networks: dict[str, int], message: str) -> None:
    states = {name: make_net(outputs).state_dict() for name, outputs in networks.items()}
    beside = {"loss.weight": torch.ones(4)}
    both = {f"{name}.{key}": value for name, state in states.items() for key, value in state.items()}
    torch.save(both | beside, tmp_path / "model.ckpt")
    with pytest.raises(ModelError, match=message):
        load_checkpoint(make_net(), tmp_path / "model.ckpt")


def test_plain_names_beside_others_that_fit_with_a_prefix(tmp_path: Path) -> None:
    plain, averaged = make_net().state_dict(), make_net().state_dict()
    torch.save(plain | {f"ema.{key}": value for key, value in averaged.items()}, tmp_path / "model.ckpt")
    with pytest.raises(ModelError, match=r"begin with 'ema\.', or those without \(''\), would fit: .* to one of them"):
        load_checkpoint(make_net(), tmp_path / "model.ckpt")
    for prefix, wanted in (("", plain), ("ema.", averaged)):
        model = make_net()
        (said,) = load_checkpoint(model, tmp_path / "model.ckpt", prefix=prefix)
        assert f"and {len(plain)} others were left out" in said
        assert all(torch.equal(value, wanted[key]) for key, value in model.state_dict().items())


FOLDERS = {
    "one file of safetensors": ({"model.safetensors": ("0", "2")}, save_file),
    "one file of torch.save": ({"pytorch_model.bin": ("0", "2")}, torch.save),
    "parts": ({"model-00001-of-00002.safetensors": ("0",), "model-00002-of-00002.safetensors": ("2",)}, save_file),
}


@pytest.mark.parametrize(("files", "save"), FOLDERS.values(), ids=FOLDERS)
def test_folders_of_weights(tmp_path: Path, files: dict, save) -> None:
    state = make_net().state_dict()
    (tmp_path / "config.json").write_text("{}")
    for name, layers in files.items():
        save({key: value for key, value in state.items() if key.startswith(layers)}, tmp_path / name)
    model = make_net()
    load_checkpoint(model, tmp_path)
    torch.testing.assert_close(dict(model.state_dict()), dict(state), rtol=0, atol=0)


def test_a_folder_with_several_models_is_asked_about(tmp_path: Path) -> None:
    save_file(STATE, tmp_path / "best.safetensors")
    save_file(STATE, tmp_path / "last.safetensors")
    with pytest.raises(ModelError, match=r"holds best\.safetensors, last\.safetensors; name the file of the weights"):
        load_checkpoint(nn.Linear(3, 2), tmp_path)


NAMES = {
    "a list": ({"classes": ["emu", "cat"]}, ("emu", "cat")),
    "names by number": ({"idx_to_class": {1: "cat", 0: "emu"}}, ("emu", "cat")),
    "names by number as text": ({"idx_to_class": {"1": "cat", "0": "emu"}}, ("emu", "cat")),
    "numbers by name": ({"class_to_idx": {"cat": 1, "emu": 0}}, ("emu", "cat")),
    "the second that may be it": ({"classes": 2, "class_names": ("emu", "cat")}, ("emu", "cat")),
    "numbers with a gap": ({"class_to_idx": {"cat": 2, "emu": 0}}, None),
    "numbers alone": ({"classes": [3, 5]}, None),
    "nothing": ({}, None),
}


@pytest.mark.parametrize(("beside", "wanted"), NAMES.values(), ids=NAMES)
def test_names_of_classes_beside_the_weights(tmp_path: Path, beside: dict, wanted: tuple[str, ...] | None) -> None:
    torch.save({"state_dict": nn.Linear(3, 2).state_dict(), **beside}, tmp_path / "best.pt")
    assert read_weights(tmp_path / "best.pt").class_names == wanted
