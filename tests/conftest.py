"""A finished run of a small model, made once for all tests that only read it, and the devices that tests run on.

Tests that ask for `device` run on the processor and on the accelerator that PyTorch finds, if any; with `--device NAME`
they alone run, on the devices that are named. `elsewhere` is one of the tests' own (`tests/support/elsewhere.py`).
"""

import re
from collections.abc import Callable, Sequence
from pathlib import Path

import elsewhere
import pytest
import torch
from devices import devices
from matplotlib.figure import Figure
from net_configs import digits, net_config
from report_runs import report_copy, report_evaluation, report_run  # noqa: F401  fixtures of several folders
from safetensors.torch import save_file
from torch import nn

from gradscore.config import Config
from gradscore.deployment import make_bundle, write_bundle
from gradscore.evaluation import evaluate_run, fit_run
from gradscore.pipeline import extract
from gradscore.reporting import Plot
from gradscore.store import RunFolder

ASKS = re.compile(r"def \w+\([^)]*\bdevice\b")
"""A function with an argument of that name."""

NET = """
from torch import nn


def net():
    return nn.Sequential(nn.Conv2d(1, 4, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(36, 10))
"""


def pytest_addoption(parser: pytest.Parser) -> None:
    text = "Run tests that are for any device, and those alone, on this one; may be given several times."
    parser.addoption("--device", action="append", metavar="NAME", help=text)


def pytest_configure(config: pytest.Config) -> None:
    if elsewhere.NAME in (config.getoption("--device") or ()):
        elsewhere.register()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    # With --device, files in which nothing asks for one need not be imported.
    named = config.getoption("--device") and collection_path.suffix == ".py"
    return True if named and not ASKS.search(collection_path.read_text(encoding="utf-8")) else None


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "device" in metafunc.fixturenames:
        names = devices(metafunc.config.getoption("--device"))
        metafunc.parametrize("device", names, indirect=True, scope="session")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--device"):
        others = [item for item in items if "device" not in getattr(item, "fixturenames", ())]
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if item not in set(others)]


@pytest.fixture(scope="session")
def device(request: pytest.FixtureRequest) -> str:
    """The name of a device."""
    name: str = request.param
    return name


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> dict[str, Figure]:
    """The figures of pages that the test writes, by name."""
    found: dict[str, Figure] = {}
    draw = Plot.drawn

    def noting(plot: Plot) -> bytes:
        found[plot.name] = plot.figure
        return draw(plot)

    monkeypatch.setattr(Plot, "drawn", noting)
    return found


def run_config(
    folder: Path,
    *,
    calibration: bool = True,
    bank: dict[str, object] | None = None,
    ood: Sequence[dict[str, object]] = (),
    shifted: Sequence[dict[str, object]] = (),
    features: dict[str, object] | None = None,
    meta: dict[str, object] | None = None,
    **extract_options: object,
) -> Config:
    """Settings of a run on scikit-learn's digits with a model that is right about half the time."""
    in_dist = {"fit": digits(0, 150), "test": digits(150, 300)}
    if calibration:
        in_dist["calibration"] = digits(300, 420)
    if bank is not None:
        in_dist["bank"] = {"source": "sklearn:digits", "select": bank}
    return net_config(
        folder,
        NET,
        model={"checkpoint": folder / "net.safetensors"},
        preprocessing={"mean": [0.5], "std": [0.5]},
        in_dist=in_dist,
        ood=[{"source": "synthetic:gaussian_noise", "name": "noise", "select": {"stop": 80}}, *ood],
        shifted=shifted,
        features={
            "statistics": ["max", "l1", "l2"],
            "losses": ["uniform"],
            "penultimate": bank is not None or "augmentations" in (features or {}),
            **(features or {}),
        },
        extract={"batch_size": 50, **extract_options},
        meta={"Cs": [0.01], "cv_folds": 2, **(meta or {})},
        evaluate={"protocols": ["known"]},
    )


def trained(folder: Path, *, steps: int = 60) -> None:
    """Trains the model of a folder a little, on samples no split has."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = torch.tensor(digits.images[500:], dtype=torch.float32).unsqueeze(1) / 8 - 1
    labels = torch.tensor(digits.target[500:])
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(1, 4, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(36, 10))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        for _ in range(steps):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
    save_file(model.state_dict(), folder / "net.safetensors")


def finished_run(config: Config, *, evaluate: bool = True) -> Path:
    """Extracts, fits and evaluates; returns the run folder."""
    extract(config, trust_code=True)
    fit_run(RunFolder(config.run))
    if evaluate:
        evaluate_run(RunFolder(config.run))
    return config.run


@pytest.fixture(scope="session")
def small_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run folder, with its model beside it; not to be changed."""
    folder = tmp_path_factory.mktemp("small")
    trained(folder)
    return finished_run(run_config(folder))


@pytest.fixture(scope="session")
def small_bundle(small_run: Path) -> Path:
    """A bundle of `small_run` with weights inside; not to be changed."""
    path = small_run.parent / "small.gradscore"
    write_bundle(path, make_bundle(RunFolder(small_run), alpha=0.1, with_weights=True, trust_code=True))
    return path


@pytest.fixture(scope="session")
def make_run(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Makes another run of the same kind; `damage` changes the folder of its model, options go to `run_config`."""

    def make(
        *,
        damage: Callable[[Path], None] | None = None,
        steps: int = 60,
        evaluate: bool = True,
        **options: object,
    ) -> Path:
        folder = tmp_path_factory.mktemp("other")
        trained(folder, steps=steps)
        if damage is not None:
            damage(folder)
        return finished_run(run_config(folder, **options), evaluate=evaluate)

    return make
