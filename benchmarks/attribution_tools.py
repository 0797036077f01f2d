"""Products of the gradients of a language model's sequences, beside tools for attribution.

    OMP_NUM_THREADS=1 python benchmarks/attribution_tools.py --write docs/benchmarks.md

The model is a GPT-2 with random weights and tied embeddings; the loss is the cross entropy of the next token, averaged
over each sequence. Wanted are the products of the gradients of all pairs of sequences, by all parameters. Times are CPU
time in units of training steps with the same batches in the same process, medians of several runs after a first one,
which is the only one of a tool that takes minutes.
Errors are the largest difference to products of gradients of one backward pass each in float64, relative to the norms.
Peers run in an environment of their own, each as its documentation says.
"""

import argparse
import copy
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from environments import ROOT, python_with
from gpt2 import build, seconds
from pages import put_table
from torch import Tensor, nn

REQUIREMENTS = ("traker==0.3.2", "dattri==0.3.0", "captum==0.9.0", "kronfluence==1.0.1", "transformers==5.23.0")
CONFIG = {"n_embd": 256, "n_layer": 4, "n_head": 4, "vocab_size": 5000, "n_positions": 256}
SAMPLES, BATCH, LENGTH, DIM = 32, 8, 64, 512

SLOW = 120
"""Seconds from which a tool's first run is its only one."""

Products = Callable[[], Tensor]
"""Makes the products (N, N) anew."""


def texts() -> Tensor:
    return torch.randint(0, CONFIG["vocab_size"], (SAMPLES, LENGTH), generator=torch.Generator().manual_seed(1))


def losses(model: nn.Module, words: Tensor) -> Tensor:
    logits = model(input_ids=words, use_cache=False).logits[:, :-1]
    return F.cross_entropy(logits.transpose(1, 2), words[:, 1:], reduction="none").mean(1)


def one_by_one(model: nn.Module) -> Tensor:
    """(N, P) float64."""
    model = copy.deepcopy(model).double()
    rows = []
    for words in texts():
        found = torch.autograd.grad(losses(model, words[None]).sum(), list(model.parameters()))
        rows.append(torch.cat([each.flatten() for each in found]))
    return torch.stack(rows)


def of_gradscore(model: nn.Module) -> Products:
    import gradscore

    return lambda: torch.from_numpy(gradscore.project(model, texts().split(BATCH), losses=losses, dim=DIM).dot())


def of_trak(model: nn.Module) -> Products:
    from trak import TRAKer
    from trak.modelout_functions import AbstractModelOutput

    class LanguageModel(AbstractModelOutput):
        @staticmethod
        def get_output(model: nn.Module, weights: Any, buffers: Any, words: Tensor) -> Tensor:
            inputs = {"input_ids": words.unsqueeze(0), "use_cache": False}
            logits = torch.func.functional_call(model, (weights, buffers), args=(), kwargs=inputs).logits[0, :-1]
            return F.cross_entropy(logits, words[1:])

        @staticmethod
        def get_out_to_loss_grad(*given: Any) -> Tensor:
            return torch.ones(len(given[-1][0]), 1)

    def run() -> Tensor:
        with tempfile.TemporaryDirectory() as folder:
            tracer = TRAKer(
                model=model, task=LanguageModel, train_set_size=SAMPLES, save_dir=folder, device="cpu", proj_dim=DIM,
                use_half_precision=False, logging_level="ERROR",
            )  # fmt: skip
            tracer.load_checkpoint(model.state_dict(), model_id=0)
            for batch in texts().split(BATCH):
                tracer.featurize(batch=[batch], num_samples=BATCH)
            found = torch.as_tensor(np.array(tracer.saver.current_store["grads"])).double()
        # Signs that are not over the root of their number, and gradients over the root of theirs.
        return found @ found.T / DIM * sum(each.numel() for each in model.parameters())

    return run


def of_dattri(model: nn.Module) -> Products:
    from dattri.algorithm.tracin import TracInAttributor
    from dattri.task import AttributionTask
    from torch.utils.data import DataLoader, TensorDataset

    def loss(parameters: Any, batch: Any) -> Tensor:
        words = batch[0]
        words = words.unsqueeze(0) if words.dim() == 1 else words
        inputs = {"input_ids": words, "use_cache": False}
        logits = torch.func.functional_call(model, parameters, args=(), kwargs=inputs).logits[:, :-1]
        return F.cross_entropy(logits.flatten(0, 1), words[:, 1:].flatten())

    task = AttributionTask(loss_func=loss, model=model, checkpoints=model.state_dict())
    attributor = TracInAttributor(task=task, weight_list=torch.ones(1), normalized_grad=False, device="cpu")
    loader = DataLoader(TensorDataset(texts()), batch_size=BATCH)

    def run() -> Tensor:
        with torch.no_grad():
            return attributor.attribute(loader, loader)

    return run


class _Logits(nn.Module):
    """A model of Captum's kind: one tensor in, one out."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, words: Tensor) -> Tensor:
        return self.model(input_ids=words, use_cache=False).logits[:, :-1]


class _Mean(nn.Module):
    """Cross entropy, averaged over each sequence; one for each, or their sum."""

    def __init__(self, reduction: str) -> None:
        super().__init__()
        self.reduction = reduction

    def forward(self, logits: Tensor, words: Tensor) -> Tensor:
        each = F.cross_entropy(logits.transpose(1, 2), words, reduction="none").mean(1)
        return each.sum() if self.reduction == "sum" else each


def of_captum(model: nn.Module, *, per_batch: bool) -> Products:
    from captum.influence import TracInCP
    from torch.utils.data import TensorDataset

    words = texts()
    pairs = (words, words[:, 1:])
    tracer = TracInCP(
        _Logits(model), TensorDataset(*pairs), [0], checkpoints_load_func=lambda *_: 1.0,
        loss_fn=_Mean("sum" if per_batch else "none"), batch_size=BATCH, sample_wise_grads_per_batch=per_batch,
    )  # fmt: skip
    return lambda: tracer.influence(pairs)


def of_kronfluence(model: nn.Module, *, as_linear: bool) -> Products:
    from kronfluence.analyzer import Analyzer, prepare_model
    from kronfluence.arguments import FactorArguments, ScoreArguments
    from kronfluence.task import Task
    from torch.utils.data import TensorDataset

    class LanguageModel(Task):
        def compute_train_loss(self, batch: Any, model: nn.Module, **_: Any) -> Tensor:
            return losses(model, batch[0]).sum()

        def compute_measurement(self, batch: Any, model: nn.Module) -> Tensor:
            return losses(model, batch[0]).sum()

    if as_linear:
        _replace_layers(model)
    folder = tempfile.mkdtemp()
    task = LanguageModel()
    analyzer = Analyzer("products", prepare_model(model, task), task, cpu=True, output_dir=folder, disable_tqdm=True)
    samples = TensorDataset(texts())
    factors = FactorArguments(strategy="identity")
    analyzer.fit_all_factors("identity", samples, per_device_batch_size=BATCH, factor_args=factors)

    def run() -> Tensor:
        analyzer.compute_pairwise_scores(
            "scores", "identity", samples, samples, per_device_query_batch_size=BATCH,
            per_device_train_batch_size=BATCH, score_args=ScoreArguments(), overwrite_output_dir=True,
        )  # fmt: skip
        return analyzer.load_pairwise_scores("scores")["all_modules"]

    return run


def _replace_layers(model: nn.Module) -> None:
    """Puts linear layers in the place of the transposed ones that GPT-2 has."""
    from transformers.pytorch_utils import Conv1D

    for module in list(model.modules()):
        for name, layer in list(module.named_children()):
            if isinstance(layer, Conv1D):
                linear = nn.Linear(*layer.weight.shape)
                linear.weight.data, linear.bias.data = layer.weight.data.T.contiguous(), layer.bias.data
                setattr(module, name, linear)


TOOLS: dict[str, tuple[str, Callable[[nn.Module], Products]]] = {
    "gradscore": (f"gradscore, {DIM} numbers", of_gradscore),
    "trak": (f"TRAK, {DIM} numbers", of_trak),
    "dattri": ("dattri, TracIn", of_dattri),
    "captum": ("Captum, TracInCP, one by one", lambda model: of_captum(model, per_batch=False)),
    "captum batch": ("Captum, TracInCP, by batches", lambda model: of_captum(model, per_batch=True)),
    "kronfluence": ("Kronfluence", lambda model: of_kronfluence(model, as_linear=False)),
    "kronfluence linear": ("Kronfluence, changed model", lambda model: of_kronfluence(model, as_linear=True)),
}


def work(name: str, runs: int) -> dict[str, Any]:
    """Measures one tool in this process."""
    warnings.simplefilter("ignore")
    model = build(**CONFIG)
    gradients = one_by_one(model)
    truth, norms = gradients @ gradients.T, gradients.norm(dim=1)

    def steps() -> None:
        for batch in texts().split(BATCH):
            model.zero_grad(set_to_none=True)
            losses(model, batch).mean().backward()

    products = TOOLS[name][1](build(**CONFIG))
    start = time.process_time()
    found = products().detach().double()
    first = time.process_time() - start
    taken = {
        "steps": [seconds(time.process_time, steps) for _ in range(runs + 1)][1:],
        "products": [first] if first > SLOW else [seconds(time.process_time, products) for _ in range(runs)],
    }
    error = float(((found - truth).abs() / norms / norms[:, None]).max())
    return {"steps": statistics.median(taken["products"]) / statistics.median(taken["steps"]), "error": error}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--python", help="an interpreter with all peers, instead of a new environment")
    parser.add_argument("--write", type=Path, help="put the table into this file, in the place of an earlier one")
    parser.add_argument("--worker", choices=TOOLS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        print(json.dumps(work(options.worker, options.runs)))
        return
    peers = options.python or python_with("attribution", *REQUIREMENTS)
    lines = ["| tool | training steps | largest error |", "|---|---|---|"]
    for name, (said, _) in TOOLS.items():
        ours = name == "gradscore"
        environment = {**os.environ, "HF_HUB_OFFLINE": "1", **({"PYTHONPATH": str(ROOT)} if ours else {})}
        command = [str(sys.executable if ours else peers), __file__, "--worker", name, "--runs", str(options.runs)]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
        found = json.loads(done.stdout.splitlines()[-1])
        print(name, found, file=sys.stderr, flush=True)
        lines.append(f"| {said} | {found['steps']:.1f} | {found['error']:.1e} |")
    threads = torch.get_num_threads()
    parameters = sum(each.numel() for each in build(**CONFIG).parameters())
    size = f"{SAMPLES} sequences of {LENGTH} tokens in batches of {BATCH}"
    head = f"GPT-2 of {parameters:,} parameters, {size}, {threads} thread(s), CPU time."
    put_table(Path(__file__).name, "\n".join([head, "", *lines]), options.write)


if __name__ == "__main__":
    main()
