"""The best group size in the metric of Adam's step: ``python -m benchmarks.metric``.

    python -m benchmarks.metric                  the models that ship with the library
    python -m benchmarks.metric smollm2          one that takes half an hour of one core

Each model is trained by TRL's ``RLOOTrainer`` with AdamW, which leaves a checkpoint with the optimizer's
state. Then prompts are scored at this checkpoint, in both metrics at once, and printed as rows of Markdown.
Trainings and pools stay in ``--out``, and a rerun reads them.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml

from benchmarks.group_sizes import number
from ustat_pg import ModelPool
from ustat_pg.llm.pool.metrics import metrics
from ustat_pg.llm.pool.moments import gradients, prompt_moments
from ustat_pg.llm.pool.scored import PLAIN, ScoredPool
from ustat_pg.llm.tasks.named import load_task

STEPS, RESAMPLES = 60, 2_000
COLUMNS = (
    "training",
    "pass rate",
    "metric",
    "c1",
    "c2",
    "c3",
    "G*",
    "critical budget",
    "over plain",
)
RUN = {
    "trainer": "rloo",
    "optim": "adamw_torch",
    "max_steps": STEPS,
    "num_generations": 8,
    "gradient_accumulation_steps": 1,
    "held_out": 16,
    "save_strategy": "steps",
    "save_steps": STEPS,
    "eval_strategy": "no",
    "eval_on_start": False,
    "use_cpu": True,
    "threads": 1,
    "seed": 0,
}
"""The settings of every training."""

SHIPPED = ("base", "strong", "in-context", "short")
SMOLLM2 = {
    "smollm2": 1e-6,  # TRL's default
    "smollm2-held": 1e-12,
}
"""Learning rates: one that trains, and one that only shows the optimizer the gradients of one policy."""


def setting(name: str) -> dict[str, Any]:
    """The model, its prompts and the training; the number of prompts and rollouts that are scored."""
    if name in SHIPPED:
        own = f"embedded:{name}"
        trained = {"learning_rate": 1e-4, "per_device_train_batch_size": 64}
        return {"model": own, "task": own, "prompts": 400, "samples": 24, "trained": trained}
    trained = {"learning_rate": SMOLLM2[name], "per_device_train_batch_size": 16}
    task = {"model": "smollm2", "task": "smollm2:shots"}
    return {**task, "prompts": 96, "samples": 16, "trained": trained}


def train(name: str, folder: Path) -> Path:
    """The checkpoint of a training of 60 steps."""
    checkpoint, one = folder / f"checkpoint-{STEPS}", setting(name)
    if not (checkpoint / "optimizer.pt").is_file():
        folder.mkdir(parents=True, exist_ok=True)
        settings = {
            "model": one["model"],
            "task": one["task"],
            "output_dir": str(folder),
            "max_completion_length": load_task(one["task"]).max_new_tokens,
            **RUN,
            **one["trained"],
        }
        (folder / "run.yaml").write_text(yaml.safe_dump(settings))
        words = ["-m", "ustat_pg.llm.trl.training", "--config", str(folder / "run.yaml")]
        subprocess.run([sys.executable, *words], check=True, stdout=subprocess.DEVNULL)
    return checkpoint


def over_plain(pool: ScoredPool) -> dict[str, tuple[float, float, float]]:
    """G* of each metric divided by the plain one, with a bootstrap interval of 95% over prompts."""
    rng, metrics_of = np.random.default_rng(0), {pool.metric: pool, **pool.metrics}
    counts = rng.multinomial(pool.size, np.full(pool.size, 1 / pool.size), RESAMPLES)
    weights = np.vstack([np.ones(pool.size), counts])
    known = {}
    for name in (pool.metric, PLAIN, "floored"):
        one = metrics_of[name]
        moments, sketches = prompt_moments(one), gradients(one)
        products = sketches @ sketches.T
        every = ((weights @ products) * weights).sum(axis=1) - weights**2 @ np.diag(products)
        # A resample may have one prompt alone.
        with np.errstate(divide="ignore", invalid="ignore"):
            signal = every / (pool.size**2 - (weights**2).sum(axis=1))
            c1 = weights @ moments.gradient_sq / pool.size - signal
            c3 = weights @ (moments.variance_trace + moments.gradient_sq) / pool.size
            known[name] = np.where(c1 > 0, 1 + np.sqrt(np.maximum(c3, 0) / c1), np.inf)
    with np.errstate(invalid="ignore"):
        ratios = {name: found / known[PLAIN] for name, found in known.items()}
    return {
        name: (
            float(each[0]),
            *map(float, np.nanquantile(each[1:], [0.025, 0.975], method="nearest")),
        )
        for name, each in ratios.items()
    }


def rows(name: str, out: Path) -> list[str]:
    """Rows of Markdown, one for each metric, and a line on small v."""
    checkpoint, one = train(name, out / name), setting(name)
    (pool,) = ModelPool(
        model=str(checkpoint),
        prompts=one["task"],
        limit=one["prompts"],
        samples=one["samples"],
        metric="adam",
        device="cpu",
        out=out / f"{name}-pool",
    ).pools()
    found, lines, relative = metrics(pool), [], over_plain(pool)
    assert found is not None
    for metric, constants in found.constants.items():
        names = ("c1", "c2", "c3", "g_star", "k_crit")
        known = (constants.estimates[key] for key in names)
        cells = " | ".join(number(each.value, *each.interval) for each in known)
        over = number(*relative[metric])
        lines.append(f"| {name} | {pool.rewards.mean():.2f} | {metric} | {cells} | {over} |")
    shares = ", ".join(f"{share:.1%} of {part}" for part, share in found.shares.items())
    return [*lines, f"{name}: {found.coordinates:.1%} of coordinates give {shares}"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Train, score and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.metric")
    every = ", ".join([*SHIPPED, *SMOLLM2])
    text = f"of: {every}"
    parser.add_argument("trainings", nargs="*", metavar="NAME", help=text, default=SHIPPED)
    parser.add_argument("--threads", type=int, default=1, help="of torch")
    parser.add_argument("--out", type=Path, metavar="FOLDER", default=Path("results/metric"))
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    notes = []
    print(f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}")
    for name in options.trainings:
        *lines, note = rows(name, options.out)
        print("\n".join(lines), flush=True)
        notes.append(note)
    print("", *notes, sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
