"""Two processes that train one model: each has the figures of both at the end of an epoch."""

import io
import json
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import distributed, multiprocessing, nn
from torch.nn.parallel import DistributedDataParallel

from gradscore.errors import ConfigError
from gradscore.inspect import GradHist1d, GradientActivation, GradientGeometry, Inspector, MeanGSNR, OutputNorm
from gradscore.inspect.inspector import merge_ranks

pytestmark = pytest.mark.slow

EPOCHS, STEPS, SIZE = 2, 3, 4


def quantities():
    return [
        GradientGeometry(inplace=False, schedule=lambda step: True),
        GradientActivation(),
        OutputNorm(),
        GradHist1d(bins=5, span=(-0.1, 0.1)),
        MeanGSNR(),
    ]


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))


def batch(rank, number):
    generator = torch.Generator().manual_seed(10 * rank + number)
    return torch.randn(SIZE, 6, generator=generator), torch.randint(3, (SIZE,), generator=generator)


def watch(inspector, called, batches):
    """One epoch without steps of an optimizer, so that figures do not depend on who averages gradients."""
    for inputs, labels in batches:
        losses = F.cross_entropy(called(inputs), labels, reduction="none")
        inspector.observe_losses(losses)
        losses.mean().backward()
    inspector.tick_epoch()


def figures(inspector):
    table = inspector.table()
    return table[~table["measure"].isin(["correlation"]) & (table["layer"] != "(model)")].to_dict("records")


def totals(inspector):
    """Of all values by step: how many there are, and their sum; steps are not numbered alike."""
    steps = inspector.record().steps
    steps = steps[
        ~steps["measure"].isin(["correlation"]) & (steps["layer"] != "(model)") | (steps["measure"] == "loss")
    ]
    steps = steps.assign(total=steps["mean"] * steps["count"])
    sums = steps.groupby(["quantity", "measure", "layer"], as_index=False)[["count", "total"]].sum()
    return sums.to_dict("records")


def process(rank, folder):
    distributed.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    try:
        parallel = DistributedDataParallel(model())
        with Inspector(parallel.module, quantities()) as inspector:
            for epoch in range(EPOCHS):
                watch(inspector, parallel, [batch(rank, STEPS * epoch + step) for step in range(STEPS)])
        Path(folder, f"{rank}.json").write_text(json.dumps([figures(inspector), totals(inspector)]))
    finally:
        distributed.destroy_process_group()


def test_every_process_has_the_figures_of_all(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    sys.modules.setdefault("test_ranks", sys.modules[__name__])
    monkeypatch.setattr(sys.modules[__name__].process, "__module__", "test_ranks")
    multiprocessing.spawn(process, (str(tmp_path),), nprocs=2)
    (one, by_step), other = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2))
    assert [one, by_step] == other
    alone = model()
    with Inspector(alone, quantities()) as inspector:
        for epoch in range(EPOCHS):
            numbers = range(STEPS * epoch, STEPS * (epoch + 1))
            watch(inspector, alone, [batch(rank, number) for rank in range(2) for number in numbers])
    truth = figures(inspector)
    assert [{**row, "value": None} for row in one] == [{**row, "value": None} for row in truth]
    assert [row["value"] for row in one] == pytest.approx([row["value"] for row in truth], rel=1e-9, nan_ok=True)
    assert [{**row, "total": None} for row in by_step] == [{**row, "total": None} for row in totals(inspector)]
    truth = [row["total"] for row in totals(inspector)]
    assert [row["total"] for row in by_step] == pytest.approx(truth, rel=1e-9)


def test_processes_of_other_settings(monkeypatch):
    """The second process is played: it has what the first one has, but keeps all values."""
    monkeypatch.setattr(distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(distributed, "get_world_size", lambda: 2)
    second = io.BytesIO()
    torch.save(([("OutputNorm", False)], [OutputNorm(inplace=False).mergeable()]), second)
    monkeypatch.setattr(
        distributed, "all_gather_object", lambda found, mine: found.__setitem__(slice(None), [mine, second.getvalue()])
    )
    with pytest.raises(ConfigError, match="process 1 has other quantities"):
        merge_ranks([OutputNorm()])


@pytest.mark.parametrize(("rank", "written"), [(0, ["run.html", "run.parquet", "save.parquet"]), (1, [])])
def test_the_first_process_alone_writes_files(tmp_path, monkeypatch, rank, written):
    monkeypatch.setattr(distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(distributed, "get_rank", lambda: rank)
    with Inspector(model(), quantities()) as inspector:
        inputs, labels = batch(rank, 0)
        inspector.backward(F.cross_entropy(inspector.model(inputs), labels, reduction="none"))
        inspector.report(tmp_path / "run.html")
        inspector.save(tmp_path / "save.parquet")
    assert sorted(path.name for path in tmp_path.iterdir()) == written
