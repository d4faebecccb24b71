"""Theorem 7 in the metric of an optimizer's step, and for Adam, whose divisor knows the batch's noise.

In a metric P the noise is E (ĝ-g)ᵀ P (ĝ-g). It is measured on the problem itself, by squared projections, and
predicted from moments of scores that are scaled by P^(1/2). Adam's gain is measured by the second moment of
each parameter at three group sizes, which fix a curve each.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np

from ustat_pg.engines import GradientCell
from ustat_pg.policies import ArmLinearSoftmax
from ustat_pg.predictions import (
    adam_group_size,
    covariance_parts,
    critical_budget,
    gradient_mse,
    mse_constants,
    optimal_group_size,
)
from ustat_pg.problems import SoftmaxBandit, in_metric
from ustat_pg.validation import changed

from ..evidence import Check, Linear, equal
from ..problems import BanditEntry, Suite
from ..shared.argmin import Gained, Lowest
from ..shared.margins import COARSE, LOOSE
from ..shared.runs import GRPO
from ..shared.weights import projected
from .advice import grpo_error

OTHER = "G* of another metric than the step's"
TWICE = "scores scaled by P"
PLAIN = "Adam: the plain G*"
ROOT = "Adam: w = g²/√v"
STILL = "Adam: v held still"
BARE = "Adam: v without the batch's noise"
RIVALS = (OTHER, TWICE, PLAIN, ROOT, STILL, BARE)

SIZES = (2, 5, 24)
"""Group sizes whose errors fix a curve."""

BUDGET = 24
"""A budget at which one parameter has much more noise than signal, and the other has not."""

METRICS = {"diagonal": np.array([1.0, 50.0]), "symmetric": np.array([[1.0, -2.0], [-2.0, 20.0]])}
"""Metrics in which two parameters have very different lengths."""


def _noise(problem: SoftmaxBandit, metric: Any, group_size: int, batch_size: int = 1) -> Linear:
    """E (ĝ-g)ᵀ P (ĝ-g)."""
    cell = GradientCell(problem, group_size, batch_size)
    return Linear(cell, tuple(projected(problem, GRPO, metric)))


def _best(problem: SoftmaxBandit) -> float:
    return optimal_group_size(mse_constants(problem))


def fixed(entry: BanditEntry, name: str) -> Iterator[Check]:
    """The error, G* and the critical budget in a fixed metric."""
    problem, given = entry.problem, METRICS[name]
    metric = given * np.eye(problem.d) if given.ndim == 1 else given
    seen = in_metric(problem, given)
    constants, twice = mse_constants(seen), in_metric(problem, metric @ metric)
    error = gradient_mse(seen, "grpo", 3, 2).mse
    wrong = {TWICE: gradient_mse(twice, "grpo", 3, 2).mse}
    yield entry.check(
        f"{name}: error in a metric", _noise(problem, metric, 3, 2), equal(error, wrong)
    )
    points = tuple(_noise(problem, metric, size).times(size) for size in SIZES)
    curve = SIZES, points, tuple(size * constants.mse(size) for size in SIZES)
    others = {OTHER: _best(problem), TWICE: _best(twice)}
    yield entry.check(
        f"{name}: G* in a metric",
        Lowest(*curve),
        equal(optimal_group_size(constants), others, relative_margin=COARSE),
    )
    signal = float(problem.gradient() @ metric @ problem.gradient())
    budget = critical_budget(constants, seen.moments().mean_gradient_sq)
    over = tuple(point.times(1 / signal) for point in points)
    yield entry.check(
        f"{name}: K_crit in a metric",
        Lowest(SIZES, over, tuple(value / signal for value in curve[2]), value=True),
        equal(budget, relative_margin=LOOSE),
    )


def _by_rule(problem: SoftmaxBandit, weigh: Any) -> float:
    """1 + √(Σ w c₃/Σ w c₁) with weights of g and v, where v is that of the group size itself."""
    signal, size = problem.gradient() ** 2, 3.0
    first, single, pair = (np.diagonal(part) for part in covariance_parts(problem.moments()))
    for _ in range(1000):
        square = signal + (first * size + single + pair / (size - 1)) / BUDGET
        weights = weigh(signal, square)
        size = 1 + float(np.sqrt(weights @ pair / (weights @ first)))
    return size


def _alone(problem: SoftmaxBandit, number: int) -> SoftmaxBandit:
    """The problem with one of its parameters, all of which are 0."""
    policy: Any = problem.policy
    one = ArmLinearSoftmax(policy.features[..., [number]], policy.parameters[[number]])
    return changed(problem, policy=one)


def adam(entry: BanditEntry) -> Iterator[Check]:
    """Adam's best group size and its gain there."""
    problem = entry.problem
    found, signal = adam_group_size(problem, BUDGET), problem.gradient() ** 2
    each = [_alone(problem, number) for number in range(problem.d)]
    points = tuple(grpo_error(one, size).times(size) for one in each for size in SIZES)
    values = tuple(size * mse_constants(one).mse(size) for one in each for size in SIZES)
    wrong = {
        PLAIN: _best(problem),
        ROOT: _by_rule(problem, lambda g, v: g * v**-0.5),
        STILL: _by_rule(problem, lambda g, v: v**-0.5),
        BARE: _by_rule(problem, lambda g, v: g**-0.5),
    }
    curve = SIZES, points, values, tuple(signal.tolist()), float(BUDGET)
    yield entry.check(
        f"K={BUDGET}: G* of Adam",
        Gained(*curve),
        equal(found.group_size, wrong, relative_margin=LOOSE),
    )
    yield entry.check(
        f"K={BUDGET}: Adam's gain at its G*",
        Gained(*curve, value=True),
        equal(found.gain, {BARE: float(np.sqrt(signal).sum())}, relative_margin=COARSE),
    )


def checks(suite: Suite) -> Iterator[Check]:
    """The checks on problems of two parameters."""
    for entry in islice(suite.opposed(), suite.sized(2, 2, None)):
        for name in METRICS if entry.origin == "made-up" else ("symmetric",):
            yield from fixed(entry, name)
        yield from adam(entry)
