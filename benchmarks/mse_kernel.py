"""The cpu engine against its peers: ``python -m benchmarks.mse_kernel [--rounds N] [--quick]``.

The quantity is grpo's squared error ‖ĝ - g‖² on one prompt with K arms, tabular softmax and a
reward per arm: G draws, then a statistic of how often each arm was drawn. Everybody may use two
threads. Nobody forms a d-dimensional score: with counts n, n̄z the mean reward and g in R^K,

    ĝ = n ⊙ (z - n̄z) / (G - 1),   ‖ĝ - g‖² = ‖ĝ‖² - 2 ⟨ĝ, g⟩ + ‖g‖².

A peer whose mean is not the predicted MSE within its Monte Carlo error makes the script fail. Each
takes its best batch size. Rounds are interleaved, and ratios are medians of paired rounds.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks.measuring import (
    THREADS,
    clock,
    in_turn,
    machine,
    options_of,
    over_first,
    same,
    show,
)
from ustat_pg.engines import Estimator, GradientCell, MomentSums, SquaredError
from ustat_pg.predictions import gradient_mse
from ustat_pg.problems import SoftmaxBandit
from ustat_pg.sampling import rng

SIZES = ((10, 16), (100, 64), (1000, 64))
BATCHES = (256, 1024, 4096, 16_384, 65_536)
LARGEST_TABLE = 2**22
"""Counts in a table of a peer's batch: beyond a few megabytes it is slow."""

Array = Any
Program = Callable[[int], Array]
"""Replications to that many squared errors."""


@dataclass(frozen=True)
class Case:
    """One size, and the tables that peers read, made before the clock starts."""

    arms: int
    group: int

    @cached_property
    def cell(self) -> GradientCell:
        numbers = np.random.default_rng(self.arms)
        logits, rewards = numbers.normal(size=self.arms), numbers.uniform(size=self.arms)
        ones = np.ones((1, self.arms, 1))
        problem = SoftmaxBandit.tabular([1.0], logits[None], rewards[None, :, None], ones)
        return GradientCell(problem, self.group)

    @cached_property
    def mse(self) -> float:
        return gradient_mse(self.cell.problem.moments(), "grpo", self.group).mse

    @cached_property
    def ends(self) -> Array:
        """Thresholds of all arms but the last, (K-1,), uint32."""
        ends = rng.thresholds(self.cell.problem.policy.probs[0])[:-1]
        return np.minimum(ends, 2**32 - 1).astype(np.uint32)

    @cached_property
    def gradient(self) -> Array:
        """g, (K,), float32."""
        return self.cell.problem.gradient().astype(np.float32)

    @cached_property
    def tables(self) -> tuple[Array, Array]:
        """Factors (K, 3) of n: z, z g and g; and of n²: z², z and 1."""
        rewards = self.cell.problem.reward_values[0, :, 0]
        # About their mean: the offset changes no estimate, and float32 loses less.
        z = (rewards - self.cell.problem.policy.probs[0] @ rewards).astype(np.float32)
        g = self.gradient
        return np.stack([z, z * g, g], axis=1), np.stack([z * z, z, np.ones_like(z)], axis=1)

    @cached_property
    def start(self) -> Array:
        """The arm of each high half of a word, K where the low half decides, (2^16,)."""
        high = np.arange(2**16, dtype=np.uint32) << np.uint32(16)
        least = np.searchsorted(self.ends, high, side="right")
        most = np.searchsorted(self.ends, high | np.uint32(0xFFFF), side="right")
        return np.where(least == most, least, self.arms)

    def errors(self, n: Array) -> Array:
        """Squared errors of counts (R, K)."""
        linear, quadratic = self.tables
        first, second = n @ linear, (n * n) @ quadratic
        mean, unit = first[:, 0] / self.group, 1 / (self.group - 1)
        square = second[:, 0] - 2 * mean * second[:, 1] + mean * mean * second[:, 2]
        along = first[:, 1] - mean * first[:, 2]
        return unit * (unit * square - 2 * along) + float(self.gradient @ self.gradient)


POOL = ThreadPoolExecutor(THREADS)
GENERATORS = [np.random.SFC64((1, thread)) for thread in range(THREADS)]


def engine(case: Case, replications: int) -> tuple[float, float]:
    """The engine's mean and its standard error; each thread has an equal share of the replications."""
    share = replications // THREADS

    def block(thread: int) -> MomentSums:
        quantities = [SquaredError(Estimator("grpo"))]
        return case.cell.measure("cpu", quantities, first=thread * share, replications=share)

    one, two = POOL.map(block, range(THREADS))
    sums = one.merge(two)
    return float(sums.mean[0]), float(np.sqrt(sums.covariance[0, 0] / sums.n))


# NumPy: arms of random words, then statistics of arms.


def words(generator: Any, count: int, dtype: Any) -> Array:
    """Random words of 16 or 32 bits, cut from the generator's own 64."""
    size = np.dtype(dtype).itemsize
    return generator.random_raw(-(-count * size // 8)).view(dtype)[:count]


def by_bisection(case: Case, generator: Any, count: int) -> Array:
    return np.searchsorted(case.ends, words(generator, count, np.uint32), side="right")


def by_halves(case: Case, generator: Any, count: int) -> Array:
    """Arms by a table over the high half of a word; the low half is drawn only where it decides."""
    high = words(generator, count, np.uint16)
    arms = case.start.take(high)
    undecided = np.flatnonzero(arms == case.arms)
    low = words(generator, len(undecided), np.uint16)
    whole = (high[undecided].astype(np.uint32) << np.uint32(16)) | low
    arms[undecided] = np.searchsorted(case.ends, whole, side="right")
    return arms


def by_bincount(case: Case, sampler: Any, generator: Any, replications: int) -> Array:
    """Counts (R, K) by bincount, then two matrix products."""
    arms = sampler(case, generator, replications * case.group).reshape(replications, case.group)
    arms = arms + (np.arange(replications) * case.arms)[:, None]
    counts = np.bincount(arms.ravel(), minlength=replications * case.arms)
    return case.errors(counts.reshape(replications, case.arms).astype(np.float32))


def in_bytes(case: Case, generator: Any, replications: int) -> Array:
    """Counts of few arms: all draws compared with every arm, and the matches summed in bytes."""
    arms = by_halves(case, generator, replications * case.group).astype(np.uint8)
    arms = arms.reshape(case.group, replications)
    n = np.empty((case.arms, replications), np.float32)
    for k in range(case.arms):
        n[k] = np.add.reduce((arms == k).view(np.uint8), axis=0, dtype=np.uint8)
    return case.errors(n.T)


def read_back(case: Case, generator: Any, replications: int) -> Array:
    """Not K statistics but G: each output reads its arm's count."""
    arms = by_halves(case, generator, replications * case.group).reshape(replications, -1)
    key = (arms + (np.arange(replications) * case.arms)[:, None]).ravel()
    n = np.bincount(key, minlength=replications * case.arms).take(key).reshape(arms.shape)
    z = case.tables[0][:, 0].take(arms)
    z -= z.mean(axis=1, keepdims=True)
    unit = 1 / (case.group - 1)
    square = np.einsum("rg,rg,rg->r", n.astype(np.float32), z, z)
    along = np.einsum("rg,rg->r", z, case.gradient.take(arms))
    return unit * (unit * square - 2 * along) + float(case.gradient @ case.gradient)


def in_threads(program: Callable[[Any, int], Array], replications: int) -> Array:
    share = replications // THREADS
    return np.concatenate([*POOL.map(lambda generator: program(generator, share), GENERATORS)])


def peers(case: Case) -> dict[str, Program]:
    """The programs that fit this size."""
    forms = {
        "NumPy, bisection": partial(by_bincount, case, by_bisection),
        "NumPy, 16-bit table": partial(by_bincount, case, by_halves),
        "NumPy, 16-bit table, counts read back": partial(read_back, case),
    }
    if case.arms < 255 and case.group < 256:
        forms["NumPy, 16-bit table, arms in bytes"] = partial(in_bytes, case)
    return {name: partial(in_threads, form) for name, form in forms.items()}


# Measuring.


def at_best_batch(
    program: Callable[[int], Any], sizes: Sequence[int], trial: float
) -> tuple[Callable[[], Any], int]:
    times = {size: clock(partial(program, size), trial) / size for size in sizes}
    best = min(sizes, key=lambda size: times[size])
    return partial(program, best), best


def measure(case: Case, rounds: int, trial: float) -> list[list[str]]:
    """A row for the engine and one for each peer: ns per output, ratio, its quartiles, batch size."""
    where = f"at K={case.arms}, G={case.group}"
    same(f"the engine {where}", *engine(case, 2**17), case.mse)
    programs: dict[str, Callable[[int], Any]] = {"cpu engine": partial(engine, case)}
    for name, program in peers(case).items():
        values = np.concatenate([program(1024) for _ in range(20)]).astype(np.float64)
        error = values.std(ddof=1) / np.sqrt(len(values))
        same(f"{name} {where}", values.mean(), error, case.mse)
        programs[name] = program
    small = [size for size in BATCHES if size * case.arms <= LARGEST_TABLE]
    calls, sizes = zip(
        *(
            at_best_batch(program, BATCHES if name == "cpu engine" else small, trial)
            for name, program in programs.items()
        ),
        strict=True,
    )
    spent = in_turn(calls, rounds) / np.array(sizes)
    rows = []
    for name, times, ratio, size in zip(programs, spent.T, over_first(spent), sizes, strict=True):
        nanoseconds = np.median(times) / case.group * 1e9
        rows.append([f"({case.arms}, {case.group})", name, f"{nanoseconds:.2f}", ratio, str(size)])
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    options = options_of(__doc__, arguments, rounds=101)
    rounds, trial = (2, 1e-3) if options.quick else (options.rounds, 3e-2)
    rows = []
    with threadpool_limits(1, "blas"):
        for arms, group in ((5, 4),) if options.quick else SIZES:
            rows += measure(Case(arms, group), rounds, trial)
    notes = [
        f"{machine('numpy', 'numba')}; {THREADS} threads.",
        f"Ratios are times over the engine's: medians and quartiles of {rounds} paired rounds.",
    ]
    header = ["(K, G)", "program", "ns per output", "ratio", "batch"]
    show("The MSE kernel against its peers", notes, rows, header)
    return 0


if __name__ == "__main__":
    sys.exit(main())
