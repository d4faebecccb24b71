"""Sampling plans on a scored pool: their noise and their outputs in closed form (adaptive_groups).

A pool of N rollouts with n_s successes at a prompt contains every group that a plan of at most N outputs
could draw. Draws without replacement stop at t = (n, k) with the hypergeometric chance of k successes, times
the share of their orders in which the plan stops there,

    P(t) = N(t) / C(n, k) × C(n_s, k) C(N - n_s, n - k) / C(N, n),

and E‖ĝ‖² given t is a combination of means of blocks of K_ij = ⟨s_i, s_j⟩, so no group needs to be drawn.
"""

from __future__ import annotations

import numpy as np
from scipy.special import perm
from scipy.stats import hypergeom

from ...inference import Means, beside, pairs, ratio_interval
from ...moments.record import Moments
from ...predictions import AdaptiveAdvice, known_rates_bound
from ...predictions.adaptive import sequential, two_stage_plans
from ...predictions.closed_forms import inner_product
from ...sampling.plans import Plan
from ...validation import Array, InputError, number
from .moments import gradients, over_prompts, prompt_moments
from .scored import ScoredPool
from .tables import _Counts

_CLASSES = 8
"""The number of classes of pass rates with pooled moments for the bound; moments of single prompts are too
noisy.
"""


def plan_costs(
    pool: ScoredPool, plans: list[Plan], stage_cost: float = 0.0
) -> tuple[list[Means], Array]:
    """Outputs times noise of the unbiased estimator under each plan, and the plan's number of outputs.

    Arguments:
        pool: a pool with N rollouts per prompt and rewards 0 and 1.
        plans: plans of at most N outputs that first draw at least two and use every group.
        stage_cost: cost of continuing after the first look, in outputs.

    Returns:
        a mean with its jackknife for each plan, and the expected sizes.

    Raises:
        InputError: the pool is too small for a plan, has other rewards, or has one prompt.
    """
    counts = _Counts(pool)
    for plan in plans:
        plan.require_two()
        if plan.looks[-1] > pool.rollouts:
            raise InputError(
                f"plan {plan.text!r} draws up to {plan.looks[-1]} outputs: the pool has {pool.rollouts} "
                "rollouts a prompt"
            )
    columns = [column for plan in plans for column in _of_plan(counts, plan, stage_cost)]
    averages = beside(
        over_prompts(pool, np.column_stack(columns)),
        pairs(pool.by_prompt(gradients(pool)), looks=pool.looks),
    )

    def cost(place: int) -> Means:
        def of(values: Array) -> Array:
            second, size = values[..., 2 * place], values[..., 2 * place + 1]
            return (size * (second - values[..., -1]))[..., None]

        return averages.apply(of)

    return [cost(place) for place in range(len(plans))], averages.full[1:-1:2]


def _of_plan(counts: _Counts, plan: Plan, stage_cost: float) -> tuple[Array, Array]:
    """E‖ĝ‖² and the expected cost in outputs of a group at each prompt, (P,) each."""
    stops, total, won = plan.stops, counts.count, np.asarray(counts.won)[:, None]
    n, k = stops.sizes, stops.successes
    chances = stops.orders * hypergeom.pmf(k, total, won, n)
    both, none, one = counts.blocks

    def of_sums(i: int, j: int) -> Array:
        """P(t) over the ways to choose i successes and j failures of the pool in their order, (P, T)."""
        ways = perm(won, i) * perm(total - won, j)
        return np.where((k >= i) & (n - k >= j), chances / np.maximum(ways, 1), 0.0)

    means = *counts.diagonals, both, none, one / 2, one / 2
    second = inner_product(sequential(plan).shares(of_sums), means)
    size = chances @ n.astype(np.float64)
    if stage_cost:
        size = size + stage_cost * (chances @ (n > plan.looks[0]))
    return np.asarray(second), np.asarray(size)


def adaptive_pool_advice(pool: ScoredPool, *, stage_cost: float = 0.0) -> AdaptiveAdvice:
    """The comparison of two-stage plans with fixed groups on a model's prompts, in closed form from its
    scored pool.

    Fixed groups and plans that fit in the pool are compared on the same rollouts; the interval is for the
    ratio of the two best. The bound uses pass rates in eight classes.

    Arguments:
        pool: a pool with rewards 0 and 1.
        stage_cost: cost of the second draw, in outputs.

    Raises:
        InputError: rewards are not 0 or 1, there is one prompt, or no group has a signal.
    """
    number("cost of a stage", stage_cost, minimum=0.0)
    most = pool.rollouts
    fixed = [Plan.parse(size) for size in range(2, most + 1)]
    plans = two_stage_plans(min(12, most - 1), most)
    costs, sizes = plan_costs(pool, [*fixed, *plans], stage_cost)
    values = np.array([cost.full[0] for cost in costs])
    best = int(values[: len(fixed)].argmin())
    staged = len(fixed) + int(values[len(fixed) :].argmin())
    if not values[best] > 0:
        raise InputError("the noise of this pool is not distinguishable from 0: score more prompts")
    return AdaptiveAdvice(
        group_size=fixed[best].looks[0],
        plan=plans[staged - len(fixed)].text,
        plan_size=float(sizes[staged]),
        plan_ratio=float(values[staged] / values[best]),
        bound_ratio=known_rates_bound(_by_class(pool), most)[0] / float(values[best]),
        plan_interval=ratio_interval(beside(costs[staged], costs[best])),
    )


def _by_class(pool: ScoredPool) -> Moments:
    """Moments of classes of prompts with similar shares of successes."""
    moments = prompt_moments(pool).by_prompt(pool)
    order = np.argsort(moments.value, kind="stable")
    classes = [part for part in np.array_split(order, min(_CLASSES, pool.distinct)) if len(part)]

    def mean(column: Array) -> Array:
        return np.array([column[part].mean() for part in classes])

    trace, value = mean(moments.fisher_trace), mean(moments.value)
    noise = np.maximum(mean(moments.variance_trace), 0.0)
    signal = float(pairs(pool.by_prompt(gradients(pool))).full[0])
    return Moments(
        context_probs=np.array([len(part) for part in classes]) / pool.distinct,
        value=value,
        reward_variance=np.where(trace > 0, noise / np.where(trace > 0, trace, 1.0), 0.0),
        fisher_trace=trace,
        norm_advantage=np.zeros(len(classes)),
        norm_squared_advantage=np.maximum(mean(moments.norm_squared_advantage), 0.0),
        gradient_sq=np.maximum(mean(moments.gradient_sq), 0.0),
        mean_gradient_sq=max(signal, 0.0),
        reward_range=(0.0, 1.0),
    )
