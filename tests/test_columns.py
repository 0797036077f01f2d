"""Extra columns against one backward pass per sample, hand-made means, and their way through a run."""

import shutil
import threading
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gradscore import mean_gradients
from gradscore.bundle import read_bundle, write_bundle
from gradscore.bundling import make_bundle
from gradscore.config import FeaturesConfig
from gradscore.data import collate
from gradscore.errors import BundleError, ConfigError, ModelError, StoreError
from gradscore.explain import drivers
from gradscore.features import extract, open_splits
from gradscore.groups import group_parameters
from gradscore.guard.drift import Drift
from gradscore.mean_gradients import MeanGradients
from gradscore.meta import MetaModel
from gradscore.rows import Extractor
from gradscore.scaling import logarithmic, meta_inputs
from gradscore.scorer import Scorer
from gradscore.store import RunFolder

COLUMNS = ["output_gradient_norm", "activation_rate", "gradient_cosine"]
LOSS_VALUES = {
    "pseudo_label": lambda logits: F.cross_entropy(logits, logits.argmax(1)),
    "uniform": lambda logits: -logits.log_softmax(1).mean(),
}
K = 3


class Shared(nn.Module):
    """A layer and an activation used twice, functions called without modules, and time before samples."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(5, 4)
        self.twice = nn.Linear(4, 4)
        self.act = nn.ReLU(inplace=True)
        self.last = nn.Linear(4, K)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x).transpose(0, 1)
        y = self.act(self.twice(self.act(self.twice(y))))
        return self.last(F.relu(y.mean(0) - 0.1) + y.sum(0).relu())


class Folded(nn.Module):
    """Samples and positions on one axis, positions first."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(5, 4)
        self.last = nn.Linear(4, K)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.body(x.transpose(0, 1).reshape(-1, 5)))
        return self.last(y.reshape(x.shape[1], len(x), 4).mean(0))


def conv() -> nn.Module:
    body = [nn.Conv2d(1, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Flatten()]
    return nn.Sequential(*body, nn.Linear(36, K))


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "convolution": (conv, (1, 5, 5)),
    "shared": (Shared, (6, 5)),
    "folded": (Folded, (6, 5)),
}
GRANULARITIES = ["parameter", "module", "model"]


def made(name: str) -> tuple[nn.Module, Tensor]:
    make, shape = MODELS[name]
    with torch.random.fork_rng():
        torch.manual_seed(3)
        model = make().eval().double()
        return model, torch.randn(8, *shape, dtype=torch.float64)


def extractor(model: nn.Module, **features: object) -> Extractor:
    settings = FeaturesConfig(**{"losses": list(LOSS_VALUES), "statistics": ["l2"], "columns": COLUMNS, **features})
    return Extractor(model, num_classes=K, features=settings, groups=group_parameters(model, settings))


def with_means(model: nn.Module, fit: Sequence[Tensor], **features: object) -> Extractor:
    found = extractor(model, **features)
    sums = found.class_sums()
    _ = [found.add_to(sums, batch) for batch in fit]
    found.compare_with(sums.finished())
    return found


def table(found: Extractor, images: Tensor, **options: bool) -> pd.DataFrame:
    return pd.DataFrame(found.values(images, **options), columns=found.names)


def watched(model: nn.Module, image: Tensor) -> tuple[Tensor, dict[str, list[Tensor]]]:
    """Logits of one image, and copies of the outputs of its modules by name that have gradients of their own."""
    outputs: dict[str, list[Tensor]] = {}

    def keep(name: str) -> Callable[[nn.Module, object, Tensor], Tensor]:
        def hook(_module: nn.Module, _inputs: object, output: Tensor) -> Tensor:
            outputs.setdefault(name, []).append(output)
            return output.clone()

        return hook

    handles = [module.register_forward_hook(keep(name)) for name, module in model.named_modules() if name]
    logits = model(image.unsqueeze(0))
    _ = [handle.remove() for handle in handles]
    return logits, outputs


def gradients(model: nn.Module, loss: str, images: Tensor) -> list[dict[str, np.ndarray]]:
    names = [name for name, _ in model.named_parameters()]
    return [
        dict(
            zip(
                names,
                (
                    each.numpy().ravel()
                    for each in torch.autograd.grad(LOSS_VALUES[loss](model(image[None])), list(model.parameters()))
                ),
                strict=True,
            )
        )
        for image in images
    ]


def norm_of(model: nn.Module, loss: str, image: Tensor, layer: str) -> float:
    logits, outputs = watched(model, image)
    found = torch.autograd.grad(LOSS_VALUES[loss](logits), outputs[layer])
    return float(torch.cat([each.flatten() for each in found]).norm())


@pytest.mark.parametrize("loss", LOSS_VALUES)
@pytest.mark.parametrize("name", MODELS)
def test_norms_against_one_backward_pass_per_sample(name: str, loss: str) -> None:
    model, images = made(name)
    found = table(extractor(model, columns=["output_gradient_norm"]), images)
    layers = list(dict.fromkeys(key.rpartition(".")[0] for key, _ in model.named_parameters()))
    columns = [f"{loss}/{layer}/output_gradient_norm" for layer in layers]
    wanted = [[norm_of(model, loss, image, layer) for layer in layers] for image in images]
    np.testing.assert_allclose(found[columns].to_numpy(), wanted, rtol=1e-10)


def test_rates_against_the_outputs_themselves() -> None:
    model, images = made("convolution")
    found = table(extractor(model, columns=["activation_rate"]), images)
    wanted = [float((model[:3](image[None]) > 0).double().mean()) for image in images]
    assert list(found.columns[-1:]) == ["forward/2/activation_rate"]
    np.testing.assert_allclose(found["forward/2/activation_rate"], wanted, rtol=1e-12)
    assert found["forward/2/activation_rate"].std() > 0


def test_rates_of_functions_are_those_of_the_module_that_calls_them() -> None:
    model, images = made("shared")
    found = table(extractor(model, columns=["activation_rate"]), images)
    first = model.first(images)
    once = F.relu(model.twice(first))
    again = F.relu(model.twice(once))
    inner = torch.cat([once.flatten(1), again.flatten(1)], 1)
    outer = torch.cat([again.mean(1) - 0.1, again.sum(1)], 1)
    np.testing.assert_allclose(found["forward/act/activation_rate"], (inner > 0).double().mean(1), rtol=1e-12)
    np.testing.assert_allclose(found["forward/./activation_rate"], (outer > 0).double().mean(1), rtol=1e-12)


def test_rates_where_positions_come_before_samples() -> None:
    model, images = made("folded")
    found = table(extractor(model, columns=["activation_rate"]), images)
    wanted = (model.body(images) > 0).double().flatten(1).mean(1)
    np.testing.assert_allclose(found["forward/./activation_rate"], wanted.numpy(), rtol=1e-12)


def cosine(one: np.ndarray, other: np.ndarray) -> float:
    size = np.linalg.norm(one) * np.linalg.norm(other)
    return float(one @ other / size) if size else 0.0


def joined(gradient: dict[str, np.ndarray], names: Sequence[str]) -> np.ndarray:
    return np.concatenate([gradient[name] for name in names])


def hand_made(model: nn.Module, loss: str, fit: Tensor, images: Tensor, names: Sequence[str]) -> list[float]:
    """Cosines with the mean gradient of other fit samples of the same predicted class."""
    own, others = gradients(model, loss, images), gradients(model, loss, fit)
    predicted, of_fit = model(images).argmax(1), model(fit).argmax(1)
    found = []
    for image, label, gradient in zip(images, predicted, own, strict=True):
        same = [
            joined(each, names)
            for each, theirs, other in zip(others, of_fit, fit, strict=True)
            if theirs == label and not torch.equal(other, image)
        ]
        found.append(cosine(joined(gradient, names), np.mean(same, axis=0)) if same else 0.0)
    return found


@pytest.mark.parametrize("leave_out", [True, False], ids=["of the fit", "new"])
@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize("name", MODELS)
def test_cosines_against_hand_made_means(name: str, granularity: str, leave_out: bool) -> None:
    model, images = made(name)
    fit = images[:6]
    shown = fit if leave_out else images[6:]
    found = with_means(model, [fit[:4], fit[4:]], columns=["gradient_cosine"], granularity=granularity)
    rows = table(found, shown, leave_out=leave_out)
    groups = group_parameters(model, FeaturesConfig(granularity=granularity))
    for loss in LOSS_VALUES:
        columns = [f"{loss}/{group}/gradient_cosine" for group in groups]
        wanted = np.transpose([hand_made(model, loss, fit, shown, members) for members in groups.values()])
        np.testing.assert_allclose(rows[columns].to_numpy(), wanted, atol=1e-9)


def test_gradients_that_float32_could_not_hold() -> None:
    """Logits so far apart that the gradient of the pseudo label is about 1e-260, whose square is zero."""
    model = nn.Linear(2, 2, bias=False).double()
    model.weight.data = torch.tensor([[600.0, 1.0], [1.0, 0.0]], dtype=torch.float64)
    fit = torch.tensor([[1.0, 0.0], [1.0, 1.0], [0.98, -1.0]], dtype=torch.float64)
    settings = FeaturesConfig(losses=["pseudo_label"], statistics=["l2"], columns=["gradient_cosine"])
    found = Extractor(model, num_classes=2, features=settings, groups={"weight": ["weight"]})
    sums = found.class_sums()
    found.add_to(sums, fit)
    found.compare_with(sums.finished())
    # The third sample's gradient is e^13 times as long as the others', so the means of others are parallel to it.
    cosines = found.values(fit, leave_out=True)[:, -1]
    np.testing.assert_allclose(cosines[:2], [0.98 / np.hypot(0.98, 1), -0.02 / np.hypot(0.98, 1) / 2**0.5], atol=1e-4)


def test_a_sample_that_is_not_finite_spoils_no_mean() -> None:
    model, images = made("convolution")
    broken = torch.cat([images[:5], torch.full_like(images[:1], torch.nan)])
    found, clean = (with_means(model, [batch], columns=["gradient_cosine"]) for batch in (broken, images[:5]))
    np.testing.assert_allclose(found.values(images[5:]), clean.values(images[5:]), rtol=1e-9, atol=1e-12)


def test_a_class_without_other_samples_gives_zero_and_is_named() -> None:
    model, images = made("convolution")
    label = int(model(images[:1]).argmax(1))
    found = with_means(model, [images[:1]], columns=["gradient_cosine"])
    columns = [name for name in found.names if name.endswith("/gradient_cosine")]
    assert not table(found, images[:1], leave_out=True)[columns].to_numpy().any()
    assert table(found, images[:1])[columns].to_numpy() == pytest.approx(1.0)
    others = ", ".join(str(place) for place in range(K) if place != label)
    assert found.notices == [f"gradient_cosine is 0 for predictions no sample of in_dist.fit has: class {others}"]


@pytest.mark.parametrize("name", MODELS)
def test_nothing_stays_on_the_model(name: str) -> None:
    model, images = made(name)
    with_means(model, [images]).values(images)
    modules = list(model.modules())
    assert not [module for module in modules if module._forward_hooks or module._forward_pre_hooks]
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("name", MODELS)
def test_other_values_are_the_same_to_the_bit(name: str) -> None:
    model, images = made(name)
    plain, found = extractor(model, columns=[]), with_means(model, [images])
    np.testing.assert_array_equal(table(found, images)[plain.names].to_numpy(), plain.values(images))


def test_batches_of_another_size() -> None:
    model, images = made("shared")
    found = with_means(model, [images])
    whole = found.values(images)
    parts = [found.values(images[start:stop]) for start, stop in pairwise([0, 1, 3, 8])]
    np.testing.assert_allclose(np.concatenate(parts), whole, rtol=1e-9, atol=1e-12)


def test_reduced_precision_moves_the_values_a_little() -> None:
    model, images = made("convolution")
    full, reduced = (with_means(model.float(), [images.float()], autocast=kind) for kind in (None, "bf16"))
    one, other = (table(found, images.float()).filter(regex="|".join(COLUMNS)) for found in (full, reduced))
    assert not np.array_equal(one, other)
    np.testing.assert_allclose(other, one, rtol=0.1, atol=0.05)


def test_only_layers_of_chosen_parameters() -> None:
    model, images = made("convolution")
    found = with_means(model, [images], parameters=["@last"])
    found.values(images)
    assert [name for name in found.names if name.endswith(tuple(COLUMNS))] == [
        "pseudo_label/4/output_gradient_norm",
        "uniform/4/output_gradient_norm",
        "forward/2/activation_rate",
        *[f"{loss}/4.{name}/gradient_cosine" for loss in LOSS_VALUES for name in ("weight", "bias")],
    ]


class Unseen(nn.Module):
    """A layer whose weights are used without calling it."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(5, K)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(F.linear(x, self.hidden.weight, self.hidden.bias)) + 0.1 * x[:, :K]


def test_a_layer_that_is_not_called_is_named() -> None:
    model, images = Unseen().double(), torch.randn(4, 5, dtype=torch.float64)
    found = extractor(model, columns=["output_gradient_norm"])
    assert not table(found, images)["uniform/hidden/output_gradient_norm"].any()
    assert found.notices == ["hidden: no gradient at an output of its own, so its output_gradient_norm is 0"]


BAD_SETTINGS = {
    "mistyped": ({"columns": ["gradient_cosin"]}, ValueError, "no column 'gradient_cosin'; did you mean 'gradient_co"),
    "twice": ({"columns": ["activation_rate"] * 2}, ValueError, "named more than once: activation_rate"),
    "a loss of many gradients": ({"losses": ["expected"]}, ConfigError, "gradient_cosine: loss 'expected' has a gradi"),
}


@pytest.mark.parametrize(("settings", "error", "message"), BAD_SETTINGS.values(), ids=BAD_SETTINGS)
def test_unusable_settings(settings: dict[str, object], error: type[Exception], message: str) -> None:
    model, _ = made("convolution")
    with pytest.raises(error, match=message):
        extractor(model, **settings)


def test_too_many_parameters_for_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mean_gradients, "MEMORY_LIMIT", 1000)
    model, _ = made("convolution")
    with pytest.raises(ConfigError, match=r"keep 7.44e-06 GB .*2 losses x 3 classes x 155 parameter entries.*'@last'"):
        extractor(model)


def test_a_model_without_activation_functions() -> None:
    found = extractor(nn.Sequential(nn.Linear(5, 4), nn.GELU(), nn.Linear(4, K)), columns=["activation_rate"])
    with pytest.raises(ConfigError, match=r"calls no activation function that gives zeros .*leave it out"):
        found.values(torch.randn(4, 5))


class Fickle(nn.Module):
    """Takes another way for large images."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other, self.last = nn.ReLU(), nn.ReLU(), nn.Linear(5, K)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.one(x) if x.mean() > 10 else self.other(x))


def test_activations_that_change_from_batch_to_batch() -> None:
    found = extractor(Fickle(), columns=["activation_rate"])
    found.values(torch.randn(4, 5))
    with pytest.raises(ModelError, match=r"changes from batch to batch \(one, other\)"):
        found.values(torch.randn(4, 5) + 100)


def test_names_before_the_first_sample() -> None:
    model, _ = made("convolution")
    with pytest.raises(ModelError, match="is seen when the model runs"):
        _ = extractor(model).names


def test_cosines_need_means() -> None:
    model, images = made("convolution")
    with pytest.raises(ModelError, match="needs mean gradients"):
        extractor(model).values(images)


def test_means_of_another_model_are_refused() -> None:
    model, images = made("convolution")
    other = extractor(made("folded")[0])
    sums = extractor(model).class_sums()
    with pytest.raises(StoreError, match="belong to other losses, classes or parameters"):
        other.compare_with(sums.finished())
    assert len(images)


def test_means_survive_writing() -> None:
    model, images = made("convolution")
    found = extractor(model)
    sums = found.class_sums()
    found.add_to(sums, images)
    content = sums.finished().to_bytes()
    assert MeanGradients.from_bytes(content, where="here").to_bytes() == content
    with pytest.raises(StoreError, match="here: the mean gradients cannot be read"):
        MeanGradients.from_bytes(content[:-5], where="here")


def test_which_inputs_are_logarithms() -> None:
    names = ["uniform/0/output_gradient_norm", "forward/1/activation_rate", "uniform/0/gradient_cosine"]
    assert logarithmic(names).tolist() == [True, False, False]


def test_rounding_in_cosines_is_no_input() -> None:
    frame = pd.DataFrame({"uniform/0/gradient_cosine": [1e-8, -3e-9, 0.25], "uniform/1/gradient_cosine": 0.99999994})
    found = meta_inputs(frame)
    assert found["uniform/0/gradient_cosine"].tolist() == [0.0, 0.0, 0.25]
    assert found["uniform/1/gradient_cosine"].tolist() == [1.0, 1.0, 1.0]


def test_drift_says_which_layer() -> None:
    drift = Drift(samples=1, schema="", largest=1.0, column="forward/act/activation_rate", moved=[])
    assert drift.place == "activation_rate of layer act"


@pytest.fixture(scope="module")
def run(make_run: Callable[..., Path]) -> Path:
    return make_run(features={"columns": COLUMNS}, calibration=True, part_size=64)


@pytest.fixture(scope="module")
def bundle(run: Path) -> Path:
    path = run.parent / "columns.gradscore"
    write_bundle(path, make_bundle(RunFolder(run), alpha=0.1, with_weights=True, trust_code=True))
    return path


def test_a_run_has_them_beside_all_others(run: Path, small_run: Path) -> None:
    found, plain = (RunFolder(path).read("in_dist.test") for path in (run, small_run))
    pd.testing.assert_frame_equal(found[plain.columns], plain, rtol=1e-5, atol=1e-7)
    assert [name for name in found.columns if name not in set(plain.columns)] == [
        "uniform/0/output_gradient_norm",
        "uniform/3/output_gradient_norm",
        "forward/1/activation_rate",
        *[f"uniform/{name}/gradient_cosine" for name in ("0.weight", "0.bias", "3.weight", "3.bias")],
    ]


def test_fit_samples_are_left_out_of_their_means(run: Path) -> None:
    folder = RunFolder(run)
    dataset = open_splits(folder.config)["in_dist.fit"]
    model = nn.Sequential(nn.Conv2d(1, 4, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(36, 10))
    model.load_state_dict(read_bundle_weights(folder))
    images = collate([dataset[place] for place in range(len(dataset))]).images
    fit = images.double()
    wanted = hand_made(model.double(), "uniform", fit, fit[:6], ["3.weight"])
    found = folder.read("in_dist.fit", ["uniform/3.weight/gradient_cosine"]).to_numpy()[:6, 0]
    np.testing.assert_allclose(found, wanted, atol=1e-5)


def read_bundle_weights(folder: RunFolder) -> dict[str, Tensor]:
    from safetensors.torch import load_file

    return load_file(folder.config.model.checkpoint)


def test_meta_models_see_them(run: Path) -> None:
    model = MetaModel.load(run / "meta/ood/known/all")
    assert {"uniform/0/output_gradient_norm", "forward/1/activation_rate"} < set(model.inputs)


def test_an_interrupted_run_goes_on_with_the_same_means(run: Path, tmp_path: Path) -> None:
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    config = RunFolder(run).config
    lost = [copy / "features/in_dist.test/part-00001.parquet", copy / mean_gradients.NAME]
    content = [path.read_bytes() for path in lost]
    _ = [path.unlink() for path in lost]
    summary = extract(config, out=copy, trust_code=True)
    assert [path.read_bytes() for path in lost] == content
    assert (summary.was_complete, extract(config, out=copy, trust_code=True).was_complete) == (False, True)


def test_changed_means_are_refused(run: Path, tmp_path: Path) -> None:
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    (copy / "features/in_dist.test/part-00001.parquet").unlink()
    (copy / mean_gradients.NAME).write_bytes(b"something else")
    with pytest.raises(StoreError, match="other mean gradients than those the feature tables were made with"):
        extract(RunFolder(run).config, out=copy, trust_code=True)


def test_other_columns_are_another_run(run: Path) -> None:
    config = RunFolder(run).config
    features = config.features.model_copy(update={"columns": []})
    with pytest.raises(StoreError, match="columns was"):
        extract(config.model_copy(update={"features": features}), out=run, trust_code=True)


def test_a_bundle_scores_as_the_run(run: Path, bundle: Path) -> None:
    dataset = open_splits(RunFolder(run).config)["in_dist.test"]
    images = collate([dataset[place] for place in range(50)]).images
    scorer = Scorer.load(bundle, trust_code=True)
    frame = RunFolder(run).read("in_dist.test").iloc[:50]
    values = scorer._values(images)
    np.testing.assert_allclose(values, frame[scorer.bundle.columns].to_numpy(), rtol=1e-9, atol=1e-12)
    wanted = MetaModel.load(run / "meta/misclassification/in_dist_only/all").decision(frame)
    assert scorer(images)["score_wrong"].to_numpy() == pytest.approx(wanted, abs=1e-9)


def test_threads_take_turns(run: Path, bundle: Path) -> None:
    dataset = open_splits(RunFolder(run).config)["in_dist.test"]
    images = collate([dataset[place] for place in range(40)]).images
    scorer = Scorer.load(bundle, trust_code=True)
    wanted = scorer(images)["score_ood"].tolist()
    results: dict[int, list[float]] = {}

    def work(number: int) -> None:
        results[number] = scorer(images)["score_ood"].tolist()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    _ = [thread.start() for thread in threads], [thread.join() for thread in threads]
    assert list(results.values()) == [wanted] * 6


def test_a_bundle_without_its_means_is_refused(bundle: Path, tmp_path: Path) -> None:
    from dataclasses import replace

    path = tmp_path / "without.gradscore"
    write_bundle(path, replace(read_bundle(bundle), mean_gradients=None))
    with pytest.raises(BundleError, match="its mean gradients do not fit its features"):
        read_bundle(path)


def test_explanations_are_readable(run: Path) -> None:
    model = MetaModel.load(run / "meta/ood/known/all")
    found = drivers(model, RunFolder(run).read("ood.noise").iloc[:5], k=len(model.inputs))
    names = {str(driver).rpartition(" ")[0] for row in found for driver in row}
    assert {"1 activation_rate", "0 output_gradient_norm of uniform", "3.weight gradient_cosine of uniform"} <= names
