"""Models from every kind of source, made by the libraries they are named after."""

import importlib
import json
import re
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch import nn
from trusted import built

from gradscore.errors import MissingExtraError, ModelError
from gradscore.models import (
    MODEL_SOURCES,
    ModelConfig,
    ModelSource,
    build_model,
    class_names,
    code_sha256,
    trusting_code,
)
from gradscore.system import import_torchvision

import_torchvision()
timm, transformers = map(importlib.import_module, ("timm", "transformers"))

NAMES = {0: "cat", 1: "dog", 2: "owl"}
IMAGES = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(0))
TOKENS = torch.randint(1, 30, (4, 6), generator=torch.Generator().manual_seed(0))
SOUND = torch.randn(4, 800, generator=torch.Generator().manual_seed(0))


def config(source: str, **settings: object) -> ModelConfig:
    return ModelConfig.model_validate({"source": source, "num_classes": 3, "checkpoint": None, **settings})


def vit(**settings: object):
    made = transformers.ViTConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, image_size=8, patch_size=4,
        **{"id2label": NAMES, **settings},
    )  # fmt: skip
    return transformers.ViTForImageClassification(made)


def bert(**settings: object):
    made = transformers.BertConfig(
        vocab_size=30, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
        **{"num_labels": 3, **settings},
    )  # fmt: skip
    return transformers.BertForSequenceClassification(made)


def wav2vec2():
    made = transformers.Wav2Vec2Config(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, conv_dim=(8,),
        conv_stride=(20,), conv_kernel=(20,), num_feat_extract_layers=1, num_conv_pos_embeddings=4,
        num_conv_pos_embedding_groups=2, classifier_proj_size=8, num_labels=3,
    )  # fmt: skip
    return transformers.Wav2Vec2ForSequenceClassification(made)


FOLDERS = {
    "images": (vit, IMAGES),
    "text": (bert, TOKENS),
    "text with a mask": (bert, {"input_ids": TOKENS, "attention_mask": (TOKENS > 3).long()}),
    "sound": (wav2vec2, SOUND),
}


@pytest.mark.parametrize(("make", "batch"), FOLDERS.values(), ids=FOLDERS)
def test_classifiers_of_transformers(tmp_path: Path, make, batch) -> None:
    model = make().eval()
    model.save_pretrained(tmp_path)
    found = build_model(ModelConfig(source=f"transformers:{tmp_path}", num_classes=3))
    wanted = model(**batch).logits if isinstance(batch, dict) else model(batch).logits
    torch.testing.assert_close(found.model(batch), wanted)
    assert not found.model.training


def test_weights_of_a_checkpoint_replace_those_of_the_folder(tmp_path: Path) -> None:
    vit().save_pretrained(tmp_path / "folder")
    trained = vit().eval()
    torch.save(
        {"state_dict": {f"model.{name}": each for name, each in trained.state_dict().items()}}, tmp_path / "a.ckpt"
    )
    found = build_model(config(f"transformers:{tmp_path}/folder", checkpoint=tmp_path / "a.ckpt"))
    torch.testing.assert_close(found.model(IMAGES), trained(IMAGES).logits)
    assert "begin with 'model.', which was taken off" in "".join(found.notices)


CLASSES = {
    "named": ({"id2label": NAMES}, ["cat", "dog", "owl"]),
    "numbered": ({"id2label": None, "num_labels": 3}, None),
}


@pytest.mark.parametrize(("settings", "names"), CLASSES.values(), ids=CLASSES)
def test_class_names_are_those_of_id2label(tmp_path: Path, settings: dict, names: list[str] | None) -> None:
    vit(**{name: value for name, value in settings.items() if value is not None}).save_pretrained(tmp_path)
    edited = json.loads((tmp_path / "config.json").read_text()) | {
        name: {str(place): f"LABEL_{place}" for place in range(3)} for name in settings if settings[name] is None
    }
    (tmp_path / "config.json").write_text(json.dumps(edited))
    assert class_names(config(f"transformers:{tmp_path}")) == names


def test_other_sources_name_no_classes() -> None:
    assert class_names(config("timm:resnet18")) is None


def base_model(folder: Path) -> None:
    transformers.BertModel(bert().config).save_pretrained(folder)


def without_head(folder: Path) -> None:
    model = bert()
    model.save_pretrained(folder, state_dict={k: v for k, v in model.state_dict().items() if "classifier" not in k})


def remote_code(folder: Path) -> None:
    vit().save_pretrained(folder)
    found = json.loads((folder / "config.json").read_text())
    found |= {"architectures": ["OwnForImageClassification"], "auto_map": {"AutoConfig": "own.OwnConfig"}}
    (folder / "config.json").write_text(json.dumps(found))
    (folder / "own.py").write_text("raise SystemExit('it ran')")


def edited(folder: Path, file: str, content: str | bytes) -> None:
    vit().save_pretrained(folder)
    (folder / file).write_bytes(content if isinstance(content, bytes) else content.encode())


BAD_FOLDERS = {
    "another number of classes": (lambda to: vit().save_pretrained(to), 4, r"has 3 classes .*num_classes says 4"),
    "one output": (lambda to: bert(num_labels=1).save_pretrained(to), 2, "one output; set model.num_classes to 1 if"),
    "no classifier": (base_model, 3, "holds BertModel, which is no classifier"),
    "weights without a head": (without_head, 3, r"2 missing: classifier\.bias, classifier\.weight"),
    "code of its own": (remote_code, 3, "no OwnForImageClassification, so the model has code of its own"),
    "no folder": (lambda to: None, 3, "there is no such folder, and nothing is fetched"),
    "a damaged configuration": (lambda to: edited(to, "config.json", "{"), 3, r"config\.json cannot be read.*damaged"),
    "damaged weights": (lambda to: edited(to, "model.safetensors", b"1234"), 3, "cannot be read"),
}  # fmt: skip


@pytest.mark.parametrize(("save", "classes", "message"), BAD_FOLDERS.values(), ids=BAD_FOLDERS)
def test_unusable_folders(tmp_path: Path, save, classes: int, message: str) -> None:
    save(tmp_path / "model")
    with pytest.raises(ModelError, match=message):
        build_model(config(f"transformers:{tmp_path}/model", num_classes=classes))


def test_one_output_may_be_declared_a_logit(tmp_path: Path) -> None:
    model = bert(num_labels=1).eval()
    model.save_pretrained(tmp_path)
    found = build_model(config(f"transformers:{tmp_path}", num_classes=1)).model(TOKENS)
    torch.testing.assert_close(found, torch.cat([torch.zeros(4, 1), model(TOKENS).logits], 1))


def test_timm_gets_the_number_of_classes(tmp_path: Path) -> None:
    trained = timm.create_model("test_vit", num_classes=3).eval()
    torch.save(trained.state_dict(), tmp_path / "weights.pth")
    model = build_model(config("timm:test_vit", checkpoint=tmp_path / "weights.pth")).model
    images = torch.randn(2, 3, 160, 160)
    torch.testing.assert_close(model(images), trained(images))


BAD_TIMM = {
    "misspelt": ("timm:resnet81", {}, r"; did you mean 'resnet18'\?$"),
    "weights that would be downloaded": (
        "timm:resnet18",
        {"pretrained": True},
        r"put the file .* into model\.checkpoint",
    ),
}


@pytest.mark.parametrize(("source", "arguments", "message"), BAD_TIMM.values(), ids=BAD_TIMM)
def test_unusable_names_of_timm(source: str, arguments: dict, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        build_model(config(source, arguments=arguments))


MISSING = {"timm": "timm:resnet18", "transformers": "transformers:{}"}


@pytest.mark.parametrize(("package", "source"), MISSING.items(), ids=MISSING)
def test_extras_that_are_not_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str, source: str
) -> None:
    vit().save_pretrained(tmp_path)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError, match=re.escape(f"pip install 'gradscore[{package}]'")):
        build_model(config(source.format(tmp_path)))


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(), nn.Flatten(), nn.Linear(144, 3)
    )


def exported(path: Path, model: nn.Module, *, batch: object = torch.export.Dim.AUTO) -> Path:
    shapes = None if batch is None else ({0: batch},)
    torch.export.save(torch.export.export(model, (IMAGES,), dynamic_shapes=shapes), path)
    return path


def test_programs(tmp_path: Path) -> None:
    model = network().eval()
    path = exported(tmp_path / "net.pt2", model)
    with trusting_code():
        found = build_model(ModelConfig(source=f"program:{path}", num_classes=3))
    torch.testing.assert_close(found.model(IMAGES[:3]), model(IMAGES[:3]))
    wanted = [name for name, _ in model.named_parameters()]
    assert [name for name, each in found.model.named_parameters() if each.requires_grad] == wanted


def test_programs_run_when_they_are_trusted(tmp_path: Path) -> None:
    source = f"program:{exported(tmp_path / 'net.pt2', network().eval())}"
    with pytest.raises(ModelError, match=r"runs the code in .*net\.pt2; if you trust it, add --trust-code"):
        build_model(config(source))


def script(path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TorchScript is deprecated, and people have it
        torch.jit.script(network()).save(path)


BAD_PROGRAMS = {
    "missing": (lambda path: None, "the file does not exist"),
    "weights": (lambda path: torch.save(network().state_dict(), path), r"\(torch\); a file of weights belongs into"),
    "TorchScript": (script, r"is no program of torch\.export, by its content \(TorchScript\)"),
}


@pytest.mark.parametrize(("save", "message"), BAD_PROGRAMS.values(), ids=BAD_PROGRAMS)
def test_unusable_programs(tmp_path: Path, save, message: str) -> None:
    save(tmp_path / "net.pt2")
    with pytest.raises(ModelError, match=message):
        built(config(f"program:{tmp_path}/net.pt2"))


CODE = """
import torch
from torch import nn


def network():
    return nn.Sequential(nn.Flatten(), nn.Linear(192, 3))


def compiled():
    return torch.compile(network(), backend="eager")


def compiled_inside():
    return nn.Sequential(torch.compile(network(), backend="eager"))


def compiled_in_place():
    model = network()
    model.compile(backend="eager")
    return model


def wrapped():
    return nn.DataParallel(network())


def lazy():
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(3))


def scripted():
    import warnings
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.script(network())
"""


@pytest.fixture
def code(tmp_path: Path) -> str:
    (tmp_path / "net.py").write_text(CODE)
    return f"python:{tmp_path}/net.py"


FOREIGN = {
    "compiled": "is compiled .torch.compile., .* pass compiled._orig_mod",
    "compiled_inside": "is compiled in '0'",
    "compiled_in_place": "is compiled .torch.compile.",
    "wrapped": "is wrapped in DataParallel, .* pass model.module",
    "lazy": "has parameters without values .1.weight, 1.bias.: a lazy module",
    "scripted": "is a TorchScript module, .* build that in Python and load its weights",
}


@pytest.mark.parametrize(("factory", "message"), FOREIGN.items(), ids=FOREIGN)
def test_modules_that_hide_their_parameters_or_rename_them_are_refused(code: str, factory: str, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        built(config(f"{code}:{factory}"))


def test_without_a_checkpoint_weights_are_those_of_the_source(code: str) -> None:
    with trusting_code():
        one, again, other = (build_model(config(f"{code}:network"), seed=seed) for seed in (7, 7, 8))
    assert one.notices == (
        "model.checkpoint is null: the weights come from the model's own code"
        " (random with seed 7, unless it loads some)",
    )
    assert torch.equal(one.model(IMAGES), again.model(IMAGES))
    assert not torch.equal(one.model(IMAGES), other.model(IMAGES))


def written(folder: Path, files: dict[str, str]) -> str:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return f"python:{folder}/net.py:net"


LAYER = "from torch import nn\n\n\ndef make():\n    return nn.Linear(3, 5)\n"
SIBLINGS = {
    "import": {"net.py": "import blocks\n\n\ndef net():\n    return blocks.make()\n", "blocks.py": LAYER},
    "from ... import": {"net.py": "from blocks import make as net\n", "blocks.py": LAYER},
    "relative": {"net.py": "from .blocks import make as net\n", "blocks.py": LAYER},
    "in the function": {"net.py": "def net():\n    from blocks import make\n    return make()\n", "blocks.py": LAYER},
    "of a sibling": {
        "net.py": "from first import net\n", "first.py": "from second import make as net\n", "second.py": LAYER,
    },
    "package": {
        "net.py": "from parts.blocks import make as net\n", "parts/__init__.py": "", "parts/blocks.py": LAYER,
    },
    "package, relative inside": {
        "net.py": "from parts import net\n", "parts/__init__.py": "from .blocks import make as net\n",
        "parts/blocks.py": LAYER,
    },
    "folder": {"net.py": "from parts.blocks import make as net\n", "parts/blocks.py": LAYER},
}  # fmt: skip


@pytest.mark.parametrize("files", SIBLINGS.values(), ids=SIBLINGS)
def test_files_import_their_siblings(tmp_path: Path, files: dict[str, str]) -> None:
    source = written(tmp_path, files)
    before = set(sys.modules)
    assert built(config(source))(torch.zeros(1, 3)).shape == (1, 5)
    left = {name for name in set(sys.modules) - before if not name.startswith("gradscore_model_")}
    assert left & {"blocks", "parts", "first", "second"} == set()


def test_siblings_of_one_name_in_two_folders_are_kept_apart(tmp_path: Path) -> None:
    files = SIBLINGS["from ... import"]
    first = written(tmp_path / "first", files)
    second = written(tmp_path / "second", {**files, "blocks.py": LAYER.replace("5", "7")})
    shapes = [built(config(each))(torch.zeros(1, 3)).shape[1] for each in (first, second, first)]
    assert shapes == [5, 7, 5]


def test_siblings_count_for_the_hash_of_the_code(tmp_path: Path) -> None:
    source = written(tmp_path, SIBLINGS["of a sibling"])
    before = code_sha256(source)
    (tmp_path / "unrelated.py").write_text("x = 1")
    assert code_sha256(source) == before
    (tmp_path / "second.py").write_text(LAYER + "# changed\n")
    assert code_sha256(source) != before


def test_files_with_siblings_in_several_threads(tmp_path: Path) -> None:
    files, layers = SIBLINGS["in the function"], [LAYER, LAYER.replace("5", "7")]
    sources = [written(tmp_path / str(place), {**files, "blocks.py": layers[place]}) for place in range(2)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(3) as pool:
            found = pool.map(lambda place: built(config(sources[place % 2])), range(60))
            shapes = [model(torch.zeros(1, 3)).shape[1] for model in found]
    finally:
        sys.setswitchinterval(interval)
    assert shapes == [5, 7] * 30


def test_a_source_of_ones_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MODEL_SOURCES, "_entries", dict(MODEL_SOURCES._entries))
    source = ModelSource(
        build=lambda request: nn.Linear(int(request.name), request.outputs), form="toy:<n>", summary=""
    )
    MODEL_SOURCES.add("toy", source)
    assert build_model(config("toy:5")).model(torch.zeros(2, 5)).shape == (2, 3)
