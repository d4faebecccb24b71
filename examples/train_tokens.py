"""Training small transformers with torch's own optimizers, estimator by estimator: one run, one CSV row.

``python examples/train_tokens.py`` trains addition of two digits in base 4 with plain SGD, Adam and Muon,
each with several estimators and group sizes at one budget, and draws what ``theory/networks.md`` shows. A
run is finished or it is not there: call it again to go on. It needs torch and Matplotlib.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterator
from dataclasses import asdict, astuple, dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from ustat_pg.estimators import RunningTable, advantages
from ustat_pg.predictions import gradient_mse
from ustat_pg.problems import SoftmaxBandit, digit_addition
from ustat_pg.validation import needed

with needed("this example", "torch"):
    import torch
    from torch import Tensor

    from ustat_pg.policies.models import Model, model_of
    from ustat_pg.policies.transformer import TransformerPolicy

BUDGET, STEPS = 64, 60
"""K = BG outputs a step, and the steps of a run."""

PROBED = (0, 10, 20, 40, 60)
"""Steps at which runs of grpo at G = 4 are looked at."""

GROUP_SIZE = 4
"""G at which estimators are compared."""

CELLS = (
    ("vanilla", 4), ("oracle", 4), ("grpo", 4), ("group-mean", 4), ("std", 4), ("table", 4),
    ("grpo", 2), ("grpo", 8), ("grpo", 16),
)  # fmt: skip
"""Estimators and group sizes; ``table`` is the leave-one-out table that a run learns on its way."""

RATES = {
    "sgd": (0.8, 0.4, 0.1, 0.8, 0.1, 0.1, 0.4, 0.2, 0.2),
    "adam": (0.01, 0.01, 0.01, 0.01, 0.01, 0.01, 0.01, 0.01, 0.005),
    "muon": (0.02, 0.02, 0.02, 0.02, 0.02, 0.02, 0.02, 0.01, 0.01),
}
"""The rates, in the order of CELLS: of a grid by factors of two those that did best in 32 runs of other
seeds. The table has grpo's.
"""

PROBLEM = digit_addition(4, 1)
START = TransformerPolicy.initial(PROBLEM.space, PROBLEM.prompts, width=8, seed=20260321)
"""The policy that all runs start from."""


@dataclass(frozen=True)
class Run:
    """One training run.

    Arguments:
        optimizer: sgd, adam or muon.
        estimator, group_size: its name and G; a step has BUDGET/G prompts.
        rate: its learning rate.
        steps: their number.
        seed: seed of its prompts and outputs.
    """

    optimizer: str
    estimator: str
    group_size: int
    rate: float
    steps: int
    seed: int

    @property
    def probed(self) -> bool:
        """Whether the run is looked at on its way."""
        return (self.estimator, self.group_size) == ("grpo", GROUP_SIZE)


@dataclass(frozen=True)
class Look:
    """A policy on its way, all of it exact.

    Arguments:
        step: after how many steps.
        value: its return.
        correlation: that of ‖s‖² and reward at fixed prompts, which Assumption 2 wants to be 0.
        no_baseline: the squared error of no baseline over that of the oracle, one prompt and G = 8.
    """

    step: int
    value: float
    correlation: float
    no_baseline: float


COLUMNS = [field.name for kind in (Run, Look) for field in fields(kind)]


@cache
def model() -> Model:
    """The network, as a function of its parameters."""
    return model_of(START)


def optimizers(run: Run, parameters: dict[str, Tensor]) -> list[torch.optim.Optimizer]:
    """Torch's own; Muon takes the matrices of the hidden layers, and Adam the rest."""
    every = list(parameters.values())
    if run.optimizer == "sgd":
        return [torch.optim.SGD(every, lr=run.rate)]
    if run.optimizer == "adam":
        return [torch.optim.Adam(every, lr=run.rate)]
    hidden = {name for name, p in parameters.items() if name.startswith("layers.") and p.ndim == 2}
    muon = torch.optim.Muon(
        [parameters[name] for name in sorted(hidden)],
        lr=run.rate,
        weight_decay=0.0,
        adjust_lr_fn="match_rms_adamw",
    )
    rest = [p for name, p in parameters.items() if name not in hidden]
    return [muon, torch.optim.Adam(rest, lr=run.rate)]


def train(run: Run) -> Iterator[tuple[int, np.ndarray]]:
    """The parameters before each step and after the last."""
    random = torch.Generator().manual_seed(run.seed)
    every, rewards = torch.arange(len(PROBLEM.prompts)), torch.tensor(PROBLEM.rewards)
    parameters = {
        name: part.clone().requires_grad_()
        for name, part in START.unflatten(torch.tensor(START.theta)).items()
    }
    stepping, table = optimizers(run, parameters), RunningTable(run.group_size)
    for step in range(run.steps + 1):
        theta = torch.cat([part.flatten() for part in parameters.values()])
        yield step, theta.detach().numpy().copy()
        if step == run.steps:
            return
        # All 16 outputs of all 16 prompts: one pass both draws and differentiates.
        log_probs = model().all_log_probs(theta, every)
        probs = log_probs.detach().exp()
        prompts = torch.randint(len(every), (BUDGET // run.group_size,), generator=random)
        drawn = torch.multinomial(probs[prompts], run.group_size, True, generator=random)
        won = rewards[prompts].gather(1, drawn)
        if run.estimator == "table":
            weights = torch.tensor(table.advantages(won.numpy()))
        elif run.estimator == "oracle":
            weights = advantages("oracle", won, value=(probs * rewards).sum(1)[prompts])
        else:
            weights = advantages(run.estimator, won)
        loss = -(weights * log_probs[prompts].gather(1, drawn)).mean()
        for optimizer in stepping:
            optimizer.zero_grad()
        loss.backward()
        for optimizer in stepping:
            optimizer.step()


def correlation(bandit: SoftmaxBandit) -> float:
    """E[‖s‖² a] / √(E Var(‖s‖² | X) · E σ²(X)); 0 where either does not vary."""
    moments, probs = bandit.moments(), bandit.policy.probs
    off = bandit.policy.squared_norms - moments.fisher_trace[:, None]
    rho = moments.context_probs
    scale = float((rho @ (probs * off**2).sum(axis=1)) * (rho @ moments.reward_variance)) ** 0.5
    return float(rho @ moments.norm_advantage) / scale if scale > 0 else 0.0


def look(step: int, theta: np.ndarray, whole: bool) -> Look:
    """The policy at some parameters; its return alone unless all is asked."""
    bandit = PROBLEM.bandit(START.with_theta(theta))
    if not whole:
        return Look(step, bandit.objective(), np.nan, np.nan)
    none, oracle = (
        gradient_mse(bandit.moments(), name, 8, 1).mse for name in ("vanilla", "oracle")
    )
    return Look(step, bandit.objective(), correlation(bandit), none / oracle)


def runs(seeds: int, steps: int = STEPS) -> list[Run]:
    """All of them, seed by seed, so that an interrupted study has a little of everything."""
    return [
        Run(optimizer, estimator, group_size, rate, steps, seed)
        for seed in range(seeds)
        for optimizer, rates in RATES.items()
        for (estimator, group_size), rate in zip(CELLS, rates, strict=True)
    ]


def study(file: Path, wanted: list[Run]) -> None:
    """Add the rows of the runs that the file lacks."""
    known: set[tuple[str, ...]] = set()
    if file.exists():
        with file.open(newline="") as lines:
            rows = list(csv.DictReader(lines))
        known = {tuple(row[name] for name in COLUMNS[: len(fields(Run))]) for row in rows}
    missing = [run for run in wanted if tuple(map(str, astuple(run))) not in known]
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a", newline="") as lines:
        table = csv.DictWriter(lines, COLUMNS)
        if not lines.tell():
            table.writeheader()
        for run in tqdm(missing, desc="runs", unit="run"):
            looks = [
                look(step, theta, run.probed)
                for step, theta in train(run)
                if step == run.steps or (run.probed and step in PROBED)
            ]
            for place in looks:
                numbers = {k: f"{v:.4g}" if v == v else "" for k, v in asdict(place).items()}
                table.writerow(asdict(run) | numbers)
            lines.flush()


OPTIMIZERS = {"sgd": "plain SGD", "adam": "Adam", "muon": "Muon"}
NAMES = {"vanilla": "none", "oracle": "oracle", "grpo": "grpo", "group-mean": "mean", "std": "std"}
NAMES["table"] = "table"


def draw(frame: Any, target: Path) -> None:
    """Above the return by estimator and by group size, below the runs of grpo on their way."""
    import matplotlib.pyplot as plt

    plt.rcParams |= {
        "svg.hashsalt": "",
        "font.size": 8,
        "axes.titlesize": 8,
        "axes.spines.top": False,
    }
    plt.rcParams |= {"axes.spines.right": False}
    figure, axes = plt.subplots(2, 3, figsize=(7.2, 4.6), layout="constrained")
    last = frame[frame["step"] == frame["steps"]]
    for axis, (optimizer, title) in zip(axes[0], OPTIMIZERS.items(), strict=True):
        runs = last[last["optimizer"] == optimizer].groupby(["estimator", "group_size"])["value"]
        mean, error = runs.mean(), 1.96 * runs.sem().fillna(0)
        by_name = [(name, GROUP_SIZE) for name in NAMES]
        by_size = [("grpo", size) for size in sorted({size for _, size in CELLS})]
        ticks = [*NAMES.values(), *(f"{size}" for _, size in by_size)]
        places = [*range(len(by_name)), *range(len(by_name) + 1, len(ticks) + 1)]
        for cells, at, look in (
            (by_name, places[: len(by_name)], "s"),
            (by_size, places[len(by_name) :], "o-"),
        ):
            heights = [mean[cell] for cell in cells]
            axis.errorbar(at, heights, [error[cell] for cell in cells], fmt=look, ms=3.5, lw=1)
        axis.set_xticks(places, ticks, rotation=90)
        axis.set(title=title, ylim=(0, 1.15 * float((mean + error).max())))
    axes[0, 0].set_ylabel(f"return after {frame['steps'].max()} steps")
    probed = frame[frame["correlation"].notna()]
    for axis, (column, title) in zip(
        axes[1],
        {
            "value": "return of grpo, G = 4",
            "correlation": r"correlation of $\|s\|^2$ and reward",
            "no_baseline": "error of no baseline / the oracle's",
        }.items(),
        strict=True,
    ):
        for optimizer, name in OPTIMIZERS.items():
            runs = probed[probed["optimizer"] == optimizer].groupby("step")[column]
            axis.errorbar(runs.mean().index, runs.mean(), 1.96 * runs.sem(), label=name, lw=1)
        axis.axhline({"value": 0, "correlation": 0, "no_baseline": 1}[column], color="0.7", lw=0.7)
        axis.set(title=title, xlabel="steps")
    axes[1, 0].legend(frameon=False)
    figure.savefig(target, metadata={"Date": None} if target.suffix == ".svg" else None)
    plt.close(figure)


def main(arguments: list[str] | None = None) -> None:
    """Train what is missing, then draw."""
    import pandas as pd

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("results/train_tokens"), metavar="FOLDER")
    parser.add_argument("--seeds", type=int, default=32, help="runs of each cell (default: 32)")
    parser.add_argument("--steps", type=int, default=STEPS, help=f"of a run (default: {STEPS})")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    file = options.out / "train_tokens.csv"
    study(file, runs(options.seeds, options.steps))
    draw(pd.read_csv(file), options.out / "train_tokens.svg")
    print(f"{file}, and its figure beside it")


if __name__ == "__main__":
    main()
