"""How often the intervals of the monitor of noise hold: on a known law, and while the policy moves.

    python -m benchmarks.noise_coverage --law      250 windows of each model; 6 min on one core
    python -m benchmarks.noise_coverage            12 windows of each model; an hour on one core

``--law``: a language model's rollouts, with their scores, are taken to be all that a prompt can draw. So
the constants are known exactly, and steps of a trainer are drawn from that law. Coverage has the error of
the number of windows alone.

Without it a model trains with leave-one-out advantages and AdamW, on prompts that hardly come again. Each
window of steps ends with the monitor's estimate; the weights of some of its steps are kept, evenly spaced,
and at each a pool of other prompts is drawn and scored. The window's value is the mean over these pools:
the monitor's is a mean over the window too. A pool errs, so that even a perfect 95% interval of the
monitor has the pool's value less often than it has the true one: at equal errors 83% of the time. Two
counts are made. The interval has the pool's value; or it does once both errors are counted, each end
going out to √((end - estimate)² + (1.96 SE of the pool)²), which has the rate of the true value.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from statsmodels.stats.proportion import proportion_confint
from tabulate import tabulate
from transformers import PrinterCallback, TrainerCallback

from ustat_pg.estimators import grpo
from ustat_pg.llm import NoiseMonitor, embedded
from ustat_pg.llm.estimates import constants
from ustat_pg.llm.models import LanguageModel, load_model
from ustat_pg.llm.moments import Means
from ustat_pg.llm.pairs import NoiseEstimate, estimate_noise, step_sums
from ustat_pg.llm.pipeline import collect, score
from ustat_pg.llm.prompts import Task
from ustat_pg.llm.scores import Scores
from ustat_pg.llm.trainers import build_trainer
from ustat_pg.llm.training import Training

MODELS = ("base", "strong", "in-context", "short")
NAMES = ("c1", "c2", "c3", "gradient_sq", "g_star", "k_crit", "phi_over_tau")
GROUP, MICRO_BATCH, OUTPUTS = 8, 8, 128

Array = NDArray[np.float64]


def seven(known: Array) -> Array:
    """NAMES of c1, c2, c3 and ‖g‖², (..., 4)."""
    c1, c2, c3, signal = np.moveaxis(known, -1, 0)
    noise = c1 + c2 + 2 * np.sqrt(np.maximum(c1 * c3, 0.0))
    within = c1 + signal
    with np.errstate(divide="ignore", invalid="ignore"):
        budget = np.where(signal > 0, noise / signal, np.inf)
        derived = [1 + np.sqrt(c3 / c1), budget, (c3 - within) / (c2 + within)]
    return np.stack([c1, c2, c3, signal, *derived], axis=-1)


def row(found: NoiseEstimate, values: Array, errors: Array) -> list[dict[str, Any]]:
    """What the estimate of a window and the value, with its error, say of each number."""
    rows = []
    for name, value, error in zip(NAMES, values, errors, strict=True):
        estimate, (low, high) = getattr(found, name), getattr(found, f"{name}_interval")
        # Where there is no estimate, as of G* where c1 is negative, ends are the interval's.
        apart = [abs(estimate - end) if np.isfinite(estimate) else 0.0 for end in (low, high)]
        more = [np.hypot(each, 1.96 * error) - each if np.isfinite(each) else 0.0 for each in apart]
        rows.append(
            {
                "name": name,
                "value": value,
                "estimate": estimate,
                "ratio": error / getattr(found, f"{name}_se"),
                "has": low <= value <= high,
                "with both errors": low - more[0] <= value <= high + more[1],
                "above": value > high,
            }
        )
    return rows


# A known law.


class Law:
    """Rollouts of a model as all that its prompts can draw.

    Arguments:
        name: of an embedded model.
        prompts, rollouts: P and N.
        numbers: of the sketch of a score, whose coordinates are the scores of the law.
    """

    def __init__(
        self, name: str, prompts: int = 300, rollouts: int = 48, numbers: int = 1024
    ) -> None:
        model = load_model(f"embedded:{name}")
        pools = collect(model, embedded.task(name, problems=prompts), rollouts, seed=99)
        scores = Scores(model.model, sketch=numbers)
        sketches = [
            scores.of(r.prompt_ids, r.completion_ids, np.eye(rollouts)).sketches for r in pools
        ]
        self.rewards = np.array([r.rewards for r in pools], dtype=float)
        drawn = np.array(sketches)
        # E s = 0 at each prompt.
        self.scores = drawn - drawn.mean(axis=1, keepdims=True)
        self.norms = (self.scores**2).sum(axis=2)

    def values(self) -> Array:
        """NAMES, exactly."""
        apart = self.rewards - self.rewards.mean(axis=1, keepdims=True)
        gradients = np.einsum("pn,pnk->pk", apart, self.scores) / apart.shape[1]
        within, signal = (gradients**2).sum(axis=1).mean(), (gradients.mean(axis=0) ** 2).sum()
        tau = (apart**2 * self.norms).mean()
        phi = ((apart**2).mean(axis=1) * self.norms.mean(axis=1)).mean()
        return seven(np.array([within - signal, tau - within, phi + within, signal]))

    def step(self, rng: np.random.Generator) -> Array:
        """The sums of one step."""
        prompts = rng.integers(len(self.rewards), size=(OUTPUTS // GROUP, 1))
        drawn = rng.integers(self.rewards.shape[1], size=(len(prompts), GROUP))
        advantages = grpo(self.rewards[prompts, drawn])
        terms = (advantages[..., None] * self.scores[prompts, drawn]).reshape(OUTPUTS, -1)
        squares = (advantages * ((GROUP - 1) / GROUP)) ** 2
        others = (squares.sum(axis=1, keepdims=True) - squares * (GROUP / (GROUP - 1))) / (
            GROUP - 2
        )
        norms = self.norms[prompts, drawn]
        # Of completions whose advantage is 0 the monitor sees no norm.
        phi = (others * norms)[advantages != 0].sum()
        tau = (advantages**2 * norms).sum() - phi / (GROUP - 1)
        order = rng.permutation(OUTPUTS).reshape(-1, MICRO_BATCH)
        h = terms[order].sum(axis=1)
        return step_sums(h @ h.T, order // GROUP, [phi, tau])


def law_windows(name: str, asked: argparse.Namespace) -> Iterator[list[dict[str, Any]]]:
    """Rows of windows drawn from the law of a model, window by window."""
    law, rng = Law(name), np.random.default_rng(asked.seed)
    values = law.values()
    for number in range(asked.windows):
        steps = np.array([law.step(rng) for _ in range(asked.window)])
        found = row(estimate_noise(steps, GROUP), values, np.zeros(len(NAMES)))
        yield [{"model": name, "window": number} | each for each in found]


# A training.


class Windows(TrainerCallback):
    """The monitor's estimate at the end of each window, and the weights of some of its steps."""

    def __init__(self, monitor: NoiseMonitor, checkpoints: int) -> None:
        self.monitor, self.checkpoints = monitor, checkpoints
        self.estimates: list[NoiseEstimate] = []
        self.weights: list[list[dict[str, torch.Tensor]]] = [[]]

    def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Keep what this step ends, or is in the middle of."""
        window, step = self.monitor.window, (state.global_step - 1) % self.monitor.window
        # The middles of as many equal parts.
        if step in (np.arange(self.checkpoints) + 0.5) * window // self.checkpoints:
            self.weights[-1].append(copy.deepcopy(given["model"].state_dict()))
        if step == window - 1:
            self.estimates.append(self.monitor.estimate())
            self.weights.append([])


def trained(model: LanguageModel, task: Task, asked: argparse.Namespace) -> Windows:
    """A training, and what was kept of it."""
    training = Training(
        GROUP, OUTPUTS, asked.windows * asked.window, asked.rate, optimizer="adamw",
        micro_batch=MICRO_BATCH, max_new_tokens=task.max_new_tokens, seed=asked.seed,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        trainer = build_trainer(training, model, task, folder)
        trainer.remove_callback(PrinterCallback)
        monitor = NoiseMonitor(asked.window).watch(trainer)
        # Behind the monitor, which takes up the step first.
        kept = Windows(monitor, asked.checkpoints)
        trainer.add_callback(kept)
        trainer.train()
    return kept


def pooled(model: LanguageModel, task: Task, rollouts: int, seed: int) -> Means:
    """c1, c2, c3 and ‖g‖² of a pool of the model as it is."""
    found = constants(score(model, collect(model, task, rollouts, seed=seed), gram=False))
    return found.means.apply(lambda each: each[..., [0, 1, 2, 4]])


def mean_of(pools: list[Means]) -> Means:
    """The mean over independent pools."""
    full = np.mean([each.full for each in pools], axis=0)
    return Means(full, np.concatenate([full + (p.without - p.full) / len(pools) for p in pools]))


def training_windows(name: str, asked: argparse.Namespace) -> Iterator[list[dict[str, Any]]]:
    """Rows of the windows of one training, window by window: of the mean over it, and of its middle."""
    count = asked.windows * asked.window * OUTPUTS // GROUP
    more = asked.windows * asked.checkpoints * asked.prompts
    every = embedded.task(name, problems=count + more, seed=asked.seed)

    def part(first: int, size: int) -> Task:
        prompts = every.prompts[first : first + size]
        return Task(every.name, prompts, every.verifier, every.max_new_tokens)

    kept = trained(load_model(f"embedded:{name}"), part(0, count), asked)
    number = 0
    for window, (told, weights) in enumerate(zip(kept.estimates, kept.weights, strict=False)):
        pools = []
        for state in weights:
            model = load_model(f"embedded:{name}")
            model.model.load_state_dict(state)
            prompts = part(count + number * asked.prompts, asked.prompts)
            pools.append(pooled(model, prompts, asked.rollouts, number))
            number += 1
        for where, found in (("mean", mean_of(pools)), ("middle", pools[len(pools) // 2])):
            known = found.apply(seven)
            rows = row(told, known.full, known.se)
            yield [{"model": name, "window": window, "of": where} | each for each in rows]


def table(rows: pd.DataFrame) -> str:
    """A line for each number: how often it is covered, and how large the pool's error is."""
    lines = []
    for name in NAMES:
        one = rows[rows["name"] == name]
        line: list[object] = [name]
        for kind in ("has", "with both errors"):
            hits = int(one[kind].sum())
            low, high = proportion_confint(hits, len(one), method="beta")
            line.append(f"{hits} of {len(one)} ({hits / len(one):.1%}; {low:.0%} to {high:.0%})")
        ratio = np.sqrt(np.nanmean(one["ratio"] ** 2))
        lines.append([*line, f"{one['above'].mean():.1%}", f"{ratio:.2f}"])
    head = ["", "interval has the value", "with both errors", "value above", "SE of pool over SE"]
    return tabulate(lines, head, tablefmt="github", disable_numparse=True)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--law", action="store_true", help="a known law, without training")
    parser.add_argument("--models", nargs="+", default=MODELS, choices=MODELS)
    parser.add_argument("--windows", type=int, help="of each model")
    parser.add_argument("--window", type=int, default=50)
    parser.add_argument("--checkpoints", type=int, default=3, help="of a window, at each a pool")
    parser.add_argument("--prompts", type=int, default=500, help="of a pool")
    parser.add_argument("--rollouts", type=int, default=8, help="of each prompt")
    parser.add_argument("--rate", type=float, default=1e-4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="a file for all windows, JSON")
    asked = parser.parse_args()
    asked.windows = asked.windows or (250 if asked.law else 12)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    rows = []
    for name in asked.models:
        for some in (law_windows if asked.law else training_windows)(name, asked):
            rows += some
            if asked.out:
                asked.out.write_text(json.dumps(rows, default=bool))
    found = pd.DataFrame(rows)
    groups = ["model"] if asked.law else ["of"]
    for key, part in found.groupby(groups):
        print(f"\n{key[0]}\n\n{table(part)}")


if __name__ == "__main__":
    main()
