"""Exact results for groups whose size depends on their 0/1 rewards (adaptive_groups).

A plan stops at t = (n, k), k successes among n outputs, with probability P(t). The scores of a finished
group are independent given its rewards, with mean g/p for a success and -g/q for a failure. Let an estimator
weight the mean scores of the u(t) successes and v(t) failures that it uses, ĝ = a(t) s̄₁ + b(t) s̄₀. Then at
a prompt

    E ĝ   = w(p) g,     w(p) = Σₜ P(t) [ a/p - b/q ]
    E‖ĝ‖² = Σₜ P(t) [ a² (‖g‖²/p² + (A₁ - ‖g‖²/p²)/u) + b² (‖g‖²/q² + (A₀ - ‖g‖²/q²)/v) - 2ab ‖g‖²/(pq) ]

with A_z = E[‖s‖² | z]. So w determines what the scheme climbs, and the estimator is unbiased if and only if w
= 1. If advantages sum to zero, a = -b = m, this means that m(t) is an unbiased estimate of p q under the
plan.

Down-sampling keeps m outputs of a group by their rewards (PODS, arXiv 2504.13818, keeps the m outputs whose
rewards vary most). The kept group has m outputs and j = κ(n, k) successes: a = a₁(j) j/m and b = a₀(j)
(m-j)/m by its table. If the variance decides and n is large, half of the kept outputs are successes: for even
m, w of grpo tends to m/(4 (m-1) p q) and the objective to a multiple of the log-odds log(p/q), so prompts
that are nearly always or nearly never solved get most weight.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import minimize_scalar

from ..display.numbers import readable
from ..display.shown import Shown, rows
from ..moments.record import Known, Moments, takes_problems
from ..registry import parse, require_group
from ..rounding import SUM
from ..sampling.plans import Plan
from ..validation import Array, InputError, integer, nearest, number, one_of, shares
from .closed_forms import (
    Shares,
    centred_moment,
    grpo_error,
    pair_noise,
    stop_shares,
    stop_weight,
)
from .count_tables import count_table, require_binary
from .mse import about, gradient_mse, no_gradient

Counts = NDArray[np.int64]
Scale = Callable[[Array, Counts], Array]


ROWS = {
    "plan": "plan",
    "estimator": "estimator",
    "expected_size": "outputs drawn for one used prompt",
    "mse": "MSE of the minibatch gradient",
    "squared_bias": "  squared bias",
    "noise_to_signal": "noise to signal, tr Cov ĝ/‖E ĝ‖²",
    "critical_budget": "outputs per step at which both are equal",
    "cosine": "cosine of E ĝ to the gradient",
    "silent": "share of groups with equal rewards",
}
"""The label of each number of a plan."""


@dataclass(frozen=True, eq=False)
class PlanPrediction(Shown):
    """The effect of a sampling plan and an estimator, with B used groups.

    Arguments:
        mean_factor: w(x), the factor between g(x) and the mean estimate at a prompt, (X,).
        second_moment: E‖ĝ‖² of one prompt's group, (X,).
        sizes: mean number of outputs drawn for one used group, by prompt, (X,).
        expected_size: mean of the sizes over the drawn prompts.
        mse: E‖ĝ - g‖² of a batch of B groups.
        squared_bias: ‖E ĝ - g‖².
        noise_to_signal: tr Cov ĝ/‖E ĝ‖² of that batch; None where E ĝ = 0.
        critical_budget: outputs per step at which the noise equals the signal.
        cosine: cosine of the angle between E ĝ and g; None if one of them is 0.
        plan: the plan in words; None if sizes are given by prompt.
        estimator: its name.
        silent: share of the drawn groups in which all used rewards are equal.
    """

    mean_factor: Array
    second_moment: Array
    sizes: Array
    expected_size: float
    mse: float
    squared_bias: float
    noise_to_signal: float | None
    critical_budget: float | None
    cosine: float | None
    plan: str | None = None
    estimator: str | None = None
    silent: float | None = None

    def __str__(self) -> str:
        factors = " ".join(readable(factor, 4) for factor in self.mean_factor)
        return f"{rows(vars(self), ROWS)}\n{'mean estimate over gradient, by prompt':42} {factors}"


@dataclass(frozen=True)
class _Uses:
    """The weights of the two mean scores, and the outputs used, at each stop of a plan, (T,) each."""

    won: Array
    lost: Array
    successes: Counts
    failures: Counts

    def shares(self, chances: Callable[[int, int], Array]) -> Shares:
        """The shares of E‖ĝ‖², (X,) each.

        Arguments:
            chances: as :func:`~ustat_pg.predictions.closed_forms.stop_shares` takes it, (X, T).
        """
        alone = (1 / np.maximum(n, 1) for n in (self.successes, self.failures))
        return stop_shares(chances, self.won, self.lost, *alone)


def sequential(plan: Plan) -> _Uses:
    """The use of each stop by the unbiased estimator of a plan that uses every group."""
    plan.require_two()
    mean = plan.stops.kernel_means
    return _Uses(mean, -mean, plan.stops.successes, plan.stops.sizes - plan.stops.successes)


def _by_count(estimator: str, successes: Counts, outputs: Counts) -> _Uses:
    """A named estimator, applied to the used outputs as if their number were fixed."""
    won, lost = np.zeros(len(outputs)), np.zeros(len(outputs))
    for size in np.unique(outputs):
        table, here = count_table(estimator, int(size)), outputs == size
        k = successes[here]
        won[here] = table.successes[k] * k / size
        lost[here] = table.failures[k] * (size - k) / size
    return _Uses(won, lost, successes, outputs - successes)


def _balanced(plan: Plan, outputs: int, scale: Scale) -> _Uses:
    """A sub-sample with equally many successes and failures if possible, centred at the pool's mean."""
    sizes, k = plan.stops.sizes, plan.stops.successes
    successes = _KEPT["variance"](k, sizes, outputs)
    failures = outputs - successes
    share = k / sizes
    mixed = (k > 0) & (k < sizes)
    factor = np.where(mixed, scale(np.where(mixed, share, 0.5), sizes), 0.0)
    return _Uses(
        factor * (1 - share) * successes / outputs,
        -factor * share * failures / outputs,
        successes,
        failures,
    )


_KEPT: dict[str, Callable[[Counts, Any, int], Counts]] = {
    # The split is as even as possible; for odd m the larger half are successes.
    "variance": lambda k, n, m: np.clip((m + 1) // 2, np.maximum(0, m - (n - k)), np.minimum(k, m)),
    "highest": lambda k, n, m: np.minimum(k, m),
    "lowest": lambda k, n, m: np.maximum(0, m - (n - k)),
}

DOWNSAMPLING = tuple(_KEPT)
"""Rules that keep outputs: the largest variance of rewards, the highest rewards, the lowest rewards."""


def kept_successes(drawn: int, kept: int, by: str = "variance") -> Counts:
    """κ(k), the successes among the m outputs kept from n with k successes, (n+1,).

    Arguments:
        drawn: n >= 1.
        kept: m, from 1 to n.
        by: one of :data:`DOWNSAMPLING`.

    >>> kept_successes(6, 4)
    array([0, 1, 2, 2, 2, 3, 4])
    """
    n, m = integer("drawn", drawn, 1), integer("kept", kept, 1)
    if m > n:
        raise InputError(f"kept is {m}: it must be at most drawn, {n}")
    return np.asarray(_KEPT[one_of("by", by, DOWNSAMPLING)](np.arange(n + 1), n, m))


_SCALES: dict[str, Scale] = {
    "balanced": lambda share, n: np.ones_like(share),
    "balanced-inverse": lambda share, n: 1 / share,
    "balanced-std": lambda share, n: np.sqrt((n - 1) / (n * share * (1 - share))),
}
"""The factor of z - p̂ in a balanced sub-sample, from p̂ and the number of all outputs."""

PLAN_ESTIMATORS = ("sequential", *_SCALES, *DOWNSAMPLING)
"""Estimators of plans in addition to the named ones. ``sequential`` is unbiased if every group is used.
``balanced:N`` takes N outputs, half successes and half failures, with advantages z - p̂, where p̂ is the mean
of all drawn rewards (Reinforce-Ada); ``balanced-inverse`` divides by p̂ and ``balanced-std`` by the deviation
with ddof 1. ``variance:4:grpo`` keeps 4 outputs by a rule of :data:`DOWNSAMPLING` and computes a named
estimator from them.
"""


def _uses(plan: Plan, estimator: str) -> _Uses:
    """How a named estimator uses each stop of a plan."""
    if estimator in ("sequential", "two-stage"):
        return sequential(plan)
    sizes, successes = plan.stops.sizes, plan.stops.successes
    family, _, words = str(estimator).partition(":")
    if family in (*_SCALES, *_KEPT):
        outputs, _, name = words.partition(":")
        pairs = family in _SCALES
        if (
            not re.fullmatch("[0-9]{1,6}", outputs)
            or int(outputs) < 1
            or (pairs and int(outputs) % 2)
            or pairs == bool(name)
        ):
            form = "N, N an even number of outputs" if pairs else "N:NAME, as in variance:4:grpo"
            raise InputError(f"{estimator!r}: it is written {family}:{form}")
        if sizes.min() < int(outputs):
            raise InputError(
                f"a sub-sample has {outputs} outputs: the plan may stop at {sizes.min()}"
            )
        if pairs:
            return _balanced(plan, int(outputs), _SCALES[family])
        successes = _KEPT[family](successes, sizes, int(outputs))
        sizes, estimator = np.full_like(sizes, int(outputs)), name
    try:
        record = parse(estimator)[0]
    except InputError as error:
        near = nearest(family, PLAN_ESTIMATORS)
        raise InputError(f"{error}, or {', '.join(near or PLAN_ESTIMATORS)}") from None
    if not record.by_count or "best_table" in record.needs:
        raise InputError(
            f"{record.name} is not a table by the number of successes of every group size"
        )
    require_group(estimator, int(sizes.min()))
    return _by_count(estimator, successes, sizes)


def plan_weight(
    plan: Plan | str, estimator: str, pass_rates: ArrayLike, *, kept_share: float = 1.0
) -> Array:
    """w(p), the factor between g(x) and a prompt's mean gradient, which determines what a scheme climbs.

    Arguments:
        plan: the plan, or its words.
        estimator: ``sequential``, one of :data:`PLAN_ESTIMATORS` with its number, or a table by counts.
        pass_rates: p in [0, 1], of any shape.
        kept_share: share of all groups that are used, if the plan refills batches.

    >>> plan_weight("3+2 if mixed", "sequential", [0.1, 0.5]).round(12)
    array([1., 1.])
    >>> plan_weight("3+2 if mixed", "grpo", [1 / 3]).round(4)
    array([0.8])
    """
    scheme = Plan.parse(plan)
    number("kept share", kept_share, above=0.0, maximum=1.0)
    p = shares("pass rate", pass_rates)
    return _weight(scheme, _uses(scheme, estimator), p) / _normaliser(scheme, p, kept_share)


def _rates(moments: Moments) -> Array:
    """Pass rates, clipped because rounding may have put them above 1."""
    return np.clip(moments.value, 0.0, 1.0)


def _chances(plan: Plan, p: Array) -> Callable[[int, int], Array]:
    """P(t) kept(t) over pⁱ qʲ, given i and j, (..., T)."""
    kept = np.array([float(chance) for chance in plan.stops.kept])
    return lambda won, lost: kept * plan.stops.probabilities(p, won, lost)


def _weight(plan: Plan, uses: _Uses, p: Array) -> Array:
    """Σₜ P(t) kept(t) [a/p - b/q], with the shape of p."""
    return np.asarray(stop_weight(_chances(plan, p), uses.won, uses.lost))


def _normaliser(plan: Plan, p: Array, kept_share: float) -> Array:
    """The divisor of a mean over kept groups; infinite if a prompt never has one."""
    if plan.otherwise == "prompt":
        kept = plan.kept_share(p)
        return np.where(kept > 0, kept, np.inf)
    return np.full(np.shape(p), kept_share if plan.otherwise == "batch" else 1.0)


def _second_moment(plan: Plan, uses: _Uses, moments: Moments) -> Array:
    """Σₜ P(t) kept(t) E[‖ĝ‖² | t], (X,)."""
    known = moments.norm_reward, moments.fisher_trace, moments.gradient_sq
    return np.asarray(centred_moment(uses.shares(_chances(plan, _rates(moments))), *known))


@takes_problems
def plan_mse(
    moments: Moments, plan: Plan | str, estimator: str = "sequential", batch_size: int = 1
) -> PlanPrediction:
    """Mean, error, noise and cost of an estimator under a sampling plan (adaptive_groups).

    Arguments:
        moments: the problem, or its moments; rewards 0 and 1.
        plan: the plan, or its words.
        estimator: as :func:`plan_weight` takes it.
        batch_size: B, the used groups of a step; prompts are drawn independently.

    Raises:
        InputError: rewards are not 0 or 1, the plan or estimator cannot be read, the batch is empty, or the
            plan refills batches but keeps no group.

    >>> from ustat_pg.problems import SoftmaxBandit
    >>> coin = SoftmaxBandit.tabular([1.0], [[0.0, 0.0]], [[[1.0], [0.0]]], [[[1.0], [1.0]]])
    >>> plan_mse(coin, "4").mse == plan_mse(coin, "4", "grpo").mse
    True
    >>> found = plan_mse(coin, "3+2 if mixed", "grpo")
    >>> round(found.expected_size, 4), found.mean_factor.round(4)
    (4.5, array([0.825]))
    """
    require_binary(moments, "a sampling plan")
    scheme, batch = Plan.parse(plan), integer("batch size", batch_size)
    uses, p, probs = _uses(scheme, estimator), _rates(moments), moments.context_probs
    share = float(probs @ scheme.kept_share(p))
    if scheme.otherwise == "batch" and share <= SUM:
        raise InputError(
            f"plan {scheme.text!r} keeps no group of these prompts: no batch is ever full"
        )
    divisor = _normaliser(scheme, p, share)
    weight = _weight(scheme, uses, p) / divisor
    second = _second_moment(scheme, uses, moments) / divisor
    sizes = scheme.expected_size(p)
    if scheme.otherwise == "batch":
        sizes = sizes / share
    found = _predicted(moments, weight, second, sizes, batch)
    alike = (uses.successes == 0) | (uses.failures == 0)
    silent = float(probs @ scheme.stops.probabilities(p) @ alike)
    return replace(found, plan=scheme.text, estimator=estimator, silent=silent)


def unbiased_plan(moments: Known, plan: str, batch_size: int = 1) -> PlanPrediction | None:
    """The sequential estimator on all groups that the plan draws; None if the plan may stop at one output."""
    try:
        return plan_mse(moments, Plan.parse(plan).keeping_all, "sequential", batch_size)
    except InputError:
        return None


def _predicted(
    moments: Moments, weight: Array, second: Array, sizes: Array, batch: int
) -> PlanPrediction:
    """The record of a batch, from each prompt's mean factor, second moment and outputs."""
    probs = moments.context_probs
    square, along = map(float, moments.mean_gradient(weight))
    noise = max(float(probs @ second) - square, 0.0)
    size, nothing = float(probs[probs > 0] @ sizes[probs > 0]), no_gradient(moments)
    return PlanPrediction(
        **about(noise / batch, square, along, moments.mean_gradient_sq, nothing=nothing),
        mean_factor=weight,
        second_moment=second,
        sizes=sizes,
        expected_size=size,
        critical_budget=size * noise / square if square > nothing else None,
    )


@takes_problems
def sized_mse(
    moments: Moments,
    sizes: ArrayLike,
    estimator: str = "grpo",
    batch_size: int = 1,
    *,
    pooled: bool = False,
) -> PlanPrediction:
    """Mean, error, noise and cost if each prompt's group size is fixed before its rewards are seen.

    Sizes from a forecast of pass rates, made in earlier steps, do not depend on the used rewards, so
    leave-one-out stays unbiased at each prompt. A loss that averages over all outputs of the batch weights
    prompts by their size, n(x)/E n.

    Arguments:
        moments: the problem, or its moments.
        sizes: n(x), (X,).
        estimator: name of an estimator with a closed form at every size.
        batch_size: B, prompts drawn independently.
        pooled: whether the mean is over all outputs; the divisor is then B E n, as for many prompts.

    >>> from ustat_pg.problems import example_problem, problem_from_mapping
    >>> problem = problem_from_mapping(example_problem())
    >>> sized_mse(problem, [2, 6]).mean_factor
    array([1., 1.])
    >>> sized_mse(problem, [2, 6], pooled=True).mean_factor.round(4)
    array([0.5556, 1.6667])
    """
    probs, batch = moments.context_probs, integer("batch size", batch_size)
    numbers = np.array(sizes_by_prompt(moments, sizes), dtype=float)
    share = numbers / float(probs @ numbers) if pooled else np.ones(len(numbers))
    factor, second = at_prompts(moments, sizes, estimator)
    return _predicted(moments, share * factor, share**2 * second, numbers, batch)


def sizes_by_prompt(moments: Moments, sizes: ArrayLike) -> list[int]:
    """The group sizes n(x), one per prompt."""
    if np.ndim(sizes) != 1:
        raise InputError(f"sizes is {sizes!r}: it must have one group size per prompt")
    numbers = [integer("group size", size) for size in np.asarray(sizes).tolist()]
    if len(numbers) != len(moments):
        raise InputError(
            f"sizes has {len(numbers)} entries: it must have one per prompt ({len(moments)})"
        )
    return numbers


def at_prompts(moments: Moments, sizes: ArrayLike, estimator: str) -> tuple[Array, Array]:
    """The mean over g(x), and E‖ĝ‖², of the group of n(x) outputs of each prompt, (X,) each."""
    numbers = sizes_by_prompt(moments, sizes)
    factor, second = np.empty(len(numbers)), np.empty(len(numbers))
    for x, size in enumerate(numbers):
        alone = gradient_mse(moments.at(x), estimator, size)
        factor[x] = float(alone.mean_factor[0])
        # The MSE about g contains ‖g‖² and twice the mean along g.
        second[x] = alone.mse + (2 * factor[x] - 1) * float(moments.gradient_sq[x])
    return factor, second


@takes_problems
def plan_cost(moments: Moments, plan: Plan | str, stage_cost: float = 0.0) -> float:
    """Outputs times noise of the unbiased estimator; the MSE with K outputs per step is 1/K of it.

    Arguments:
        moments: the problem, or its moments; rewards 0 and 1.
        plan: the plan, or its words; the plan must use every group.
        stage_cost: cost of continuing after the first look, in outputs.

    >>> from ustat_pg.predictions import gradient_mse
    >>> from ustat_pg.problems import SoftmaxBandit
    >>> coin = SoftmaxBandit.tabular([1.0], [[1.0, 0.0]], [[[1.0], [0.0]]], [[[1.0], [1.0]]])
    >>> round(plan_cost(coin, "4") / (4 * gradient_mse(coin, "grpo", 4).mse), 12)
    1.0
    """
    require_binary(moments, "a sampling plan")
    scheme = Plan.parse(plan)
    if scheme.keeping_all is not scheme:
        raise InputError(f"plan {scheme.text!r} throws groups away: plan_mse says what it does")
    number("cost of a stage", stage_cost, minimum=0.0)
    probs, p = moments.context_probs, _rates(moments)
    second = float(probs @ _second_moment(scheme, sequential(scheme), moments))
    size = float(probs @ scheme.expected_size(p))
    stops, first = scheme.stops.probabilities(p), scheme.stops.sizes == scheme.looks[0]
    size += stage_cost * float(probs @ (1 - stops[:, first].sum(axis=1)))
    return size * max(second - moments.mean_gradient_sq, 0.0)


@takes_problems
def best_two_stage(
    moments: Moments,
    *,
    largest_pilot: int = 12,
    largest_group: int = 64,
    stage_cost: float = 0.0,
) -> tuple[Plan, float]:
    """The plan "n₁+n₂ if mixed" with the least :func:`plan_cost`, and that cost.

    Arguments:
        moments: the problem, or its moments; rewards 0 and 1.
        largest_pilot, largest_group: the largest n₁, and the largest n₁ + n₂, that are tried.
        stage_cost: cost of a second stage, in outputs.

    >>> from ustat_pg.problems import SoftmaxBandit
    >>> coin = SoftmaxBandit.tabular([1.0], [[0.0, 0.0]], [[[1.0], [0.0]]], [[[1.0], [1.0]]])
    >>> best_two_stage(coin, largest_group=4)[0].text
    '3+1 if mixed'
    """
    number("cost of a stage", stage_cost, minimum=0.0)
    integer("largest group", largest_group, 3)
    plans = two_stage_plans(integer("largest pilot", largest_pilot, 2), largest_group)
    costs = [plan_cost(moments, plan, stage_cost) for plan in plans]
    least = int(np.argmin(costs))
    return plans[least], costs[least]


def two_stage_plans(largest_pilot: int, largest_group: int) -> list[Plan]:
    """The compared plans "n₁+n₂ if mixed"; of nearly equal plans only a few."""
    return [
        Plan.parse(f"{pilot}+{more} if mixed")
        for pilot in (1 + step for step in _increments(largest_pilot - 1))
        for more in _increments(largest_group - pilot)
        if pilot + more <= largest_group
    ]


def _increments(most: int) -> list[int]:
    """Whole numbers from 1: all up to 6, then about four per octave."""
    steps = [1]
    while (after := max(steps[-1] + 1, round(steps[-1] * 1.2))) <= most:
        steps.append(after)
    return steps


@takes_problems
def known_rates_bound(moments: Moments, largest_group: float = 1e9) -> tuple[float, Array]:
    """The least outputs times noise of grpo with a fixed group size n(x) for each prompt, and these sizes.

    With each prompt's moments known, outputs are allocated so that moving one to another prompt does not help
    (Neyman), with a real n(x) of at least 2. No sizes from earlier steps are better. A plan that uses the
    group's own rewards may be better, by about a per cent. This minimises E n × (E‖ĝₓ‖² - ‖g‖²).

    Arguments:
        moments: the problem, or its moments; any rewards.
        largest_group: largest allowed n(x).

    >>> from ustat_pg.problems import SoftmaxBandit
    >>> coin = SoftmaxBandit.tabular([1.0], [[0.0, 0.0]], [[[1.0], [0.0]]], [[[1.0], [1.0]]])
    >>> bound, sizes = known_rates_bound(coin, largest_group=20)
    >>> bound <= min(plan_cost(coin, str(size)) for size in range(2, 20))
    True
    """
    number("largest group", largest_group, minimum=2.0)
    probs = moments.context_probs
    first = np.maximum(moments.norm_squared_advantage - moments.gradient_sq, 0.0)
    second = pair_noise(moments.reward_variance, moments.fisher_trace, moments.gradient_sq)
    spread = float(probs @ moments.gradient_sq) - moments.mean_gradient_sq

    def sizes(price: float) -> Array:
        """The n at which one more output reduces the noise by as much as it costs, by bisection, (X,)."""
        low, high = np.full(len(probs), 2.0), np.full(len(probs), float(largest_group))
        for _ in range(80):
            n = np.sqrt(low * high)
            gain = first / n**2 + second * (2 * n - 1) / (n * (n - 1)) ** 2
            low, high = np.where(gain > price, n, low), np.where(gain > price, high, n)
        return low

    def cost(log_price: float) -> float:
        n = sizes(float(np.exp(log_price)))
        noise = probs @ grpo_error(n, first, second)
        return float((probs @ n) * (spread + noise))

    scale = float(probs @ (first + second))
    if scale <= 0:
        return 0.0, np.full(len(probs), 2.0)
    grid = np.log(scale) + np.linspace(-28, 4, 129)
    best = grid[int(np.argmin([cost(at) for at in grid]))]
    at = minimize_scalar(cost, bounds=(best - 0.25, best + 0.25), method="bounded").x
    return cost(float(at)), sizes(float(np.exp(at)))
