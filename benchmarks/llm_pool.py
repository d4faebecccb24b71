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
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
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
        alone: those on which a single baseline's gradients are timed.
        rounds: repetitions of each method.
        values: rollouts that give V to brute force's oracle, counted on neither side.
    """

    prompts: int = 16
    rollouts: int = 64
    group_sizes: tuple[int, ...] = (2, 4, 8, 16, 32, 64)
    replications: int = 16
    alone: int = 4
    rounds: int = 4
    values: int = 512


QUICK = Effort(2, 8, (2, 4), 4, 4, 2, 16)


@dataclass(frozen=True)
class Subject:
    """A language model on its task."""

    model: LanguageModel
    task: Task

    @classmethod
    def load(cls, name: str, prompts: int) -> Subject:
        """The first prompts of an embedded model's own task."""
        return cls(load_model(name), load_task(name, limit=prompts))

    def first(self, prompts: int) -> Subject:
        return replace(self, task=replace(self.task, prompts=self.task.prompts[:prompts]))


# Both methods.


def by_pool(
    subject: Subject, rollouts: int, group_sizes: Sequence[int], seed: int
) -> tuple[float, Array]:
    """CPU seconds to every point from G = 2 to N, and errors (baselines, group sizes, P)."""
    start = process_time()
    drawn = sample(subject.model, subject.task, rollouts, seed=seed, batch=BATCH)
    pool = score_pool(subject.model, drawn)
    curves(pool, range(2, rollouts + 1), BASELINES)
    seconds = process_time() - start
    found = [
        curves(pool.select_prompts([x]), group_sizes, BASELINES)["mse"] for x in range(pool.size)
    ]
    return seconds, np.array(found).T.reshape(len(BASELINES), len(group_sizes), pool.size)


@dataclass(frozen=True)
class Sampled:
    """The numbers of brute force at one group size, and its CPU seconds.

    Arguments:
        mse: (baselines, P).
        draw: seconds of sampling and rewarding.
        gradients: of all baselines' gradients together.
        alone: of a single baseline's.
    """

    mse: Array
    draw: float
    gradients: float
    alone: float


def by_sampling(
    subject: Subject, group_size: int, effort: Effort, values: Array, seed: int
) -> Sampled:
    """Fresh rollouts of every prompt, in batches that prompts share; then gradients in groups."""
    prompts = subject.task.prompts
    start = process_time()
    ids = [tokenise(subject.model, prompt) for prompt in prompts]
    named = [(prompt.id, tokens) for prompt, tokens in zip(prompts, ids, strict=True)]
    count = effort.replications * group_size
    length = subject.task.max_new_tokens
    stock = []
    draws = transformers_draw(subject.model, named, count, length, seed, BATCH)
    for prompt, (drawn, _) in zip(prompts, draws, strict=True):
        texts = subject.model.tokenizer.batch_decode(drawn, skip_special_tokens=True)
        stock.append((drawn, subject.task.rewards(prompt, texts, drawn)))
    draw = process_time() - start

    def run(baselines: Sequence[str], replications: int) -> tuple[float, Array]:
        few = replications * group_size
        start = process_time()
        found = [
            brute_force(
                subject.model.model, one, drawn[:few], rewards[:few], group_size, baselines, v
            )
            for one, (drawn, rewards), v in zip(ids, stock, values.tolist(), strict=True)
        ]
        return process_time() - start, np.array(found).T

    gradients, mse = run(BASELINES, effort.replications)
    alone, _ = run(["grpo"], effort.alone)
    return Sampled(mse, draw, gradients, alone * effort.replications / effort.alone)


# Repetitions.


def variances(repeats: Array) -> Array:
    """Variances of one repetition's estimate at each prompt, from (rounds, ..., P)."""
    return repeats.var(axis=0, ddof=1)


def standard_error(repeats: Array) -> Array:
    """Standard error of one repetition's mean over independent prompts, from (rounds, ..., P)."""
    found = variances(repeats)
    return np.sqrt(found.sum(axis=-1)) / found.shape[-1]


def same(pool: Array, brute: Array, what: str) -> None:
    """Refuse means over repetitions that differ by more than their errors.

    Arguments:
        pool, brute: (rounds, P).
        what: is compared.

    Raises:
        SystemExit: they differ.
    """
    errors = [standard_error(r) / np.sqrt(len(r)) for r in (pool, brute)]
    degrees = pool.shape[1] * (min(len(pool), len(brute)) - 1)
    off = abs(pool.mean() - brute.mean())
    limit = student.isf(LEVEL / 2, degrees) * np.hypot(*errors)
    # Written so that a NaN is refused as well.
    if not off <= limit:
        raise SystemExit(
            f"{what}: the pool gives {pool.mean():.4g} and brute force {brute.mean():.4g}, further "
            f"apart than {limit:.2g}: they compute different things"
        )


def gain(pool: Array, brute: Array) -> tuple[float, float, float]:
    """Brute force's variance over the pool's with a 95% interval, by a jackknife over prompts.

    Arguments:
        pool, brute: (rounds, P).
    """
    above, below = variances(brute), variances(pool)
    full = above.sum() / below.sum()
    without = np.log((above.sum() - above) / (below.sum() - below))
    count = len(above)
    error = np.sqrt((count - 1) * without.var())
    half = float(np.exp(student.ppf(0.975, count - 1) * error))
    return float(full), float(full / half), float(full * half)


def over_sizes(measured: Sequence[int], seconds: Sequence[float], last: int) -> float:
    """The sum over every G from the first measured one to the last, between them by logarithms."""
    every = np.log(np.arange(min(measured), last + 1))
    return float(np.exp(np.interp(every, np.log(measured), np.log(seconds))).sum())


def compare(subject: Subject, effort: Effort) -> tuple[list[list[object]], list[str]]:
    """A row for each baseline and group size, and the whole curve in words.

    Raises:
        SystemExit: the methods do not agree.
    """
    task, sizes, baselines = subject.task, effort.group_sizes, range(len(BASELINES))
    known = sample(subject.model, task, effort.values, seed=10**6, batch=BATCH)
    values = np.array([one.rewards.mean() for one in known])
    by_pool(subject.first(1), 4, [2], 10**6 + 1)
    pools, brutes = [], []
    for number in range(effort.rounds):
        pools.append(by_pool(subject, effort.rollouts, sizes, number))
        brutes.append(
            [
                by_sampling(subject, size, effort, values, 1000 * (number + 1) + size)
                for size in sizes
            ]
        )
        print(f"round {number + 1} of {effort.rounds}", file=sys.stderr)
    seconds = float(np.median([own for own, _ in pools]))
    pool = np.array([mse for _, mse in pools])
    brute = np.array([[one.mse for one in row] for row in brutes]).transpose(0, 2, 1, 3)

    def cost(of: Callable[[Sampled], float]) -> Array:
        return np.array(
            [np.median([of(row[place]) for row in brutes]) for place in range(len(sizes))]
        )

    alone, together = cost(lambda s: s.draw + s.alone), cost(lambda s: s.draw + s.gradients)
    rows, ratios = [], np.empty((len(BASELINES), len(sizes)))
    for i in baselines:
        for j, size in enumerate(sizes):
            ours, theirs = pool[:, i, j], brute[:, i, j]
            same(ours, theirs, f"{BASELINES[i]} at G = {size}")
            ratios[i, j], *ends = gain(ours, theirs)
            factor = alone[j] / seconds
            more = effort.replications * size / effort.rollouts
            rows.append(
                [
                    BASELINES[i],
                    size,
                    f"{ours.mean():.4g}",
                    f"{theirs.mean():.4g}",
                    f"{standard_error(ours):.3g}",
                    f"{standard_error(theirs):.3g}",
                    f"{alone[j]:.3g}",
                    f"{alone[j] * ratios[i, j]:.3g}",
                    f"{factor * ratios[i, j]:.3g}",
                    f"[{factor * ends[0]:.2g}, {factor * ends[1]:.2g}]",
                    f"{more * ratios[i, j]:.3g}",
                ]
            )
    words = [
        f"The pool, {effort.rollouts} rollouts of each of {len(task.prompts)} prompts: {seconds:.3g} "
        "CPU s for all rows and every other group size (median of the rounds)."
    ]
    for i in baselines:
        words.append(_curve(BASELINES[i], sizes, alone * ratios[i], seconds, effort.rollouts))
    # One run serves all three, as long as the one that asks for most.
    words.append(
        _curve("all three", sizes, together * ratios.max(axis=0), seconds, effort.rollouts)
    )
    return rows, words


def _curve(
    what: str, sizes: Sequence[int], needed: Sequence[float], seconds: float, last: int
) -> str:
    whole = over_sizes(sizes, list(needed), last)
    return (
        f"- {what}: brute force at the group sizes of the table {sum(needed):.3g} s, "
        f"{sum(needed) / seconds:.3g} times the pool; at every G from {min(sizes)} to {last} "
        f"{whole:.3g} s, {whole / seconds:.3g} times"
    )


EQUAL = [
    "baseline",
    "G",
    "MSE, pool",
    "MSE, brute force",
    "SE, pool",
    "SE, brute force",
    "brute force, CPU s",
    "at the pool's SE, CPU s",
    "times the pool's time",
    "95% over prompts",
    "times the pool's rollouts",
]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that it runs")
    parser.add_argument("--model", default="embedded:strong", help="one with prompts of its own")
    parser.add_argument("--prompts", type=int)
    parser.add_argument("--rounds", type=int)
    options = parser.parse_args(arguments)
    effort = QUICK if options.quick else Effort()
    given = {name: getattr(options, name) for name in ("prompts", "rounds")}
    effort = replace(effort, **{name: value for name, value in given.items() if value is not None})
    print("# One pool against sampling every point anew\n")
    print(f"{machine('numpy', 'torch', 'transformers')}; 1 thread; {options.model}\n")
    print(
        f"{effort.rounds} interleaved rounds; brute force: {effort.replications} gradients at each "
        "prompt; seconds of one baseline alone, sampling included; times the pool's time: the time "
        "here x (SE of brute force / SE of the pool)², over the pool's time; the pool has "
        f"{effort.rollouts} rollouts a prompt\n"
    )
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        rows, words = compare(Subject.load(options.model, effort.prompts), effort)
    finally:
        torch.set_num_threads(before)
    print(tabulate(rows, EQUAL, tablefmt="github", disable_numparse=True) + "\n")
    print("\n".join([words[0], "", *words[1:]]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
