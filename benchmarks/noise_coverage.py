"""How often the intervals of the monitor of noise hold while the policy moves: each window beside a pool.

    python -m benchmarks.noise_coverage            four embedded models; an hour on one core

A model trains with leave-one-out advantages and AdamW. Each window of steps ends with the monitor's
estimate; the weights of its middle are kept, and a pool of rollouts is drawn and scored from them
afterwards. Counted is in how many windows each 95% interval has the pool's value, and in how many it
meets the pool's own 95% interval: the pool errs too.
"""

from __future__ import annotations

import argparse
import copy
import os
import tempfile
import warnings
from collections import Counter
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import torch
from tabulate import tabulate
from transformers import PrinterCallback, TrainerCallback

from ustat_pg.llm import NoiseMonitor
from ustat_pg.llm.estimates import ConstantsEstimate, constants
from ustat_pg.llm.models import LanguageModel, load_model
from ustat_pg.llm.pairs import NoiseEstimate
from ustat_pg.llm.pipeline import collect, score
from ustat_pg.llm.prompts import Task
from ustat_pg.llm.tasks import load_task
from ustat_pg.llm.trainers import build_trainer
from ustat_pg.llm.training import Training

MODELS = ("embedded:base", "embedded:strong", "embedded:in-context", "embedded:short")
NAMES = ("c1", "c2", "c3", "gradient_sq", "g_star", "k_crit")
GROUP, MICRO_BATCH, OUTPUTS = 8, 8, 128


class Windows(TrainerCallback):
    """The monitor's estimate at the end of each window, and the weights of its middle."""

    def __init__(self, monitor: NoiseMonitor) -> None:
        self.monitor = monitor
        self.estimates: list[NoiseEstimate] = []
        self.weights: list[dict[str, torch.Tensor]] = []

    def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Keep what this step ends or halves."""
        window = self.monitor.window
        if state.global_step % window == window // 2:
            self.weights.append(copy.deepcopy(given["model"].state_dict()))
        if state.global_step % window == 0:
            self.estimates.append(self.monitor.estimate())


def trained(model: LanguageModel, task: Task, windows: int, window: int, rate: float) -> Windows:
    """A training of so many windows, and what was kept of it."""
    training = Training(
        GROUP, OUTPUTS, windows * window, rate, optimizer="adamw", micro_batch=MICRO_BATCH,
        max_new_tokens=task.max_new_tokens,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        trainer = build_trainer(training, model, task, folder)
        trainer.remove_callback(PrinterCallback)
        monitor = NoiseMonitor(window)
        monitor.watch(trainer)
        # Behind the monitor, which takes up the step first.
        kept = Windows(monitor)
        trainer.add_callback(kept)
        trainer.train()
    return kept


def pooled(model: LanguageModel, task: Task, rollouts: int, seed: int) -> ConstantsEstimate:
    """What a pool of the model as it is says."""
    return constants(score(model, collect(model, task, rollouts, seed=seed)))


def interval(found: ConstantsEstimate, name: str) -> tuple[float, float, float]:
    """The pool's value, and its interval."""
    if name == "g_star":
        value, ends = found.g_star_exact, found.g_star_interval()
    elif name == "k_crit":
        value, ends = found.k_crit, found.k_crit_interval()
    else:
        value, ends = getattr(found, name), found.interval(name)
    return np.inf if value is None else value, *ends


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", default=MODELS)
    parser.add_argument("--windows", type=int, default=6)
    parser.add_argument("--window", type=int, default=50)
    parser.add_argument("--prompts", type=int, default=500)
    parser.add_argument("--rollouts", type=int, default=24)
    parser.add_argument("--rate", type=float, default=1e-4)
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    counted, rows = Counter[str](), []
    for name in asked.models:
        task = load_task(name, limit=asked.prompts)
        kept = trained(load_model(name), task, asked.windows, asked.window, asked.rate)
        for number, (told, weights) in enumerate(zip(kept.estimates, kept.weights, strict=True)):
            model = load_model(name)
            model.model.load_state_dict(weights)
            pool = pooled(model, task, asked.rollouts, number)
            row = [name.removeprefix("embedded:"), number]
            for quantity in NAMES:
                value, low, high = interval(pool, quantity)
                least, most = getattr(told, f"{quantity}_interval")
                inside, meets = least <= value <= most, least <= high and low <= most
                counted[quantity] += inside
                counted[f"{quantity}, met"] += meets
                sign = "" if inside else "*" if meets else "**"
                row.append(f"{least:.3g} to {most:.3g}, {value:.3g}{sign}")
            rows.append(row)
            print(row, flush=True)
    print(tabulate(rows, ["model", "window", *NAMES], disable_numparse=True))
    print("* outside the interval, ** and outside the pool's own too")
    for quantity in NAMES:
        inside, meets = counted[quantity], counted[f"{quantity}, met"]
        print(f"{quantity}: {inside} of {len(rows)} windows; {meets} met")


if __name__ == "__main__":
    main()
