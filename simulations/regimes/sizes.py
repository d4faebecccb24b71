"""Group sizes and budgets by search: budgets to 10,000, costs, populations, constants of all sizes."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import exp, log
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar

from ustat_pg.engines import Estimator
from ustat_pg.experiment import Check
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

from . import Asked, Drawn
from .gradients import LARGEST_GROUP, PROMPTS, Law, groups, problem

Array = NDArray[np.float64]

BY_SEARCH = 1e-5
"""The relative difference of a place that a search by heights finds: the root of rounding, and a reserve."""

LARGEST_BUDGET = 10_000


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
        law = Law.of(bandit, Estimator("grpo"), group)
        apart = law.means - law.mean
        between = float(bandit.context_probs @ (apart**2).sum(axis=1))
        yield drawn.check(f"{where}G={group}: c1", answer.c1, between, 1e-7)
        for name in ("grpo", "oracle", "vanilla"):
            batch = drawn.size(2, PROMPTS)
            exact_law = Law.of(bandit, Estimator(name), group)
            at = f"{where}G={group} B={batch} {name}"
            yield drawn.check(
                f"{at}: curve", answer.mse(group, batch, name), exact_law.error(batch, "iid")
            )
            yield drawn.check(
                f"{at}: curve, of {PROMPTS} prompts",
                answer.mse(group, batch, name, population=PROMPTS),
                exact_law.error(batch, "without-replacement"),
            )
        yield drawn.check(
            f"{where}G={group}: constants of a run's pairs",
            paired_constants(*_pairs(bandit, group)),
            (answer.c1, answer.c2, answer.c3),
            1e-7,
        )


def _pairs(bandit: SoftmaxBandit, group_size: int) -> tuple[float, float, float, int, float]:
    """A run's estimates: E‖A s‖², inner products of one prompt's terms and of two prompts', G, φ/τ."""
    single = pairs = square = pair = 0.0
    for _, chance, _, advantages, scores in groups(bandit, Estimator("grpo"), group_size):
        terms = advantages[..., None] * scores
        norms, together = (terms**2).sum(axis=(1, 2)), (terms.sum(axis=1) ** 2).sum(axis=1)
        single += float(chance @ norms) / group_size
        pairs += float(chance @ (together - norms)) / group_size / (group_size - 1)
    for x, share in enumerate(bandit.context_probs.tolist()):
        outcomes = bandit.outcomes
        probs, rewards = outcomes.probs[x], outcomes.rewards[x]
        squares = (bandit.policy.scores(x)[outcomes.arms[x]] ** 2).sum(axis=1)
        off = rewards - probs @ rewards
        square += share * float(probs @ (squares * off**2))
        pair += share * float(probs @ squares) * float(probs @ off**2)
    gradient = bandit.gradient()
    return single, pairs, float(gradient @ gradient), group_size, pair / square


def _drawn(drawn: Drawn) -> MseConstants:
    """Constants of sizes far apart, such that the best group is of 2 to some hundred."""
    c3 = 10 ** drawn.rng.uniform(-2, 3)
    c1 = c3 / exp(drawn.rng.uniform(log(1.5), log(300.0))) ** 2
    return MseConstants(c1=c1, c2=c3 * drawn.rng.uniform(0, 0.1), c3=c3, vanilla=2 * c3)


def _noise(of: MseConstants, size: Any) -> Any:
    return of.c1 * size + of.c2 + of.c3 / (size - 1)


def budgets(drawn: Drawn) -> Iterator[Check]:
    """Budgets near by, by all group sizes; the budget at which noise is signal."""
    for number in range(6):
        known, budget = _drawn(drawn), drawn.size(50, LARGEST_BUDGET)
        sizes = np.arange(2, budget + 1)
        heights = np.asarray(_noise(known, sizes.astype(float)))
        best = minimize_scalar(
            lambda g, of=known: _noise(of, g), bounds=(2, budget), method="bounded"
        )
        close = sizes[heights <= 1.05 * best.fun]
        off = np.minimum(budget % close, -budget % close)
        # A group larger than half the budget fits in once at least.
        off = np.where(close > budget, close - budget, off)
        nearest = close[off == off.min()]
        size = nearest[np.argmin(_noise(known, nearest.astype(float)))]
        nearby, group = near_budget(known, budget)
        yield drawn.check(
            f"K={budget}, {number}: nearest budget",
            (abs(nearby - budget), group),
            (off.min(), size),
        )
        signal = float(drawn.rng.uniform(0.01, 2))
        least = minimize_scalar(
            lambda t, of=known: _noise(of, 1 + exp(t)), bounds=(-5, 12), method="bounded"
        )
        yield drawn.check(
            f"K={budget}, {number}: K_crit", critical_budget(known, signal), least.fun / signal
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
        yield drawn.check(f"{where}: worst ratios", least, worst)
        yield drawn.check(f"{where}: best in the worst case", size, sizes[np.argmin(worst)])


def optima(drawn: Drawn) -> Iterator[Check]:
    """G* and the advice with costs and populations, by search over all group sizes."""
    for cost, output_cost, population in (
        (0.0, 1.0, None), (7.5, 1.0, None), (3.0, 0.25, None), (0.0, 1.0, 97), (5.0, 2.0, 41),
    ):  # fmt: skip
        known, total = _drawn(drawn), drawn.size(200, LARGEST_BUDGET)

        def spent(size: float, of: MseConstants = known, cost: float = cost, output_cost: float = output_cost,
                  population: int | None = population, total: int = total) -> float:  # fmt: skip
            batch = total / (cost + output_cost * size)
            if population is not None:
                batch = min(batch, population)
            share = 1.0 if population is None else (population - batch) / (population - 1)
            return (of.c1 * share + of.c2 / size + of.c3 / size / (size - 1)) / batch

        where = f"q={cost:g} r={output_cost:g} N={population} C={total}"
        least = 1.0 if population is None else max(1.0, (total / population - cost) / output_cost)
        place = minimize_scalar(
            lambda t, of=spent, least=least: of(least + exp(t)),
            bounds=(-12, log(total)), method="bounded", options={"xatol": 1e-12},
        )  # fmt: skip
        star = optimal_group_size(
            known, prompt_cost=cost, output_cost=output_cost, population=population,
            budget=None if population is None else total,
        )  # fmt: skip
        yield drawn.check(f"{where}: G*", star, least + exp(place.x), 10 * BY_SEARCH)
        plain = cost == 0 and output_cost == 1
        sizes = [
            size
            for size in range(2, int((total - cost) / output_cost) + 1)
            if not plain or (total % size == 0 and total // size <= (population or total))
        ]
        batches = [
            min(int(total // (cost + output_cost * size)), population or total) for size in sizes
        ]
        errors = np.array(known.mse(sizes, batches, population=population))
        best = sizes[len(sizes) - 1 - int(errors[::-1].argmin())]
        # Without costs no group is so small that the budget outlasts the prompts.
        lowest = -(-total // population) if plain and population is not None else 2
        high = low = best
        while high < int((total - cost) / output_cost) and spent(high + 1) <= 1.05 * errors.min():
            high += 1
        while low > max(2, lowest) and spent(low - 1) <= 1.05 * errors.min():
            low -= 1
        advice = group_size_advice(
            known,
            total,
            prompt_cost=cost,
            output_cost=None if plain else output_cost,
            population=population,
        )
        yield drawn.check(f"{where}: the advised G", advice.g_best, best)
        yield drawn.check(f"{where}: within 5%", advice.g_interval, (low, high))
        for row in advice.table[:: max(len(advice.table) // 4, 1)]:
            at = f"{where}: G={row.group_size}"
            bought = min(int(total // (cost + output_cost * row.group_size)), population or total)
            error = known.mse(row.group_size, bought, population=population)
            yield drawn.check(f"{at}, its error", row.mse, error)
            yield drawn.check(f"{at}, over the best", row.ratio_to_best, error / errors.min())
    root = int(drawn.rng.integers(5, 60))
    square = MseConstants(c1=1.0, c2=0.3, c3=float((root - 1) ** 2))
    yield drawn.check(
        f"K={root**2}, a square: the advised G", group_size_advice(square, root**2).g_best, root
    )


ASKED: Asked = {"group_size": (constants, budgets, robust, optima)}
