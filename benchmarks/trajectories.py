"""The trajectory engine against its peers: ``python -m benchmarks.trajectories [--quick]``.

R independent runs of T steps of grpo with rates c / (t + t₀), one prompt a step, a location policy
on a grid and binary rewards: draw a prompt, form its softmax, draw G arms and rewards, step. The
engine computes in float64, peers in float32 unless said, with their own generators. Everybody may
use two threads, but plain NumPy.

A peer whose mean J(θ_T) is not the engine's within Monte Carlo error makes the script fail before
it is timed. Rounds are interleaved, and ratios are medians of paired rounds.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
from scipy.special import softmax
from threadpoolctl import threadpool_limits

from benchmarks.measuring import (
    THREADS,
    in_threads,
    in_turn,
    machine,
    options_of,
    over_first,
    same,
    show,
)
from simulations.engines.runs.schedules import Decay
from simulations.engines.runs.trajectory import Trajectory
from ustat_pg.problems import SoftmaxBandit

START = -1.0
"""Every coordinate of θ₀: far enough from the optimum that a wrong rate shows."""

CHUNK = 5000
"""Replications of a chunk in NumPy: faster than 500 and 2,500 at both sizes."""

Array = Any
Program = Callable[[int, int, int], Array]
"""(seed, replications, steps) to θ_T, (R, d)."""


@dataclass(frozen=True)
class Case:
    """A problem size, and the arrays that every peer reads."""

    label: str
    contexts: int
    arms: int
    d: int
    group: int
    c: float = 12.0
    t0: float = 100.0
    real: str = "float32"
    """The precision of the peers."""

    @cached_property
    def problem(self) -> SoftmaxBandit:
        """Arms on a grid, logits -(u - m)²/(2 τ²), success a bump around a place of the context."""
        grid, tau = np.linspace(-2, 2, self.arms), 0.8
        place = np.linspace(-1, 1, self.contexts) if self.contexts > 1 else np.zeros(1)
        powers = place[:, None] ** np.arange(self.d)
        success = 0.05 + 0.9 * np.exp(-((grid - 0.7 * place[:, None] - 0.2) ** 2) / 1.28)
        return SoftmaxBandit.linear(
            np.full(self.contexts, 1 / self.contexts),
            grid[:, None] / tau**2 * powers[:, None, :],
            np.full(self.d, START),
            np.tile([1.0, 0.0], (self.contexts, self.arms, 1)),
            np.stack([success, 1 - success], axis=-1),
            np.tile(-(grid**2) / (2 * tau**2), (self.contexts, 1)),
        )

    @cached_property
    def features(self) -> Array:
        """φ(x, k), (X, K, d), in the peers' precision."""
        return self.problem.policy.features.astype(self.real)

    @cached_property
    def offset(self) -> Array:
        """(X, K)."""
        return self.problem.policy.offset.astype(self.real)

    @cached_property
    def success(self) -> Array:
        """P(z = 1 | x, k), (X, K)."""
        return self.problem.reward_probs[:, :, 0].astype(self.real)

    def trajectory(self, steps: int) -> Trajectory:
        return Trajectory(self.problem, self.group, steps, Decay(self.c, self.t0))


CASES = (
    Case("small", contexts=3, arms=9, d=2, group=2),
    Case("large", contexts=3, arms=18, d=3, group=8),
)


def engine(case: Case, seed: int, replications: int, steps: int) -> Array:
    trajectory = case.trajectory(steps)

    def share(first: int, count: int) -> Array:
        return trajectory.run("cpu", seed=seed, first=first, replications=count)[:, 0]

    return np.concatenate(in_threads(share, replications))


# NumPy: arrays (K, m), replications last, in chunks that stay in the cache.


def numpy_chunk(case: Case, steps: int, seed: Sequence[int], m: int) -> Array:
    """m replications side by side; features are taken by prompt."""
    generator = np.random.Generator(np.random.SFC64(seed))
    real = np.dtype(case.real)
    by_arm = case.features.transpose(2, 1, 0).copy()
    column = case.features.transpose(2, 0, 1).reshape(case.d, -1).copy()
    offset, success = case.offset.T.copy(), case.success.ravel()
    theta = np.full((case.d, m), START, real)
    logits = np.empty((case.arms, m), real)
    arms = np.empty((case.group, m), np.intp)
    for t in range(1, steps + 1):
        x = (generator.random(m, dtype=real) * case.contexts).astype(np.intp)
        np.take(offset, x, axis=1, out=logits)
        for j in range(case.d):
            logits += by_arm[j].take(x, axis=1) * theta[j]
        logits -= logits.max(axis=0)
        np.exp(logits, out=logits)
        ends = np.cumsum(logits, axis=0, out=logits)
        level = generator.random((case.group, m), dtype=real)
        level *= ends[-1]
        np.multiply(x, case.arms, out=arms[0])
        arms[1:] = arms[0]
        for end in ends[:-1]:
            arms += level >= end
        z = (generator.random((case.group, m), dtype=real) < success.take(arms)).astype(real)
        z -= z.mean(axis=0)
        z *= case.c / (t + case.t0) / (case.group - 1)
        for j in range(case.d):
            theta[j] += np.einsum("gm,gm->m", z, column[j].take(arms))
    return theta.T


def numpy_program(case: Case, seed: int, replications: int, steps: int) -> Array:
    """Chunks that stay in the cache, shared out over threads."""

    def share(first: int, count: int) -> Array:
        return np.concatenate(
            [
                numpy_chunk(case, steps, (seed, first, at), min(CHUNK, count - at))
                for at in range(0, count, CHUNK)
            ]
        )

    return np.concatenate(in_threads(share, replications))


def peers(case: Case) -> dict[str, Program]:
    """Plain NumPy untuned, and in chunks and single precision."""
    plain = partial(numpy_chunk, replace(case, real="float64"))
    return {
        "NumPy, all at once, one thread, float64": lambda seed, m, steps: plain(steps, (seed,), m),
        "NumPy, chunks of 5000": partial(numpy_program, case),
    }


# Measurements.


def mean_and_error(case: Case, theta: Array) -> tuple[float, float]:
    """Mean return J at the ends of runs (R, d), and its standard error."""
    policy = case.problem.policy
    logits = np.einsum("xkd,rd->rxk", policy.features, np.asarray(theta, np.float64))
    weights = softmax(logits + policy.offset, axis=-1)
    values = (weights * case.problem.mean_rewards).sum(axis=-1) @ case.problem.context_probs
    return float(values.mean()), float(values.std(ddof=1) / np.sqrt(len(values)))


def measure(case: Case, replications: int, steps: int, rounds: int) -> list[list[str]]:
    """A row for the engine and one for each peer: seconds, ns a step, ratio and its quartiles."""
    programs: dict[str, Program] = {"cpu engine, float64": partial(engine, case), **peers(case)}
    ours = mean_and_error(case, engine(case, 0, replications, steps))
    for name, program in programs.items():
        theirs = mean_and_error(case, program(1, replications, steps))
        same(f"{name}, {case.label},", *theirs, *ours)
    spent = in_turn([partial(run, 0, replications, steps) for run in programs.values()], rounds)
    rows = []
    for name, times, ratio in zip(programs, spent.T, over_first(spent), strict=True):
        took = np.median(times)
        step = took / (replications * steps) * 1e9
        rows.append([case.label, name, f"{took:.3g}", f"{step:.3g}", ratio])
    return rows


def main(arguments: Sequence[str] | None = None, cases: Sequence[Case] = CASES) -> int:
    options = options_of(__doc__, arguments, rounds=5)
    replications, steps, rounds = (2000, 30, 1) if options.quick else (10_000, 1000, options.rounds)
    rows = []
    with threadpool_limits(1, user_api="blas"):
        for case in cases:
            rows += measure(case, replications, steps, rounds)
    sizes = (
        f"- {case.label}: X = {case.contexts}, K = {case.arms}, d = {case.d}, G = {case.group}"
        for case in cases
    )
    notes = [
        f"{machine('numpy', 'numba')}; {THREADS} threads.",
        f"R = {replications:,} runs of T = {steps:,} steps, B = 1, grpo.\n"
        f"Ratios are times over the engine's: medians and quartiles of {rounds} paired rounds.",
        "\n".join(sizes),
    ]
    header = ["size", "program", "seconds", "ns a step", "ratio"]
    show("Trajectories against their peers", notes, rows, header)
    return 0


if __name__ == "__main__":
    sys.exit(main())
