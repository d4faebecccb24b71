"""One pool of rollouts against sampling every point anew: ``python -m benchmarks.llm_pool``.

On an embedded language model: the mean over some prompts of the gradient MSE of vanilla, grpo and
oracle, given these prompts, (1) from one pool of N rollouts a prompt, which has every group size, and
(2) by brute force, which draws fresh rollouts for each group size and differentiates each group.

Both are repeated with other seeds, in turn. A method's variance is what its repetitions at one prompt
show, summed over prompts; so both variances are measured in the same way, and neither method's own
standard errors are used. Brute force's variance falls as one over its replications and its time grows
with them, so its time for the pool's standard error is its time here times the ratio of variances.
What favours brute force: it is given V, and its rollouts are drawn in batches as large as the pool's.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from time import process_time

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import t as student
from tabulate import tabulate

from benchmarks.brute_force import brute_force
from benchmarks.measuring import machine
from ustat_pg.llm.estimates import curves
from ustat_pg.llm.generation import transformers_draw
from ustat_pg.llm.models import LanguageModel, load_model, tokenise
from ustat_pg.llm.prompts import Task
from ustat_pg.llm.rollouts import sample
from ustat_pg.llm.scoring import score_pool
from ustat_pg.llm.tasks import load_task

BASELINES = ("vanilla", "grpo", "oracle")

LEVEL = 1e-6
"""Chance that equal means are refused."""

BATCH = 256
"""Completions sampled at a time, by both."""

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Effort:
    """How much is measured.

    Arguments:
        prompts: of the comparison.
        rollouts: N of the pool.
        group_sizes: at which brute force is measured.
        replications: R of brute force, gradients at a prompt and group size.
        rounds: repetitions of each method.
        values: rollouts that give V to brute force's oracle, counted on neither side.
    """

    prompts: int = 16
    rollouts: int = 64
    group_sizes: tuple[int, ...] = (2, 4, 8, 16, 32, 64)
    replications: int = 16
    rounds: int = 4
    values: int = 512


QUICK = Effort(2, 8, (2, 4), 4, 2, 16)


def by_pool(
    model: LanguageModel, task: Task, rollouts: int, group_sizes: Sequence[int], seed: int
) -> tuple[float, Array]:
    """CPU seconds to every point from G = 2 to N, and errors (baselines, group sizes, P)."""
    start = process_time()
    pool = score_pool(model, sample(model, task, rollouts, seed=seed, batch=BATCH))
    curves(pool, range(2, rollouts + 1), BASELINES)
    seconds = process_time() - start
    errors = [
        curves(pool.select_prompts([x]), group_sizes, BASELINES)["mse"] for x in range(pool.size)
    ]
    return seconds, np.array(errors).T.reshape(len(BASELINES), len(group_sizes), pool.size)


def by_sampling(
    model: LanguageModel, task: Task, group_size: int, replications: int, values: Array, seed: int
) -> tuple[float, Array]:
    """CPU seconds of fresh rollouts and of all baselines' gradients in groups; errors (baselines, P)."""
    start = process_time()
    ids = [tokenise(model, prompt) for prompt in task.prompts]
    named = [(prompt.id, tokens) for prompt, tokens in zip(task.prompts, ids, strict=True)]
    count, length = replications * group_size, task.max_new_tokens
    draws = chain.from_iterable(transformers_draw(model, named, count, length, seed, BATCH))
    errors = []
    for prompt, tokens, value, (drawn, _) in zip(
        task.prompts, ids, values.tolist(), draws, strict=True
    ):
        texts = model.tokenizer.batch_decode(drawn, skip_special_tokens=True)
        rewards = task.rewards(prompt, texts, drawn)
        errors.append(
            brute_force(model.model, tokens, drawn, rewards, group_size, BASELINES, value)
        )
    return process_time() - start, np.array(errors).T


def standard_error(repeats: Array) -> Array:
    """Standard error of one repetition's mean over independent prompts, from (rounds, ..., P)."""
    return np.sqrt(repeats.var(axis=0, ddof=1).sum(axis=-1)) / repeats.shape[-1]


def same(pool: Array, brute: Array, what: str) -> None:
    """Refuse means over repetitions, (rounds, P), that differ by more than their errors."""
    errors = [standard_error(r) / np.sqrt(len(r)) for r in (pool, brute)]
    off = abs(pool.mean() - brute.mean())
    limit = student.isf(LEVEL / 2, pool.shape[1] * (len(pool) - 1)) * np.hypot(*errors)
    # Written so that a NaN is refused as well.
    if not off <= limit:
        raise SystemExit(
            f"{what}: the pool gives {pool.mean():.4g} and brute force {brute.mean():.4g}, further "
            f"apart than {limit:.2g}: they compute different things"
        )


def compare(model: LanguageModel, task: Task, effort: Effort) -> tuple[list[list[object]], float]:
    """A row for each baseline and group size, and the pool's CPU seconds for all of them."""
    sizes = effort.group_sizes
    drawn = sample(model, task, effort.values, seed=10**6, batch=BATCH)
    values = np.array([one.rewards.mean() for one in drawn])
    by_pool(model, replace(task, prompts=task.prompts[:1]), 4, [2], 10**6 + 1)
    pools, brutes = [], []
    for number in range(effort.rounds):
        pools.append(by_pool(model, task, effort.rollouts, sizes, number))
        seed = 1000 * (number + 1)
        brutes.append(
            [
                by_sampling(model, task, size, effort.replications, values, seed + size)
                for size in sizes
            ]
        )
        print(f"round {number + 1} of {effort.rounds}", file=sys.stderr)
    seconds = float(np.median([spent for spent, _ in pools]))
    pool = np.array([mse for _, mse in pools])
    brute = np.array([[mse for _, mse in row] for row in brutes]).transpose(0, 2, 1, 3)
    costs = np.median([[spent for spent, _ in row] for row in brutes], axis=0)
    rows: list[list[object]] = []
    for i, baseline in enumerate(BASELINES):
        for j, size in enumerate(sizes):
            ours, theirs = pool[:, i, j], brute[:, i, j]
            same(ours, theirs, f"{baseline} at G = {size}")
            errors = standard_error(ours), standard_error(theirs)
            times = costs[j] / seconds * (errors[1] / errors[0]) ** 2
            shown = (ours.mean(), theirs.mean(), *errors, costs[j], times)
            rows.append([baseline, size, *(f"{value:.3g}" for value in shown)])
    return rows, seconds


HEADER = [
    "baseline", "G", "MSE, pool", "MSE, brute force", "SE, pool", "SE, brute force",
    "brute force, CPU s", "times the pool's time",
]  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that it runs")
    parser.add_argument("--rounds", type=int)
    options = parser.parse_args(arguments)
    effort = QUICK if options.quick else Effort()
    effort = replace(effort, rounds=options.rounds or effort.rounds)
    name = "embedded:strong"
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        rows, seconds = compare(load_model(name), load_task(name, limit=effort.prompts), effort)
    finally:
        torch.set_num_threads(before)
    print("# One pool against sampling every point anew\n")
    print(f"{machine('numpy', 'torch', 'transformers')}; 1 thread; {name}\n")
    print(
        f"{effort.rounds} interleaved rounds on {effort.prompts} prompts. The pool, {effort.rollouts} "
        f"rollouts of each: {seconds:.3g} CPU s for all rows and every other group size. Brute force: "
        f"{effort.replications} gradients at each prompt, for all three baselines; its time here x (its "
        "SE / the pool's)², over the pool's time, is the last column.\n"
    )
    print(tabulate(rows, HEADER, tablefmt="github", disable_numparse=True))
    return 0


if __name__ == "__main__":
    sys.exit(main())
