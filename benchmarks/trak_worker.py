"""Runs in TRAK's environment: projected gradients of the margins of a batch.

Arguments: weights, images, file for the projections, samples, dim, threads. Every line on standard input asks for one
timed run.
"""

import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from resnet9 import load_images, resnet9
from trak import TRAKer


def main(weights: str, images: str, target: str, samples: str, dim: str, threads: str) -> None:
    torch.set_num_threads(int(threads))
    batch = load_images(Path(images), int(samples))
    model = resnet9()
    state = torch.load(weights, weights_only=True)
    model.load_state_dict(state)
    for turn, _ in enumerate(sys.stdin):
        with tempfile.TemporaryDirectory() as folder:
            tracer = TRAKer(
                model=model.eval(), task="image_classification", train_set_size=len(batch[0]), save_dir=folder,
                device="cpu", proj_dim=int(dim), use_half_precision=False, logging_level="ERROR",
            )  # fmt: skip
            tracer.load_checkpoint(state, model_id=turn)
            start = time.process_time()
            tracer.featurize(batch=batch, num_samples=len(batch[0]))
            seconds = time.process_time() - start
            np.save(target, np.array(tracer.saver.current_store["grads"]))
        print(seconds, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
