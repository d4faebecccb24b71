"""Return of networks trained with fixed groups and with groups of two stages, at equal outputs.

``python examples/train_two_stages.py`` trains small transformers on addition of two digits in base 4 from
two starts, untrained and half trained, with plain SGD and with Adam: fixed groups of 4, 8 and 16; a pilot
of 4 and 12 more where it is mixed; the same without its correction. Each has the rate of a grid that
does best in runs of other seeds. ``--model embedded:base`` trains a language model with TRL instead, from
``ustat_pg.llm``. Results are rows of a CSV file; a run that stands there is not made again.
``theory/adaptive_groups.md`` shows them.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import cache
from itertools import groupby
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.stats import t as student

from ustat_pg.estimators import grpo, two_stage
from ustat_pg.predictions import plan_cost
from ustat_pg.problems import digit_addition
from ustat_pg.validation import needed

with needed("this example", "torch"):
    import torch
    from torch import Generator, Tensor

    from ustat_pg.policies.models import model_of
    from ustat_pg.policies.transformer import TransformerPolicy

BUDGET, STEPS = 64, 60
"""Outputs of a step, in the mean, and steps of a run."""

METHODS = ("fixed 4", "fixed 8", "fixed 16", "4+12", "4+12 uncorrected")
TUNING = 10_000
"""The first seed of the runs that choose a rate."""

RATES = {
    ("untrained", "sgd"): (0.1, 0.2, 0.4, 0.8, 1.6),
    ("untrained", "adam"): (0.0025, 0.005, 0.01, 0.02, 0.04),
    ("half trained", "sgd"): (0.0125, 0.025, 0.05, 0.1, 0.2),
    ("half trained", "adam"): (0.00125, 0.0025, 0.005, 0.01),
}
"""Starts and optimizers, and the grid of their rates, the same for every method."""

MODEL_RATES = (0.0005, 0.001, 0.002, 0.004, 0.008)
"""The grid of a language model."""
PROBLEM = digit_addition(4, 1)
TRL = {
    "per_device_train_batch_size": BUDGET, "max_completion_length": 30, "held_out": 200,
    "num_generations_eval": 4, "per_device_eval_batch_size": 400, "use_cpu": True, "threads": 1,
    "gradient_accumulation_steps": 1, "report_to": "none", "eval_on_start": False,
}  # fmt: skip


Step = tuple[Tensor, int, float]


@dataclass(frozen=True)
class Run:
    """One training run: where it starts, its optimizer, its method, its rate and its seed."""

    start: str
    optimizer: str
    method: str
    rate: float
    steps: int
    seed: int


@cache
def start(name: str) -> TransformerPolicy:
    """The policy that runs start from; the half trained one solves some prompts and few others."""
    policy = TransformerPolicy.initial(PROBLEM.space, PROBLEM.prompts, width=8, seed=20260321)
    if name == "untrained":
        return policy
    theta = torch.tensor(policy.theta).requires_grad_()
    adam, rewards = torch.optim.Adam([theta], lr=0.01), torch.tensor(PROBLEM.rewards)
    every, log_probs = torch.arange(len(rewards)), model_of(policy).all_log_probs
    # Exact ascent, at which some prompts are learned before others.
    while (value := (log_probs(theta, every).exp() * rewards).sum(1).mean()) < 0.5:
        adam.zero_grad()
        (-value).backward()
        adam.step()
    return policy.with_theta(theta.detach().numpy().copy())


def surrogate(run: Run, log_probs: Tensor, drawn: int, mixed: float, random: Generator) -> Step:
    """One step's estimate of a run: a value whose gradient it is, outputs drawn and mixed pilots' share."""
    words = run.method.split()
    pilot, more = (int(words[1]), 0) if words[0] == "fixed" else map(int, words[0].split("+"))
    number = max(1, min(round((BUDGET - drawn) / (pilot + more * mixed)), BUDGET // pilot))
    probs, rewards = log_probs.detach().exp(), torch.tensor(PROBLEM.rewards)
    prompts = torch.randint(len(rewards), (number,), generator=random)
    outputs = torch.multinomial(probs[prompts], pilot, True, generator=random)
    won = rewards[prompts].gather(1, outputs)
    value = (grpo(won) * log_probs[prompts].gather(1, outputs)).mean(1)
    if not more:
        return value.mean(), number * pilot, 1.0
    goes_on = (won != won[:, :1]).any(1)
    value, chosen = value[~goes_on].sum(), prompts[goes_on]
    if len(chosen):
        rest = torch.multinomial(probs[chosen], more, True, generator=random)
        outputs = torch.cat([outputs[goes_on], rest], 1)
        won = rewards[chosen].gather(1, outputs)
        weights = grpo(won) if words[-1] == "uncorrected" else two_stage(won, pilot=pilot)
        value = value + (weights * log_probs[chosen].gather(1, outputs)).mean(1).sum()
    return value / number, number * pilot + len(chosen) * more, len(chosen) / number


def train(runs: list[Run]) -> list[tuple[np.ndarray, int]]:
    """The last parameters of each run and its outputs in all; the runs differ in method, rate and seed."""
    policy, every = start(runs[0].start), torch.arange(len(PROBLEM.prompts))
    randoms = [Generator().manual_seed(run.seed) for run in runs]
    thetas = [torch.tensor(policy.theta).requires_grad_() for _ in runs]
    optimizer_type = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}[runs[0].optimizer]
    optimizer = optimizer_type(
        [{"params": [th], "lr": run.rate} for th, run in zip(thetas, runs, strict=True)]
    )
    all_log_probs = torch.func.vmap(model_of(policy).all_log_probs, (0, None))
    drawn, mixed = [0] * len(runs), [1.0] * len(runs)
    for step in range(runs[0].steps):
        optimizer.zero_grad()
        value = torch.zeros(())
        # One pass for all runs; the outputs that earlier steps owe decide on the number of prompts.
        for i, log_probs in enumerate(all_log_probs(torch.stack(thetas), every)):
            ahead = drawn[i] - BUDGET * step
            objective, outputs, share = surrogate(runs[i], log_probs, ahead, mixed[i], randoms[i])
            value, drawn[i] = value + objective, drawn[i] + outputs
            mixed[i] += 0.2 * (share - mixed[i])
        (-value).backward()
        optimizer.step()
    return [(theta.detach().numpy(), total) for theta, total in zip(thetas, drawn, strict=True)]


def networks(runs: list[Run]) -> list[dict[str, float]]:
    """The return after each run, and the outputs of a step in the mean."""
    results = []
    for run, (theta, drawn) in zip(runs, train(runs), strict=True):
        value = PROBLEM.bandit(start(run.start).with_theta(theta)).objective()
        results.append({"value": value, "drawn": drawn / run.steps})
    return results


def language_model(run: Run, folder: Path) -> dict[str, float]:
    """The same of one run of a language model, whose return is the mean reward of held-out prompts."""
    from ustat_pg.llm.trl.training import FINISHED, main

    words = run.method.split()
    kind = "rloo" if words[0] == "fixed" else "-".join(["two-stage", *words[1:]])
    first, _, more = words[-1 if kind == "rloo" else 0].partition("+")
    out = folder / "runs" / "-".join(map(str, asdict(run).values())).replace(" ", "-")
    settings = TRL | {
        "model": run.start, "task": run.start, "trainer": f"{kind}:{more}" if more else kind,
        "num_generations": first, "learning_rate": run.rate, "max_steps": run.steps,
        "eval_steps": run.steps, "seed": run.seed, "output_dir": out,
    }  # fmt: skip
    if not (out / FINISHED).exists() and main([f"--{k}={v}" for k, v in settings.items()]):
        raise SystemExit(f"{run} failed")
    log = json.loads((out / FINISHED).read_text())["log"]
    drawn = [row["completions/drawn"] for row in log if "completions/drawn" in row]
    value = next(row["eval_reward"] for row in reversed(log) if "eval_reward" in row)
    return {"value": value, "drawn": float(np.mean(drawn)) if drawn else float(BUDGET)}


def kind(run: Run) -> tuple[str, str]:
    """Runs of one kind are trained at once."""
    return run.start, run.optimizer


def batched(runs: Iterable[Run]) -> Iterator[list[Run]]:
    """Sixty runs of networks at a time, and one of a language model."""
    rest = list(runs)
    size = 1 if rest[0].optimizer == "trl" else 60
    return (rest[i : i + size] for i in range(0, len(rest), size))


def study(folder: Path, wanted: list[Run]) -> pd.DataFrame:
    """All rows; the runs that the file lacks are made first."""
    file = folder / "train_two_stages.csv"
    folder.mkdir(parents=True, exist_ok=True)
    names = [*asdict(wanted[0]), "value", "drawn"]
    with file.open("a+", newline="") as lines:
        lines.seek(0)
        known = {tuple(row[name] for name in names[:-2]) for row in csv.DictReader(lines)}
        table = csv.DictWriter(lines, names)
        if not known:
            table.writeheader()
        missing = [r for r in wanted if tuple(map(str, asdict(r).values())) not in known]
        groups = groupby(sorted(missing, key=kind), kind)
        batches = [batch for _, group in groups for batch in batched(group)]
        for batch in batches:
            if batch[0].optimizer == "trl":
                results = [language_model(run, folder) for run in batch]
            else:
                results = networks(batch)
            for run, result in zip(batch, results, strict=True):
                table.writerow(asdict(run) | {k: f"{v:.4g}" for k, v in result.items()})
            lines.flush()
    return pd.read_csv(file)


def chosen(frame: pd.DataFrame) -> pd.DataFrame:
    """The runs of the seeds that are shown, each at the rate that did best in those that tune."""
    cell = ["start", "optimizer", "method"]
    tuning = frame[frame["seed"] >= TUNING].groupby([*cell, "rate"])["value"].mean()
    best = tuning.groupby(cell).idxmax().map(lambda key: key[-1])
    shown = frame[frame["seed"] < TUNING].merge(best.rename("best").reset_index(), on=cell)
    return shown[shown["rate"] == shown["best"]]


def interval(differences: pd.Series) -> str:
    """A mean with its 95% interval by Student's t."""
    number = len(differences)
    half = student.ppf(0.975, number - 1) * differences.std() / number**0.5
    return f"{differences.mean():+.3f} ± {half:.3f}"


def predicted(start_of: str, method: str) -> str:
    """Outputs times noise at a network's start, over those of fixed groups of 4; of what is unbiased."""
    if start_of.startswith("embedded:") or "uncorrected" in method:
        return ""
    moments = PROBLEM.bandit(start(start_of)).moments()
    plan = f"{method} if mixed" if "+" in method else method.removeprefix("fixed ")
    return f"{plan_cost(moments, plan) / plan_cost(moments, '4'):.2f}"


def summary(frame: pd.DataFrame) -> pd.DataFrame:
    """Mean return of each method, and paired differences to the two-stage method."""
    rows, shown = {}, chosen(frame)
    for cell, part in shown.groupby(["start", "optimizer"]):
        by_seed = part.pivot(index="seed", columns="method", values="value")
        for method in METHODS:
            of_method = part[part["method"] == method]
            pairs = (by_seed["4+12"] - by_seed[method]).dropna()
            rows[(*cell, method)] = {
                "rate": of_method["rate"].iloc[0],
                "outputs a step": of_method["drawn"].mean(),
                "predicted cost": predicted(cell[0], method),
                "return": of_method["value"].mean(),
                "4+12 minus this method": "" if method == "4+12" else interval(pairs),
            }
    return pd.DataFrame(rows).T


def draw(frame: pd.DataFrame, target: Path) -> None:
    """The return of each method with intervals of 95%, a panel for each start and optimizer."""
    import matplotlib.pyplot as plt

    plt.rcParams |= {"svg.hashsalt": "", "font.size": 8, "axes.titlesize": 8}
    cells = list(chosen(frame).groupby(["start", "optimizer"]))
    columns = min(len(cells), 3)
    rows = -(-len(cells) // columns)
    size = (0.9 + 2 * columns, 0.3 + 1.3 * rows)
    figure, axes = plt.subplots(
        rows, columns, figsize=size, layout="constrained", squeeze=False, sharey=True
    )
    for axis in axes.flat[len(cells) :]:
        axis.remove()
    for axis, (cell, part) in zip(axes.flat, cells, strict=False):
        values = part.groupby("method")["value"]
        width = student.ppf(0.975, values.size() - 1) * values.sem()
        mean, half = values.mean()[list(METHODS)], width[list(METHODS)]
        axis.errorbar(mean, range(len(METHODS)), xerr=half, fmt="s", ms=3.5)
        axis.set_yticks(range(len(METHODS)), METHODS)
        axis.set_title(", ".join(cell))
        axis.spines[["top", "right"]].set_visible(False)
    axes[0, 0].invert_yaxis()
    figure.supxlabel("return after the last step", fontsize=8)
    figure.savefig(target, metadata={"Date": None})
    plt.close(figure)


def main(arguments: list[str] | None = None) -> None:
    """Tune, train, print and draw."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("results/two_stages"), metavar="FOLDER")
    parser.add_argument("--seeds", type=int, default=12, help="runs that are shown (default: 12)")
    parser.add_argument("--tuning", type=int, default=8, help="runs of a rate (default: 8)")
    parser.add_argument("--steps", type=int, default=STEPS, help=f"of a run (default: {STEPS})")
    parser.add_argument("--model", help="an embedded language model, trained by TRL")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    grids = {(options.model, "trl"): MODEL_RATES} if options.model else RATES
    cells = [(*pair, method) for pair in grids for method in METHODS]
    steps = options.steps
    tuning = [
        Run(*cell, rate, steps, TUNING + i)
        for i in range(options.tuning)
        for cell in cells
        for rate in grids[cell[:2]]
    ]
    frame = study(options.out, tuning)
    tuned = frame[frame["seed"] >= TUNING].groupby(["start", "optimizer", "method", "rate"])
    means = tuned["value"].mean()
    shown = [
        Run(*cell, float(means.loc[cell].idxmax()), steps, seed)
        for seed in range(options.seeds)
        for cell in cells
    ]
    frame = study(options.out, shown)
    print(summary(frame).to_string())
    draw(frame, options.out / "train_two_stages.svg")


if __name__ == "__main__":
    main()
