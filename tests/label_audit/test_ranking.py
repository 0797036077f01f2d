"""The ranking of labels against figures computed another way, and what it refuses."""

import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
import torch.nn.functional as F
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold
from sklearn.preprocessing import StandardScaler
from torch import nn

import gradscore
from gradscore.errors import ConfigError, DataError
from gradscore.label_audit import last_layers, ranked
from gradscore.label_audit.last_layers import cross_fitted, with_network
from gradscore.label_audit.noise import WrongLabels
from gradscore.label_audit.ranking import _share, of_the_network

CLASSES = 3
FLIPS = {4: 2, 17: 0, 40: 0, 63: 1}
"""Wrong labels by place; the true class of a sample is its place modulo three."""


def blobs(samples: int = 90) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Samples of three classes far apart, their labels with some of them wrong, and the true ones."""
    torch.manual_seed(5)
    truth = torch.arange(samples) % CLASSES
    inputs = 4 * F.one_hot(truth, 4).float() + torch.randn(samples, 4)
    given = truth.clone()
    given[list(FLIPS)] = torch.tensor(list(FLIPS.values()))
    return inputs, given, truth


@pytest.fixture(scope="module")
def net() -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, CLASSES)).eval()
    nn.init.eye_(model[0].weight)
    return model


@pytest.fixture(scope="module")
def found(net: nn.Module) -> gradscore.Audit:
    inputs, given, _ = blobs()
    return gradscore.audit(net, (inputs, given), class_names=["ant", "bee", "cat"])


def test_names_may_come_one_by_one(net: nn.Module, found: gradscore.Audit) -> None:
    inputs, given, _ = blobs()
    again = gradscore.audit(net, (inputs, given), class_names=iter(["ant", "bee", "cat"]), seed=np.int64(0))
    assert again.class_names == found.class_names
    pd.testing.assert_frame_equal(again.table, found.table)


def test_flipped_labels_come_first(found: gradscore.Audit) -> None:
    head = found.table.head(len(FLIPS))
    assert set(head["place"]) == set(FLIPS)
    assert (head["suggested"] == head["place"] % CLASSES).all()
    assert head["suspected"].all()
    assert found.table["rank"].tolist() == list(range(1, 91))
    assert (np.diff(found.table["score"]) <= 0).all()
    assert sorted(found.table["place"]) == list(range(90))


def trained(net: nn.Module, *, turned: int = 0) -> nn.Module:
    """A network that knows the classes, under names that are turned."""
    model = nn.Sequential(*net[:2], nn.Linear(6, CLASSES)).eval()
    with torch.no_grad():
        model[2].weight.copy_(8 * torch.eye(CLASSES, 6).roll(turned, 0))
        model[2].bias.zero_()
    return model


def test_how_many_are_wrong_is_said(net: nn.Module) -> None:
    inputs, given, _ = blobs()
    found = gradscore.audit(trained(net), (inputs, given))
    _, low, high, _ = found.wrong
    assert low <= len(FLIPS) <= high <= 10
    assert (low, found.sentence) == (0, f"0 to {high} of 90 labels are wrong (95 %)")


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    {
        (20, 9, 31, 31): "about 20 of 90 labels are wrong (95 %: 9 to 31)",
        (20, 9, 31, 45): "about 20 of 90 labels are wrong (95 %: 9 to 31), or up to 45 if mistakes are between similar "
        "classes",
        (20, 2, 31, 31): "2 to 31 of 90 labels are wrong (95 %)",
        (20, 0, 31, 45): "0 to 31 of 90 labels are wrong (95 %), or up to 45 if mistakes are between similar classes",
        (0, 0, 2, 2): "0 to 2 of 90 labels are wrong (95 %)",
    }.items(),
)
def test_what_is_not_known_to_be_wrong_is_not_said_to_be(
    found: gradscore.Audit, wrong: tuple[int, ...], sentence: str
) -> None:
    assert replace(found, wrong=WrongLabels(*wrong), doubt=None).sentence == sentence


def test_labels_that_the_network_has_memorised_are_said(net: nn.Module) -> None:
    """Of 300 labels 60 are wrong; the network agrees with nearly all of them, what is fitted to others does not."""
    torch.manual_seed(0)
    truth = torch.arange(300) % CLASSES
    inputs = 2 * F.one_hot(truth, 8).float() + torch.randn(300, 8)
    given = truth.clone()
    given[::5] = (given[::5] + 1) % CLASSES
    model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, CLASSES))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(600):
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), given).backward()
        optimizer.step()
    found = gradscore.audit(model.eval(), (inputs, given))
    network, layers = found.memorised
    assert network == pytest.approx(float((model(inputs).argmax(1) == given).float().mean()))
    assert (given != truth).sum() > found.wrong.high
    assert found.sentence.endswith(
        f"wrong (95 %), or many more if the network has memorised wrong ones: it agrees with {network:.0%} of "
        f"the labels, and last layers that are fitted to other samples with {layers:.0%}"
    )
    assert gradscore.audit(trained(net), blobs()[:2]).memorised is None


def test_many_classes_that_look_alike_are_not_said_to_have_wrong_labels() -> None:
    """A network that knows the densities of 40 classes predicts 78 % of the samples right, and no label is wrong."""
    random = np.random.default_rng(0)
    centres = 0.9 * random.normal(size=(40, 14))
    labels = np.repeat(np.arange(40), 30)
    inputs = torch.tensor(centres[labels] + random.normal(size=(1200, 14))).float()
    net = nn.Sequential(nn.Linear(14, 14), nn.Linear(14, 40)).eval()
    with torch.no_grad():
        net[0].weight.copy_(torch.eye(14))
        net[0].bias.zero_()
        net[1].weight.copy_(torch.tensor(centres))
        net[1].bias.copy_(-torch.tensor(centres**2).sum(dim=1) / 2)
        assert (net(inputs).argmax(dim=1).numpy() == labels).mean() == pytest.approx(0.78, abs=0.02)
    said = gradscore.audit(net, (inputs, torch.tensor(labels))).sentence
    assert re.match(
        r"\d to \d+ of 1,200 labels are wrong \(95 %\), or up to \d+ if mistakes are between similar classes", said
    )


def test_what_the_network_says_is_that_of_pytorch(found: gradscore.Audit, net: nn.Module) -> None:
    inputs, given, _ = blobs()
    table = found.table.sort_values("place")
    logits = net(inputs).detach().double()
    np.testing.assert_allclose(table["loss"], F.cross_entropy(logits, given, reduction="none"), rtol=1e-5)
    others = logits.masked_fill(F.one_hot(given, CLASSES).bool(), -torch.inf).amax(1)
    np.testing.assert_allclose(table["margin"], others - logits.gather(1, given[:, None])[:, 0], atol=1e-5)
    np.testing.assert_allclose(table["el2n"], (logits.softmax(1) - F.one_hot(given, CLASSES)).norm(dim=1), rtol=1e-5)
    assert table["prediction"].tolist() == logits.argmax(1).tolist()


def test_gradient_norms_are_those_of_one_backward_pass_for_each_sample(found, net: nn.Module) -> None:
    inputs, given, _ = blobs()
    norms = []
    for sample, label in zip(inputs, given, strict=True):
        gradients = torch.autograd.grad(F.cross_entropy(net(sample[None]), label[None]), list(net.parameters()))
        norms.append(float(torch.cat([each.flatten() for each in gradients]).norm()))
    np.testing.assert_allclose(found.table.sort_values("place")["grand"], norms, rtol=1e-4)


def test_neighbours_are_counted_by_brute_force(found: gradscore.Audit, net: nn.Module) -> None:
    inputs, given, _ = blobs()
    features = F.normalize(net[:2](inputs).detach().double(), dim=1)
    likeness = (features @ features.T).fill_diagonal_(-torch.inf)
    nearest = given[likeness.topk(30).indices]
    table = found.table.sort_values("place")
    suggested = torch.tensor(table["suggested"].to_list())
    assert table["neighbours_label"].tolist() == (nearest == given[:, None]).sum(1).tolist()
    assert table["neighbours_suggested"].tolist() == (nearest == suggested[:, None]).sum(1).tolist()
    first = found.table.iloc[0]
    of_other = torch.where(given == first["suggested"], likeness[first["place"]], -torch.inf)
    assert found.nearest[first["place"]] == of_other.topk(4).indices.tolist()
    assert first["nearest_suggested"] == " ".join(map(str, of_other.topk(4).indices.tolist()))


def test_samples_are_judged_by_others_without_those_that_are_doubted() -> None:
    """Written out for one fold: four fits to three fifths, each class without its tenth, and a fit to the rest."""
    inputs, given, _ = blobs()
    features, labels = inputs.double().numpy(), given.numpy()
    found = cross_fitted(features, labels, CLASSES, seed=0)
    folds = [judged for _, judged in StratifiedKFold(5, shuffle=True, random_state=0).split(features, labels)]
    judged, *others = folds
    losses = np.full(len(labels), np.nan)
    for each in others:
        fit = np.concatenate([part for part in others if part is not each])
        losses[each] = -fitted(features, labels, fit, each)[np.arange(len(each)), labels[each]]
    kept = []
    for label in range(CLASSES):
        members = [place for place in np.concatenate(others) if labels[place] == label]
        kept += [place for place in members if losses[place] <= np.quantile(losses[members], 0.9)]
    np.testing.assert_allclose(found[judged], fitted(features, labels, np.sort(kept), judged), rtol=1e-6)


def fitted(features, labels, fit, judged):
    scaler = StandardScaler().fit(features[fit])
    head = LogisticRegression(C=0.01, max_iter=200, class_weight="balanced")
    head.fit(scaler.transform(features[fit]), labels[fit])
    return np.log(head.predict_proba(scaler.transform(features[judged])))


def test_no_sample_is_judged_by_a_fit_that_saw_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is said of a sample does not depend on its label, nor on its class being there that often."""
    inputs, given, _ = blobs()
    features, labels = inputs.double().numpy(), given.numpy()
    folds = last_layers._folds(labels, None, seed=0)
    monkeypatch.setattr(last_layers, "_folds", lambda *_, **__: folds)
    before = cross_fitted(features, labels, CLASSES, seed=0)
    for place in (0, 4, 17, 60):
        other = labels.copy()
        other[place] = (labels[place] + 1) % CLASSES
        np.testing.assert_array_equal(cross_fitted(features, other, CLASSES, seed=0)[place], before[place])


@pytest.mark.parametrize("rare", [100, 20, 12])
def test_right_labels_of_a_rare_class_are_not_suspected(rare: int) -> None:
    generator = np.random.default_rng(rare)
    labels = np.repeat([0, 1], [2000, rare])
    features = generator.standard_normal((len(labels), 10))
    features[:, 0] += np.where(labels == 0, 2.5, -2.5)
    log_p = cross_fitted(features, labels, 2, seed=0)
    suspected = log_p[np.arange(len(labels)), 1 - labels] > log_p[np.arange(len(labels)), labels]
    assert suspected[labels == 1].mean() <= 0.2
    assert suspected[labels == 0].mean() <= 0.02


def test_copies_count_once() -> None:
    """Many easy copies of one sample say no more of the others of its class than one does."""
    generator = np.random.default_rng(1)
    labels = np.repeat([0, 1], [100, 60])
    features = generator.standard_normal((len(labels), 5))
    features[:, 0] += np.where(labels == 0, 1.5, -1.5)
    content = np.arange(len(labels)).astype(str)
    alone = cross_fitted(features, labels, 2, seed=0, content=content)
    more = np.concatenate([features, np.repeat(features[[120]], 300, axis=0)])
    copies = np.concatenate([content, np.repeat(content[[120]], 300)])
    found = cross_fitted(more, np.concatenate([labels, np.ones(300, dtype=np.int64)]), 2, seed=0, content=copies)
    np.testing.assert_array_equal(found[: len(labels)], alone)


def test_nothing_but_copies_with_all_labels_is_refused() -> None:
    labels, content = (np.arange(100) + np.arange(100) // 10) % 10, np.repeat(np.arange(10), 10).astype(str)
    features = np.random.default_rng(0).standard_normal((10, 3))[np.repeat(np.arange(10), 10)]
    with pytest.raises(DataError, match="copies with different labels; remove copies"):
        cross_fitted(features, labels, 10, seed=0, content=content)


def test_losses_of_samples_that_fit_well_keep_their_digits() -> None:
    """As small as float64 can say: at a margin of 40 the softmax of the label is one."""
    logits = np.array([[40.0, 0.0, 1.0], [0.0, 800.0, -5.0], [3.0, 1.0, 2.0]])
    labels = np.array([0, 1, 1])
    found = of_the_network(logits, labels)
    exact = [np.exp(-40.0) + np.exp(-39.0), np.exp(-800.0), np.logaddexp(np.logaddexp(3.0, 1.0), 2.0) - 1.0]
    np.testing.assert_allclose(found["loss"], exact, rtol=1e-12, atol=0)
    small = [np.exp(-40.0), np.exp(-39.0)]
    np.testing.assert_allclose(found["el2n"][0], np.hypot(np.hypot(*small), sum(small)), rtol=1e-12)


def test_copies_with_another_label_are_named(net: nn.Module) -> None:
    inputs, given, _ = blobs()
    inputs[10] = inputs[5] = inputs[7]
    found = gradscore.audit(net, (inputs, given)).table.set_index("place")
    assert found.loc[5, "reason"].endswith("an exact copy is labelled 1")
    assert found.loc[7, "reason"].endswith("an exact copy is labelled 2")
    assert found.loc[10, "reason"].endswith("an exact copy is labelled 2")
    assert "copy" not in found.loc[8, "reason"]


def test_augmentations_that_cost_accuracy_are_left_out_and_named() -> None:
    torch.manual_seed(1)
    labels = torch.arange(60) % 2
    images = torch.randn(60, 1, 8, 8) / 10
    images[:, :, :, :4] += labels[:, None, None, None]
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 2)).eval()
    with torch.no_grad():
        net[1].bias.zero_()
        net[1].weight.copy_(torch.tensor([[-1.0], [1.0]]) * (torch.arange(64) % 8 < 4) / 32)
        net[1].bias[0] = 0.5
    found = gradscore.audit(net, (images, labels))
    assert found.notices == ["augmentations that cost the classifier too much accuracy were left out: mirror"]


class TwoHeads(nn.Module):
    """Has another linear layer behind the one that makes the logits."""

    def __init__(self, core: nn.Module) -> None:
        super().__init__()
        self.core, self.aside = core, nn.Linear(4, 4)

    def forward(self, inputs: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"main": self.core(inputs), "aside": self.aside(inputs)}


def test_the_layer_that_makes_the_logits_is_found_among_several(net: nn.Module) -> None:
    inputs, given, _ = blobs()
    alone = gradscore.audit(net, (inputs, given))
    beside = gradscore.audit(TwoHeads(net).eval(), (inputs, given), output="main")
    pd.testing.assert_frame_equal(beside.table, alone.table)


LABELS = {
    "few of a class": (lambda given: given.where(torch.arange(90) > 80, 0), r"class 1 has 3, class 2 has 3"),
    "one class": (torch.zeros_like, "wanted samples of two classes or more, got 1"),
}


WRONG = [{"penultimate": False}, {"class_names": ["ant"]}, {"class_names": "abc"}, {"seed": "a"}, {"seed": -1}]


@pytest.mark.parametrize("wrong", WRONG, ids=str)
def test_arguments_are_looked_at_first(net: nn.Module, wrong: dict) -> None:
    inputs, given, _ = blobs()
    told: list[int] = []
    with pytest.raises((ConfigError, DataError), match=f"{next(iter(wrong))}: wanted"):
        gradscore.audit(net, (inputs, given), batch_size=10, progress=lambda *_: told.append(1), **wrong)
    assert not told


@pytest.mark.parametrize(("labels", "message"), LABELS.values(), ids=LABELS)
def test_labels_that_cannot_be_audited_are_refused(net: nn.Module, labels, message: str) -> None:
    inputs, given, _ = blobs()
    with pytest.raises(DataError, match=message):
        gradscore.audit(net, inputs if labels is None else (inputs, labels(given)))


def test_copies_are_one_sample_of_their_class(net: nn.Module) -> None:
    inputs, given, _ = blobs()
    inputs[given == 1] = inputs[given == 1][:3].repeat(10, 1)[: int((given == 1).sum())]
    with pytest.raises(DataError, match=r"wanted 10 different samples .* \(class 1 has 3\)"):
        gradscore.audit(net, (inputs, given))


def test_a_table_without_penultimate_features_is_refused(net: nn.Module) -> None:
    inputs, given, _ = blobs()
    table = gradscore.features(net, (inputs, given), losses=["label"], penultimate=False)
    with pytest.raises(DataError, match="wanted penultimate features, got none"):
        ranked(table)


@pytest.mark.filterwarnings("ignore::gradscore.GradientWarning")
def test_a_sample_that_is_not_finite_is_named(net: nn.Module) -> None:
    inputs, given, _ = blobs()
    inputs[7, 0] = torch.nan
    with pytest.raises(DataError, match="1 of 90 samples have values that are not finite, the first of them 7"):
        gradscore.audit(net, (inputs, given))


def test_copies_do_not_vouch_for_one_another(net: nn.Module) -> None:
    """Eight copies with one wrong label are judged by the other samples, and are not neighbours of each other."""
    inputs, given, _ = blobs()
    place = next(iter(FLIPS))
    copies = torch.cat([inputs, inputs[[place] * 8]]), torch.cat([given, given[[place] * 8]])
    table = gradscore.audit(net, copies).table.set_index("place")
    assert table.loc[[place, *range(90, 98)], "suspected"].all()
    assert table.loc[90, "neighbours_label"] <= table.loc[90, "neighbours_suggested"]


def test_fewer_samples_than_neighbours_are_counted_as_they_are() -> None:
    torch.manual_seed(0)
    labels = torch.arange(24) % 2
    inputs = torch.randn(24, 4) + 3 * labels[:, None]
    net = nn.Sequential(nn.Linear(4, 2)).eval()
    table = gradscore.audit(net, (inputs, labels)).table
    assert table["reason"].str.contains(" of the 23 nearest samples").all()
    assert (table["neighbours_label"] <= 11).all()


def test_labels_in_another_order_are_said(net: nn.Module) -> None:
    inputs, _, truth = blobs()
    turned = trained(net, turned=1)
    assert (turned(inputs).argmax(1) == truth).float().mean() < 0.1
    found = gradscore.audit(turned, (inputs, truth))
    assert "would be 1.000 with the classes in another order: labels are probably in that other order" in found.sentence
    assert "labels are wrong" not in found.sentence
    assert "in another order" in repr(found)
    right = gradscore.audit(turned, (inputs, (truth + 1) % CLASSES))
    assert right.doubt is None
    assert "labels are wrong" in right.sentence


def test_two_of_six_classes_that_are_exchanged_are_said() -> None:
    torch.manual_seed(0)
    truth = torch.arange(180) % 6
    inputs = 5 * F.one_hot(truth, 6).float() + torch.randn(180, 6)
    net = nn.Linear(6, 6, bias=False).eval()
    nn.init.eye_(net.weight)
    assert gradscore.audit(net, (inputs, truth)).doubt is None
    found = gradscore.audit(net, (inputs, torch.tensor([1, 0, 2, 3, 4, 5])[truth]))
    assert "with the classes in another order" in found.sentence


def test_labels_of_something_else_are_said_where_one_class_is_rare() -> None:
    """The network and the labels say 0 nine times in ten: they agree in .82, as they would by chance."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(600, 2, generator=generator)
    net = nn.Linear(2, 2)
    with torch.no_grad():
        net.weight.copy_(torch.tensor([[0.0, 0.0], [4.0, 0.0]]))
        net.bias.copy_(torch.tensor([0.0, -5.1]))
    labels = (torch.rand(600, generator=generator) < 0.1).long()
    found = gradscore.audit(net.eval(), (inputs, labels))
    assert found.doubt is not None
    assert "which is chance" in found.doubt
    assert gradscore.audit(net, (inputs, net(inputs).argmax(1))).doubt is None


def test_a_network_at_chance_is_said_in_place_of_a_count(found: gradscore.Audit) -> None:
    assert "accuracy by these labels is 0.322, which is chance: " in found.sentence


def test_a_network_that_predicts_one_class_alone_says_nothing_of_labels() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 2)).eval()
    with torch.no_grad():
        net[0].weight.zero_()
        net[0].bias.copy_(torch.tensor([1.0, -2.0]))
    labels = (torch.arange(200) % 10 < 3).long()  # 70 % are of the class that is predicted
    found = gradscore.audit(net, (torch.randn(200, 4), labels))
    assert found.sentence.startswith("the network predicts class 0 for every sample, and 60 have other labels")


def test_the_score_is_of_both_probabilities(found: gradscore.Audit) -> None:
    table = found.table
    logs = np.log(table["label_probability"]), np.log(table["suggested_probability"])
    np.testing.assert_allclose(table["score"], logs[1] / 2 - logs[0], rtol=1e-9)


def test_the_network_has_one_half_on_the_scale_of_the_rest() -> None:
    """Worked by hand: log-odds of the other class are -1 and 1, those of the network three times as far apart."""
    log_p, labels = np.log(np.array([[0.6, 0.4], [0.3, 0.7]])), np.array([0, 1])
    odds = log_p[[0, 1], labels] - log_p[[0, 1], 1 - labels]
    logits = np.array([[3 * odds[1], 0.0], [0.0, 3 * odds[0]]])
    found = with_network(log_p, logits, labels)
    np.testing.assert_allclose(found[[0, 1], labels] - found[[0, 1], 1 - labels], [odds.mean()] * 2)
    np.testing.assert_allclose(np.exp(found).sum(axis=1), 1)


def test_a_network_that_has_memorised_the_labels_is_left_out() -> None:
    random = np.random.default_rng(0)
    labels = random.integers(0, 3, 200)
    log_p = np.log(random.dirichlet(np.ones(3), 200))
    assert with_network(log_p, 9.0 * F.one_hot(torch.tensor(labels), 3).double().numpy(), labels) is log_p


@pytest.mark.parametrize(("spread", "weaker"), [(9.0, False), (0.02, True)], ids=["large", "small"])
def test_the_penalty_is_weaker_where_other_samples_are_predicted_better(
    monkeypatch, spread: float, weaker: bool
) -> None:
    """Two features that nearly agree tell the classes apart by their small difference, which a strong penalty hides."""
    random, used = np.random.default_rng(0), set()
    labels = random.integers(0, 2, 600)
    common, difference = random.normal(size=600), spread * (4 * labels - 2 + random.normal(size=600))
    judged = last_layers._judged

    def noted(*arguments, penalty: float, **settings):
        used.add(penalty) if len(settings["judged"]) > 150 else None  # two folds at once: the choice is made
        return judged(*arguments, penalty=penalty, **settings)

    monkeypatch.setattr(last_layers, "_judged", noted)
    cross_fitted(np.stack([common, common + difference], axis=1), labels, 2, seed=0)
    assert (min(used) > last_layers.PENALTIES[0]) == weaker


@pytest.mark.parametrize(
    ("probability", "words"),
    [(0.0, "below 1 %"), (0.01, "1 %"), (0.5, "50 %"), (0.99, "99 %"), (0.996, "above 99 %"), (1.0, "100 %")],
)
def test_a_probability_in_words_is_certain_only_where_it_is_one(probability: float, words: str) -> None:
    assert _share(probability) == words


def test_features_that_say_nothing_of_other_samples_are_said() -> None:
    """A network that has learnt noise by heart agrees with most labels; four of five labels were said to be wrong."""
    generator = torch.Generator().manual_seed(0)
    inputs, labels = torch.randn(300, 120, generator=generator), torch.arange(300) % 5
    net = nn.Linear(120, 5)
    with torch.no_grad():
        targets = F.one_hot(labels, 5).float()
        net.weight.copy_(30 * torch.linalg.lstsq(inputs, targets).solution.T)
        net.bias.zero_()
    assert (net(inputs).argmax(1) == labels).float().mean() > 0.6
    found = gradscore.audit(net.eval(), (inputs, labels))
    assert found.doubt is not None
    assert "last layers that are fitted to other samples agree with" in found.sentence
    assert "labels are wrong" not in found.sentence
