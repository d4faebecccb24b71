"""Group sizes and budgets by search: budgets to 10,000, costs, populations, constants of all sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product
from math import exp, inf, log
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq

from ustat_pg.engines import Estimator
from ustat_pg.predictions import (
    MseConstants,
    critical_budget,
    group_size_advice,
    mse_constants,
    near_budget,
    optimal_group_size,
    paired_constants,
    robust_group_size,
)
from ustat_pg.problems import SoftmaxBandit

from ..evidence import Check
from . import ROUNDED, Asked, Drawn, Known, one_of, ratio, rounding
from .gradients import LARGEST_GROUP, PROMPTS, Law, groups, problem, term_sizes

Array = NDArray[np.float64]

LARGEST_BUDGET = 10_000

REACH = (1e-6, 1e9)
"""Where a search begins and ends that has no bounds of its own."""

EITHER_WAY = (1.0, 1 - ROUNDED, 1 + ROUNDED)
"""A limit, and the limits that rounding lets it be."""


def lowest(of: Callable[[Any], Any], least: float = 0.0) -> Known:
    """Where a convex function of u > 0, a sum of powers of u and 1 + u, is least from a bound on: by the
    root of its derivative, a complex step's; and how far off it may be.
    """

    def slope(u: float) -> float:
        step = 1e-30 * u
        return float(of(complex(u, step)).imag) / step

    if least > 0 and slope(least) >= 0:
        return least, rounding(least)
    low, high = max(least, REACH[0]), REACH[1]
    if slope(low) >= 0 or slope(high) <= 0:
        raise ArithmeticError(
            f"the search's bounds bind: nothing is least between {low} and {high}"
        )
    place = exp(brentq(lambda t: slope(exp(t)), log(low), log(high), xtol=1e-15, rtol=1e-15))
    bend = (slope(place * (1 + 1e-4)) - slope(place * (1 - 1e-4))) / (2e-4 * place)
    # No power's derivative is larger than a few times the power over u.
    return place, rounding(place, 2 * of(place) / place / bend)


def constants(drawn: Drawn) -> Iterator[Check]:
    """The constants and their curve, also where prompts all but agree; by a run's own pairs too."""
    for alike in (False, True):
        bandit = problem(drawn, PROMPTS, uniform=True)
        if alike:
            features = bandit.arrays()["features"]
            moved = features[:1] + 10 ** drawn.rng.uniform(-3, -2) * features
            bandit = SoftmaxBandit.linear(
                bandit.context_probs,
                moved,
                np.zeros(bandit.d),
                np.tile(bandit.reward_values[:1], (PROMPTS, 1, 1)),
                bandit.reward_probs,
                np.tile(bandit.policy.logits[1:2], (PROMPTS, 1)),
            )
        answer = mse_constants(bandit.moments())
        where = "prompts alike: " if alike else ""
        group = drawn.size(2, LARGEST_GROUP)
        between, error = Law.of(bandit, Estimator("grpo"), group).between
        yield drawn.check(f"{where}G={group}: c1", answer.c1, np.trace(between), np.trace(error))
        for name in ("grpo", "oracle", "vanilla"):
            batch = drawn.size(2, PROMPTS)
            exact_law = Law.of(bandit, Estimator(name), group)
            at = f"{where}G={group} B={batch} {name}"
            yield drawn.check(
                f"{at}: curve", answer.mse(group, batch, name), *exact_law.error(batch, "iid")
            )
            yield drawn.check(
                f"{at}: curve, of {PROMPTS} prompts",
                answer.mse(group, batch, name, population=PROMPTS),
                *exact_law.error(batch, "without-replacement"),
            )
        pairs, size = _pairs(bandit, group)
        yield drawn.check(
            f"{where}G={group}: constants of a run's pairs",
            paired_constants(*pairs),
            (answer.c1, answer.c2, answer.c3),
            # An inner product is no larger than a square; φ/τ is what squares are divided by and multiplied.
            rounding((1 + pairs[-1]) * size),
        )


def _pairs(
    bandit: SoftmaxBandit, group_size: int
) -> tuple[tuple[float, float, float, int, float], float]:
    """A run's estimates: E‖A s‖², inner products of one prompt's terms and of two prompts', G, φ/τ; and
    the mean square of the sizes that the terms are made of.
    """
    single = pairs = square = pair = size = 0.0
    for _, chance, draws, advantages, scores in groups(bandit, Estimator("grpo"), group_size):
        terms = advantages[..., None] * scores
        norms, together = (terms**2).sum(axis=(1, 2)), (terms.sum(axis=1) ** 2).sum(axis=1)
        single += float(chance @ norms) / group_size
        pairs += float(chance @ (together - norms)) / group_size / (group_size - 1)
        sizes = (term_sizes(draws, advantages, scores) ** 2).sum(axis=(1, 2))
        size += float(chance @ sizes) / group_size
    for x, share in enumerate(bandit.context_probs.tolist()):
        outcomes = bandit.outcomes
        probs, rewards = outcomes.probs[x], outcomes.rewards[x]
        squares = (bandit.policy.scores(x)[outcomes.arms[x]] ** 2).sum(axis=1)
        off = rewards - probs @ rewards
        square += share * float(probs @ (squares * off**2))
        pair += share * float(probs @ squares) * float(probs @ off**2)
    gradient = bandit.gradient()
    return (single, pairs, float(gradient @ gradient), group_size, pair / square), size


def _drawn(drawn: Drawn) -> MseConstants:
    """Constants of sizes far apart, such that the best group is of 2 to some hundred."""
    c3 = 10 ** drawn.rng.uniform(-2, 3)
    c1 = c3 / exp(drawn.rng.uniform(log(1.5), log(300.0))) ** 2
    return MseConstants(c1=c1, c2=c3 * drawn.rng.uniform(0, 0.1), c3=c3, vanilla=2 * c3)


def _noise(of: MseConstants, others: Any) -> Any:
    """K · MSE of a group of one output and so many others."""
    return of.c1 * (1 + others) + of.c2 + of.c3 / others


def _least(values: Array) -> NDArray[np.intp]:
    """The places of the values that are least, but for rounding."""
    return np.flatnonzero(values <= values.min() + 2 * rounding(values.min()))


def _nearest(known: MseConstants, budget: int, limit: float) -> Iterator[tuple[int, int]]:
    """The distances of the nearest budget, and group sizes whose noise is the same but for rounding."""
    sizes = np.arange(2, budget + 1)
    close = sizes[_noise(known, sizes - 1.0) <= limit]
    off = np.minimum(budget % close, -budget % close)
    nearest = close[off == off.min()]
    for place in _least(_noise(known, nearest - 1.0)):
        yield int(off.min()), int(nearest[place])


def budgets(drawn: Drawn) -> Iterator[Check]:
    """Budgets near by, by all group sizes; the budget at which noise is signal."""
    for number in range(6):
        known, budget = _drawn(drawn), drawn.size(50, LARGEST_BUDGET)
        others, _ = lowest(partial(_noise, known))
        limit = 1.05 * _noise(known, float(np.clip(others, 1, budget - 1)))
        nearby, group = near_budget(known, budget)
        said = abs(nearby - budget), group
        answers = [
            answer for times in EITHER_WAY for answer in _nearest(known, budget, times * limit)
        ]
        yield drawn.check(f"K={budget}, {number}: nearest budget", said, one_of(said, answers))
        signal, least = float(drawn.rng.uniform(0.01, 2)), _noise(known, others)
        yield drawn.check(
            f"K={budget}, {number}: K_crit",
            critical_budget(known, signal),
            least / signal,
            rounding(least / signal),
        )


def robust(drawn: Drawn) -> Iterator[Check]:
    """The worst of intervals, by a grid in them, their ends included."""
    known = _drawn(drawn)
    sizes = np.array([2, 3, 4, 6, 8, 12, 16, 24, 48])
    batches = 48 // sizes
    for c2, population in ((None, None), ((0.0, 3 * known.c2 + 0.1), None), (None, 100)):
        ends = {
            "c1": (known.c1 * drawn.rng.uniform(0, 0.5), known.c1 * drawn.rng.uniform(1.5, 9)),
            "c3": (known.c3 * drawn.rng.uniform(0.2, 0.9), known.c3 * drawn.rng.uniform(1.1, 3)),
        }
        grids = [
            np.linspace(*ends_of, 5) for ends_of in (ends["c1"], c2 or (known.c2,) * 2, ends["c3"])
        ]
        factor = 1.0 if population is None else (population - batches) / (population - 1)
        worst = np.ones(len(sizes))
        for c1, middle, c3 in product(*grids):
            errors = (c1 * factor + middle / sizes + c3 / sizes / (sizes - 1)) / batches
            worst = np.maximum(worst, errors / errors.min())
        size, least = robust_group_size(
            known, **ends, group_sizes=sizes, batch_sizes=batches, c2=c2, population=population
        )
        where = f"c2 {'known' if c2 is None else 'too'}, of {population or 'all'} prompts"
        yield drawn.check(f"{where}: worst ratios", least, worst, rounding(worst))
        best = [(place,) for place in sizes[_least(worst)]]
        yield drawn.check(f"{where}: best in the worst case", (size,), one_of((size,), best))


@dataclass(frozen=True)
class Spending:
    """A budget C, of which a prompt costs q and an output r, at most N prompts once each."""

    known: MseConstants
    total: int
    prompt_cost: float
    output_cost: float
    population: int | None

    def bought(self, size: Any) -> Any:
        """B, real, that spends the budget; it may be above N."""
        return self.total / (self.prompt_cost + self.output_cost * size)

    def error(self, size: Any, batch: Any) -> Any:
        """The error at G and B."""
        of, prompts = self.known, self.population
        share = 1.0 if prompts is None else (prompts - batch) / (prompts - 1)
        return (of.c1 * share + of.c2 / size + of.c3 / size / (size - 1)) / batch

    def star(self) -> Known:
        """The real G of least error, with the error of its place."""
        least = 1.0
        if self.population is not None:
            spread = self.total / self.population - self.prompt_cost
            least = max(least, spread / self.output_cost)
        others, error = lowest(lambda u: self.error(1 + u, self.bought(1 + u)), least - 1)
        return 1 + others, rounding(1.0) + error

    def whole(self, size: int) -> int:
        """B, whole; costs and budgets are sums of powers of 2, so that what they buy is exact."""
        bought = int(self.bought(size))
        return bought if self.population is None else min(bought, self.population)

    def near(self, best: int, limit: float, least: int) -> tuple[int, int]:
        """The group sizes next to a good one whose error at real B is below a limit."""

        def good(size: int) -> bool:
            most = inf if self.population is None else self.population
            return bool(self.error(size, min(self.bought(size), most)) <= limit)

        high = low = best
        while self.bought(high + 1) >= 1 and good(high + 1):
            high += 1
        while low > least and good(low - 1):
            low -= 1
        return low, high


def optima(drawn: Drawn) -> Iterator[Check]:
    """G* and the advice with costs and populations, by search over all group sizes."""
    for cost, output_cost, population in (
        (0.0, 1.0, None), (7.5, 1.0, None), (3.0, 0.25, None), (0.0, 1.0, 97), (5.0, 2.0, 41),
    ):  # fmt: skip
        known, total = _drawn(drawn), drawn.size(200, LARGEST_BUDGET)
        spending = Spending(known, total, cost, output_cost, population)
        where = f"q={cost:g} r={output_cost:g} N={population} C={total}"
        star = optimal_group_size(
            known, prompt_cost=cost, output_cost=output_cost, population=population,
            budget=None if population is None else total,
        )  # fmt: skip
        yield drawn.check(f"{where}: G*", star, *spending.star())
        plain = cost == 0 and output_cost == 1
        sizes = [
            size
            for size in range(2, int((total - cost) / output_cost) + 1)
            if not plain or (total % size == 0 and total // size <= (population or total))
        ]
        batches = [spending.whole(size) for size in sizes]
        errors = np.array(known.mse(sizes, batches, population=population))
        # Without costs no group is so small that the budget outlasts the prompts.
        least = max(2, -(-total // population)) if plain and population is not None else 2
        advice = group_size_advice(
            known,
            total,
            prompt_cost=cost,
            output_cost=None if plain else output_cost,
            population=population,
        )
        said = (advice.g_best, *advice.g_interval)
        best, *ends = one_of(
            said,
            (
                (sizes[place], *spending.near(sizes[place], 1.05 * times * errors.min(), least))
                for place in _least(errors)
                for times in EITHER_WAY
            ),
        )
        yield drawn.check(f"{where}: the advised G", said[0], best)
        yield drawn.check(f"{where}: within 5%", said[1:], ends)
        for row in advice.table[:: max(len(advice.table) // 4, 1)]:
            at = f"{where}: G={row.group_size}"
            bought = spending.whole(row.group_size)
            error = known.mse(row.group_size, bought, population=population)
            yield drawn.check(f"{at}, its error", row.mse, error, rounding(error))
            more = ratio((error, rounding(error)), (errors.min(), rounding(errors.min())))
            yield drawn.check(f"{at}, over the best", row.ratio_to_best, *more)
    root = int(drawn.rng.integers(5, 60))
    square = MseConstants(c1=1.0, c2=0.3, c3=float((root - 1) ** 2))
    yield drawn.check(
        f"K={root**2}, a square: the advised G", group_size_advice(square, root**2).g_best, root
    )


ASKED: Asked = {"group_size": (constants, budgets, robust, optima)}
