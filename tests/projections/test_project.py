"""`gradscore.project` and its folder."""

import dataclasses
import json

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from both_ways import reference_of
from projection_matrices import matrix
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import gradscore
from gradscore.errors import (
    ConfigError,
    EvaluationError,
    ModelError,
    StoreError,
)
from gradscore.projections import projecting, projection_table

N = 23


def net(dtype=torch.float64):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Conv2d(1, 12, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(108, 70), nn.ReLU(),
            nn.Linear(70, 4),
        )  # fmt: skip
    return model.eval().to(dtype)


def samples(dtype=torch.float64):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(N, 1, 8, 8, generator=generator, dtype=dtype), torch.arange(N) % 4


def cross_entropy(logits, labels):
    return F.cross_entropy(logits, labels, reduction="none")


def whole_gradients(model, losses):
    """Gradients of the reference, written out one after the other, by name."""
    return reference_of(dict(model.named_parameters()), losses, torch.ones_like(losses))


def truth(dim, seed=0):
    model, (images, labels) = net(), samples()
    gradients = whole_gradients(model, cross_entropy(model(images), labels))
    return sum(each.flatten(1).numpy() @ matrix(name, each.shape[1:], dim, seed).T for name, each in gradients.items())


def values_of(found):
    return found.values * found.scale[:, None]


def test_projections_are_those_of_whole_gradients():
    found = gradscore.project(net(), samples(), loss="label", dim=100)
    expected = truth(100)
    np.testing.assert_allclose(values_of(found), expected, rtol=0, atol=1e-11 * np.abs(expected).max())
    np.testing.assert_allclose(found.dot(), expected @ expected.T, rtol=0, atol=1e-10 * np.abs(expected).max() ** 2)
    np.testing.assert_allclose(found.norms, np.linalg.norm(expected, axis=1), rtol=1e-10)
    assert found.labels.tolist() == samples()[1].tolist()
    assert found.predictions.tolist() == net()(samples()[0]).argmax(1).tolist()


def test_batches_and_threads_change_rounding_alone():
    images, labels = samples(torch.float32)
    one = gradscore.project(net(torch.float32), (images, labels), dim=256, batch_size=5)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        loader = DataLoader(TensorDataset(images, labels), batch_size=7)
        other = gradscore.project(net(torch.float32), loader, dim=256, batch_size=64)
    finally:
        torch.set_num_threads(before)
    largest = np.linalg.norm(values_of(one), axis=1).max()
    np.testing.assert_allclose(values_of(one), values_of(other), rtol=0, atol=2e-6 * largest)
    again = gradscore.project(net(torch.float32), (images, labels), dim=256, batch_size=5)
    assert np.array_equal(one.values, again.values)
    assert one.values.dtype == np.float32


def test_losses_by_name_keep_what_float32_cannot_hold():
    model = nn.Linear(3, 2).eval()
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[100.0, 0, 0], [-100.0, 0, 0]]))
        model.bias.zero_()
    found = gradscore.project(model, torch.ones(2, 3), dim=64)
    # The gradient of the loss at the logits is e^-200 (-1, 1) here, and four times its square that of the product.
    expected = np.exp(-400.0) * 2 * (3 + 1)
    assert found.dot()[0, 1] == pytest.approx(found.dot()[0, 0])
    assert expected / 3 < found.dot()[0, 0] < expected * 3
    assert found.cosines()[0, 1] == pytest.approx(1)


def test_names_with_brackets_are_names_not_patterns():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.tables = nn.ParameterDict(
                {"a[0]": nn.Parameter(torch.randn(6, 3)), "a0": nn.Parameter(torch.ones(6, 3))}
            )

        def forward(self, x):
            return x @ self.tables["a[0]"] + x.sin() @ self.tables["a0"]

    given = torch.randn(4, 6), torch.arange(4) % 3
    model = Net().eval()
    found = gradscore.project(model, given, loss="label", dim=64, parameters=r"tables.a[[]0]")
    assert found.about.parameters == {"tables.a[0]": [6, 3]}


def test_a_folder_of_others_is_left_as_it_is(tmp_path):
    (tmp_path / "below").mkdir()
    theirs = [tmp_path / "below" / "thesis.tmp", tmp_path / "draft.tmp"]
    for each in theirs:
        each.write_text("theirs")
    with pytest.raises(StoreError, match="wanted a new or empty folder"):
        gradscore.project(net(), samples(), dim=64, out=tmp_path)
    assert [each.read_text() for each in theirs] == ["theirs", "theirs"]


def test_fewer_samples_than_are_there_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("gradscore.projections.projecting.SHARD_SIZE", 10)
    images, labels = samples()
    gradscore.project(net(), (images, labels), dim=64, out=tmp_path / "all")
    with pytest.raises(StoreError, match="projections of more samples"):
        gradscore.project(net(), (images[:10], labels[:10]), dim=64, out=tmp_path / "all")
    assert len(gradscore.load_projections(tmp_path / "all")) == N


def test_a_loss_of_the_same_name_that_differs_later_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("gradscore.projections.projecting.SHARD_SIZE", 10)
    images, _ = samples()
    labels = torch.arange(N) // 10
    batches = [*zip(images.split(5), labels.split(5), strict=True)]
    weights = torch.ones(4, dtype=torch.float64)

    def weighted(model, batch):
        return cross_entropy(model(batch[0]), batch[1]) * weights[batch[1]]

    gradscore.project(net(), batches, losses=weighted, dim=64, out=tmp_path / "all")
    weights[2] = 5.0
    with pytest.raises(StoreError, match="came out otherwise than those there, the first those of sample 20"):
        gradscore.project(net(), batches, losses=weighted, dim=64, out=tmp_path / "all")


def test_nearest_against_sorting():
    found = gradscore.project(net(), samples(), loss="label", dim=128)
    values = values_of(found)
    products = values @ values.T
    cosines = products / np.linalg.norm(values, axis=1)[:, None] / np.linalg.norm(values, axis=1)
    np.fill_diagonal(cosines, -2)
    nearest = found.nearest(count=3)
    assert np.array_equal(nearest.places, np.argsort(-cosines, axis=1)[:, :3])
    np.testing.assert_allclose(nearest.similarities, -np.sort(-cosines, axis=1)[:, :3], rtol=1e-9)
    others = gradscore.project(net(), tuple(each[:4] for each in samples()), loss="label", dim=128)
    by_product = found.nearest(others, count=50, similarity="dot")
    own = np.arange(4)
    apart = products[:4].copy()
    apart[own, own] = -np.inf
    assert np.array_equal(by_product.places, np.argsort(-apart, axis=1)[:, :-1])
    np.testing.assert_allclose(others.dot(found), products[:4], rtol=1e-9, atol=1e-12)
    named = dataclasses.replace(others, sample_ids=[f"other {name}" for name in others.sample_ids])
    assert found.nearest(named, count=1).places[:, 0].tolist() == [0, 1, 2, 3]
    changed = dataclasses.replace(others, content_hashes=["0"] * 4)
    assert found.nearest(changed, count=1).places[:, 0].tolist() == [0, 1, 2, 3]


def test_products_are_compared_with_the_same_projection_only():
    one = gradscore.project(net(), samples(), dim=64)
    for settings, what in (({"seed": 1}, "seed"), ({"dim": 65}, "dim")):
        other = gradscore.project(net(), samples(), **{"dim": 64, **settings})
        with pytest.raises(EvaluationError, match=f"these projections differ in {what}"):
            one.dot(other)
    other_weights = net()
    torch.nn.init.zeros_(next(other_weights.parameters()))
    with pytest.raises(EvaluationError, match="differ in the weights of the model, so"):
        one.nearest(gradscore.project(other_weights, samples(), dim=64))
    with pytest.raises(EvaluationError, match="differ in parameters, so"):
        one.nearest(gradscore.project(net(), samples(), dim=64, parameters=["@last"]))
    with pytest.raises(EvaluationError, match="count: wanted 1 neighbour or more, got 0"):
        one.nearest(count=0)
    for count in (1.5, True, "3"):
        with pytest.raises(EvaluationError, match="count: wanted 1 neighbour or more"):
            one.nearest(count=count)
    with pytest.raises(ConfigError, match="similarity: wanted one of cosine, dot, got 'l2'"):
        one.nearest(similarity="l2")


@pytest.fixture
def small_shards(monkeypatch):
    monkeypatch.setattr("gradscore.projections.projecting.SHARD_SIZE", 5)


@pytest.fixture
def computed(monkeypatch):
    """The sizes of the batches that were projected."""
    sizes, ordinary = [], projecting.projected

    def watched(gradients, projection, batch, about):
        sizes.append(len(batch.ids))
        return ordinary(gradients, projection, batch, about)

    monkeypatch.setattr(projecting, "projected", watched)
    return sizes


@pytest.mark.usefixtures("small_shards")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_folder_holds_the_same(tmp_path, dtype):
    there = gradscore.project(net(dtype), samples(dtype), dim=64, out=tmp_path / "p")
    here = gradscore.project(net(dtype), samples(dtype), dim=64)
    read = gradscore.load_projections(tmp_path / "p")
    for found in (there, read):
        assert np.array_equal(found.values, here.values)
        assert found.values.dtype == here.values.dtype
        assert np.array_equal(found.scale, here.scale)
        assert list(found.sample_ids) == list(here.sample_ids)
        assert found.about == here.about
    assert len(list((tmp_path / "p").glob("part-*.parquet"))) == 5


@pytest.mark.usefixtures("small_shards")
def test_an_interrupted_call_goes_on(tmp_path, computed):
    gradscore.project(net(), samples(), dim=64, out=tmp_path)
    files = sorted(tmp_path.glob("part-*.parquet"))
    whole = [file.read_bytes() for file in files]
    for file in files[2:]:
        file.unlink()
    manifest = json.loads((tmp_path / projection_table.MANIFEST).read_text())
    (tmp_path / projection_table.MANIFEST).write_text(json.dumps({**manifest, "sha256": []}))
    with pytest.raises(StoreError, match="not finished; make the same call again"):
        gradscore.load_projections(tmp_path)
    computed.clear()
    gradscore.project(net(), samples(), dim=64, out=tmp_path)
    assert computed == [5, 5, 5, 5, 3]  # the first batch of every shard that is there once more, to compare
    assert [file.read_bytes() for file in files] == whole


@pytest.mark.usefixtures("small_shards")
def test_a_folder_of_something_else_is_left_alone(tmp_path):
    out = tmp_path / "p"
    images, labels = samples()
    batches = [*zip(images.split(5), labels.split(5), strict=True)]

    def project(model, batches, *, output=0, **settings):
        def of_output(model, batch):
            return model(batch[0])[:, output]

        return gradscore.project(model, batches, losses=of_output, dim=64, out=out, **settings)

    project(net(), batches)
    before = {file.name: file.read_bytes() for file in out.iterdir()}
    other = net()
    other[0].bias.data += 1
    with pytest.raises(StoreError, match=r"made with other settings \(seed\)"):
        project(net(), batches, seed=1)
    with pytest.raises(StoreError, match=r"made with other settings \(weights_sha256\)"):
        project(other, batches)
    with pytest.raises(StoreError, match="came out otherwise than those there, the first those of sample 0"):
        project(net(), batches, output=1)
    with pytest.raises(StoreError, match="projections of other samples or labels"):
        project(
            net(), [(images, labels) for images, labels in zip(images.flip(0).split(5), labels.split(5), strict=True)]
        )
    assert {file.name: file.read_bytes() for file in out.iterdir()} == before


DAMAGE = {
    "no manifest": (lambda path: (path / projection_table.MANIFEST).unlink(), "cannot be read"),
    "manifest of something else": (lambda path: (path / projection_table.MANIFEST).write_text("[]"), "damaged"),
    "no JSON": (lambda path: (path / projection_table.MANIFEST).write_text("{"), "damaged"),
    "shard missing": (lambda path: (path / "part-00001.parquet").unlink(), "missing"),
    "shard cut": (lambda path: (path / "part-00001.parquet").write_bytes(b"PAR1"), "damaged"),
}


@pytest.mark.usefixtures("small_shards")
@pytest.mark.parametrize(("damage", "message"), DAMAGE.values(), ids=DAMAGE)
def test_damaged_folders_are_refused(tmp_path, damage, message):
    gradscore.project(net(), samples(), dim=64, out=tmp_path)
    damage(tmp_path)
    with pytest.raises(StoreError, match=message):
        gradscore.load_projections(tmp_path)


LOSSES = {
    "unknown": ("nll", ConfigError, "loss: no loss 'nll'"),
    "several gradients": ("expected", ConfigError, "loss: 'expected' has several gradients; choose one of pseudo"),
    "a function": (cross_entropy, ConfigError, "loss: wanted text or None, got function"),
}  # fmt: skip


@pytest.mark.parametrize(("loss", "kind", "message"), LOSSES.values(), ids=LOSSES)
def test_losses_refused(loss, kind, message):
    with pytest.raises(kind, match=message):
        gradscore.project(net(), samples(), loss=loss, dim=64)


OTHERWISE = {
    "training": ((net().train(), samples(), {}), ModelError, "training mode"),
    "batch size": ((net(), samples(), {"batch_size": 0}), ConfigError, "batch_size: wanted 1 sample or more, got 0"),
    "no parameters": ((net(), samples(), {"parameters": []}), ConfigError, r"parameters: wanted .* got \[\]"),
    "parameters": ((net(), samples(), {"parameters": ["conv*"]}), ConfigError, "matches no parameter"),
}


@pytest.mark.parametrize(("given", "kind", "message"), OTHERWISE.values(), ids=OTHERWISE)
def test_refused(given, kind, message):
    model, data, settings = given
    with pytest.raises(kind, match=message):
        gradscore.project(model, data, dim=64, **settings)


def test_progress_and_notices():
    told = []
    model = net().requires_grad_(True)
    model[0].bias.requires_grad_(False)
    found = gradscore.project(model, samples(), dim=64, batch_size=10, progress=lambda *each: told.append(each))
    assert told == [("data", 10, 23), ("data", 20, 23), ("data", 23, 23)]
    assert found.notices == ["0.bias: frozen (requires_grad is False), so its gradient is zero"]


def test_a_query_that_is_not_finite_has_no_nearest():
    images, labels = samples()
    bank = gradscore.project(net(), (images, labels), dim=64)
    images[3] = torch.inf
    queries = gradscore.project(net(), (images, labels), dim=64)
    with pytest.raises(EvaluationError, match=r"query 3 \(sample 3\): its projection is not finite"):
        bank.nearest(queries)


def test_a_folder_keeps_all_notices(tmp_path):
    images, labels = samples()
    images[3] = torch.inf
    found = gradscore.project(net(), (images, labels), dim=64, out=tmp_path / "p")
    notice = "1 of 23 projections are not finite, the first of sample 3: the network overflows there"
    assert found.notices == [notice]
    assert np.isfinite(found.values[np.arange(N) != 3]).all()
    assert gradscore.load_projections(tmp_path / "p").notices == found.notices
    again = gradscore.project(net(), (images, labels), dim=64, out=tmp_path / "p")
    assert again.notices == found.notices


def test_nothing_of_the_model_changes():
    model = net()
    before = {name: each.clone() for name, each in model.state_dict().items()}
    gradscore.project(model, samples(), dim=64)
    assert all(torch.equal(each, before[name]) for name, each in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not model._forward_hooks


def test_shards_of_another_folder_or_place_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("gradscore.projections.projecting.SHARD_SIZE", 10)
    for name, seed in (("one", 0), ("other", 1)):
        gradscore.project(net(), samples(), dim=64, seed=seed, batch_size=5, out=tmp_path / name)
    shard = "part-00001.parquet"
    before = (tmp_path / "one" / shard).read_bytes()
    for put in (tmp_path / "other" / shard, tmp_path / "one" / "part-00000.parquet"):
        (tmp_path / "one" / shard).write_bytes(put.read_bytes())
        with pytest.raises(StoreError, match=f"{shard}: not the shard that was written here"):
            gradscore.load_projections(tmp_path / "one")
    (tmp_path / "one" / shard).write_bytes(before)
    assert len(gradscore.load_projections(tmp_path / "one")) == N
