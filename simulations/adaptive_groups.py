"""Beyond the paper: groups with a size that depends on their rewards. The objective of any such scheme is
known exactly, leave-one-out over the drawn outputs is biased, and the mean over paths is unbiased.

The checks use problems of several prompts with rewards 0 and 1, and plans of two and three stages. They cover
the mean along a direction and the MSE of the sequential estimator and of other estimators in use; the number
of drawn outputs; a scheme that discards pilots; a scheme that trains on a balanced sub-sample; sizes fixed
beforehand, with prompts weighted equally or by their outputs; and the least cost of sizes by known pass
rates.

The claim is falsified if an enumerated mean differs by more than rounding, or if the interval of a simulated
mean excludes the prediction. Prompts with rare and with frequent success separate the weights.

Cost: some 10⁵ to 10⁶ groups for the nearest rivals, by the reference engine.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np

from ustat_pg.engines import Estimator, GroupSize, PlanCell, SquaredError, of_plan
from ustat_pg.predictions import (
    best_two_stage,
    count_table,
    known_rates_bound,
    plan_cost,
    plan_mse,
    plan_weight,
    sized_mse,
)
from ustat_pg.sampling.plans import Plan
from ustat_pg.validation import Array

from .engines import SizedCell
from .evidence import Check, Linear, at_most, equal, mean_of
from .problems import BanditEntry, Suite
from .shared.peers import telling

PLAIN = "RLOO of what was drawn is unbiased"
SEEN = "divided by the share of pilots, not of subsets"
PATHS = "paths counted without the first two draws"
ALWAYS = "every group is drawn to the end"
COMMIT = "w is the chance to go on"
CLAIMED = "balanced sub-samples climb log p"
ALIKE = "a mean over all outputs weights prompts alike"
NO_SPREAD = "sizes by pass rates without c1"
TIGHTER = "the bound of known pass rates doubled"
RIVALS = (PLAIN, SEEN, PATHS, ALWAYS, COMMIT, CLAIMED, ALIKE, NO_SPREAD, TIGHTER)

TWO_STAGES = "3+2 if mixed"
PLANS = (TWO_STAGES, "3+2 if 0.5..1", "2,3,5 until 1 success and 1 failure")
"""Plans with a largest group that is small enough to enumerate in order."""

LARGE = 5
"""A group size larger than the best one for the pass rates."""
LARGEST = 6
"""The largest group in the enumeration of sizes by prompt; the bound uses it too."""
FAR = 2.0
"""The largest allowed ratio of the cost of a group of 5 to the bound."""

COMMITS = "4+1 if 0.25..0.5, drop early"
"""A pilot that is used only if the plan goes on."""

BALANCED = "2,4 until 1 success and 1 failure"
"""A plan with rounds until there is a balanced pair."""


def checks(suite: Suite) -> Iterator[Check]:
    """Plans on several prompts, and sizes fixed beforehand."""
    for entry in suite.few_outcomes:
        for plan in PLANS if suite.size != "smoke" else PLANS[:2]:
            yield from under_a_plan(entry, plan)
        yield from used_in_part(entry)
        yield from fixed_beforehand(entry)


def wrong_weights(plan: Plan, p: Array) -> dict[str, Array]:
    plain, pilot = plan_weight(plan, "grpo", p), plan.looks[0]
    seen = {SEEN: plain / (1 - p**pilot - (1 - p) ** pilot)} if plan.text == TWO_STAGES else {}
    return {PLAIN: plain, PATHS: _without_first_draws(plan, p), **seen}


def _without_first_draws(plan: Plan, p: Array) -> Array:
    """w of m = a (1 - a), with the share a of paths that begin with a success, by enumeration."""
    begun: dict[tuple[int, int], list[int]] = {}
    for rewards in product((0, 1), repeat=plan.looks[-1]):
        looks = zip(plan.looks, plan.go_on, strict=False)
        ends = (look for look, chances in looks if not chances[sum(rewards[:look])])
        stop = next(ends, plan.looks[-1])
        # Outputs after a stop are free, so each path is counted once per value of these outputs.
        begun.setdefault((stop, sum(rewards[:stop])), []).append(rewards[0])
    total = np.zeros_like(p)
    for (n, k), first in begun.items():
        share, paths = float(np.mean(first)), len(first) / 2 ** (plan.looks[-1] - n)
        total += paths * p**k * (1 - p) ** (n - k) * share * (1 - share)
    return total / (p * (1 - p))


def under_a_plan(entry: BanditEntry, words: str) -> Iterator[Check]:
    """Means, errors and sizes under a plan, of the sequential estimator and of plain ones."""
    problem, moments = entry.problem, entry.problem.moments()
    cell, plan = PlanCell.of(problem, words), Plan.parse(words)
    wrong = wrong_weights(plan, moments.value)
    direction = telling(problem, (_mean(entry, w - 1) for w in wrong.values()))
    others = {rival: _mean(entry, weight) for rival, weight in wrong.items()}
    what, size = f"{words}: sequential is unbiased", _size(plan_mse(moments, plan))
    yield direction.check(
        entry, what, cell, of_plan("sequential"), problem.gradient(), others, scale=size
    )
    for name in ("sequential", "grpo", "std"):
        prediction, estimator = plan_mse(moments, plan, name), of_plan(name)
        plain = {PLAIN: plan_mse(moments, plan, "grpo").mse} if name == "sequential" else {}
        mean = _mean(entry, prediction.mean_factor)
        what = f"{words}: mean of {name}"
        yield direction.check(entry, what, cell, estimator, mean, scale=_size(prediction))
        statement = equal(prediction.mse, plain, scale=prediction.mse)
        what = f"{words}: error of {name}"
        yield entry.check(what, mean_of(cell, SquaredError(estimator)), statement)
    size = plan_mse(moments, plan).expected_size
    if words == TWO_STAGES:
        yield from _searched(entry, cell)
    yield entry.check(
        f"{words}: outputs drawn",
        mean_of(cell, GroupSize()),
        equal(size, {ALWAYS: float(plan.looks[-1])}, scale=size),
    )


def _searched(entry: BanditEntry, other: PlanCell) -> Iterator[Check]:
    """The cheapest of small plans: its cost, and a check that another plan is not cheaper."""
    moments, sequential = entry.problem.moments(), SquaredError(of_plan("sequential"))
    plan, cost = best_two_stage(moments, largest_pilot=4, largest_group=other.group_size)
    cell, size = PlanCell.of(entry.problem, plan.text), plan_mse(moments, plan).expected_size
    yield entry.check(
        "best of two stages: outputs times error",
        Linear(cell, ((sequential, size),)),
        equal(cost, {PLAIN: size * plan_mse(moments, plan, "grpo").mse}, scale=cost),
    )
    drawn = plan_mse(moments, other.plan).expected_size
    yield entry.check(
        f"{other.plan}: no less than the best of two stages",
        Linear(other, ((sequential, -drawn),)),
        at_most(-cost, -plan_cost(moments, other.plan)),
    )
    later = plan_cost(moments, other.plan, 2.0) / plan_cost(moments, other.plan)
    more = other.group_size - Plan.parse(other.plan).looks[0]
    goes_on = (drawn - Plan.parse(other.plan).looks[0]) / more
    yield entry.check(
        f"{other.plan}: cost of going on",
        Linear(other, ((GroupSize(), 2.0 / more),), drawn - 2.0 * (drawn / more - goes_on)),
        equal(later * drawn, scale=drawn),
    )


def used_in_part(entry: BanditEntry) -> Iterator[Check]:
    """The mean of a scheme that discards some pilots; and of a balanced sub-sample divided by the pool's pass
    rate, which is said to climb log p.
    """
    plan, moments = Plan.parse(COMMITS), entry.problem.moments()
    fixed = count_table("std", plan.looks[-1]).weight(moments.value)
    for words, name, rival, weight in (
        (COMMITS, "std", COMMIT, fixed * plan.kept_share(moments.value)),
        (BALANCED, "balanced-inverse:2", CLAIMED, 1 / moments.value),
    ):
        prediction, wrong = plan_mse(moments, words, name), _mean(entry, weight)
        mean = _mean(entry, prediction.mean_factor)
        what, cell = f"{words}: mean of {name}", PlanCell.of(entry.problem, words)
        yield telling(entry.problem, [wrong - mean]).check(
            entry, what, cell, of_plan(name), mean, {rival: wrong}, scale=_size(prediction)
        )


def fixed_beforehand(entry: BanditEntry) -> Iterator[Check]:
    """Sizes by prompt: their cost, the weights of a mean over all outputs, and the bound."""
    problem, moments = entry.problem, entry.problem.moments()
    bound, real = known_rates_bound(moments, LARGEST)
    sizes = np.round(real).astype(int)
    if len(set(sizes.tolist())) == 1:
        sizes[int(moments.value.round(9).argmin())] += 1
    grpo, mean_size = Estimator("grpo"), float(moments.context_probs @ sizes)
    cell = SizedCell(problem, int(sizes.max()), sizes=tuple(sizes.tolist()))
    prediction = sized_mse(moments, sizes)
    cost = prediction.mse * prediction.expected_size
    spread = float(moments.context_probs @ moments.gradient_sq) - moments.mean_gradient_sq
    times = Linear(cell, ((SquaredError(grpo), mean_size),))
    yield entry.check(
        "sizes by prompt: outputs times error",
        times,
        equal(cost, {NO_SPREAD: cost - spread * mean_size}, scale=cost),
    )
    # By whole numbers the mean size grows by no more than the first, a prompt's noise by no more than the
    # second: where n < r, r/n of its first part and r(r-1)/(n(n-1)) of the rest.
    larger = float((sizes / real).max())
    noisier = float((real * (real - 1) / (sizes * (sizes - 1))).max())
    yield entry.check(
        "sizes by prompt: near the bound of known pass rates",
        times,
        at_most(larger * max(noisier, 1.0) * bound, cost),
    )
    equal_sizes = SizedCell(problem, LARGE, sizes=(LARGE,) * problem.contexts)
    yield entry.check(
        f"G={LARGE}: no less than the bound of known pass rates",
        Linear(equal_sizes, ((SquaredError(grpo), -float(LARGE)),)),
        at_most(-bound, -plan_cost(moments, str(LARGE)), {TIGHTER: -FAR * bound}),
    )
    pooled = sized_mse(moments, sizes, pooled=True)
    alike, mean = problem.gradient(), _mean(entry, pooled.mean_factor)
    what, over_all = "sizes by prompt: mean over all outputs", replace(cell, pooled=True)
    direction = telling(problem, [mean - alike])
    yield direction.check(entry, what, over_all, grpo, mean, {ALIKE: alike}, scale=_size(pooled))


def _size(prediction: Any) -> float:
    """The size of an estimate, as the root of its largest second moment at a prompt."""
    return float(prediction.second_moment.max()) ** 0.5


def _mean(entry: BanditEntry, weight: Array) -> Array:
    return entry.problem.moments().weighted_gradient(weight)
