"""Corollary 5 over several prompts: critics (baselines b(x) with an error), and critics that learn.

A critic with an error e(x) has an MSE larger than the oracle's by E[tr F e² - 2 e E(‖s‖² a | X)]/(B G),
Under Assumption 2 only its first term remains; otherwise it is least at b*. If errors have either
sign and size ε, the excess equals that of grpo at one ε, above which grpo is better. Vanilla has the oracle's
MSE if and only if V = 0 everywhere.

A critic that learns is the mean of n earlier rewards of each prompt, or their running average. It is
enumerated reward by reward (:func:`learned`): each of its values has a probability and is a critic like
the others, for outputs that are drawn or enumerated independently. The mean of n costs
E[σ² tr F]/(n B G), and is as good as grpo for some n up to G - 1. It may have learned at other
parameters than those where it is used.

E[s sᵀ a] in Assumption 2 is the Hessian of the return if logits are linear. This is checked along
fixed directions, by critics with an error of +1 or -1.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import prod

import numpy as np

from ustat_pg.engines import Estimator, GradientCell, SquaredError, SquaredProjection
from ustat_pg.engines.gradients.cell import direction
from ustat_pg.predictions import (
    critic_error_at_par,
    critic_excess,
    critic_rollouts_at_par,
    learned_values,
    minimum_variance_gain,
)
from ustat_pg.problems import SoftmaxBandit

from ..evidence import Check, Linear, Ratio, equal
from ..problems import BanditEntry, Entry, Suite, mse_of
from ..shared.balance import Balance, values_of
from ..shared.peers import CRITIC, label, saving, scale, within
from ..shared.runs import GRPO, ORACLE, VANILLA, critic

BEST = Estimator("minimum-variance")

NO_CROSS = "a critic's error costs E[tr F e^2] alone"
APART = "tr F and e^2 averaged apart"
PAR = "a critic is at par at the error of G rewards"
ONE_LESS = "a mean of n rewards errs by sigma/sqrt(n-1)"
WHOLE_GROUP = "a critic is at par after G rewards"
NO_SLOPE = "a critic is at par after G-1 rewards, however steep the return"
FORGOTTEN = "a running average forgets its start at once"
HALF_STEP = "a running average of step size a keeps a/2 of sigma2"
STILL = "a critic that learned elsewhere errs by chance alone"
RIVALS = (NO_CROSS, APART, PAR, ONE_LESS, WHOLE_GROUP, NO_SLOPE, FORGOTTEN, HALF_STEP, STILL)

VISIBLE = 0.05
"""The least cost of a critic's error that is checked, as a share of the cost of one reward's noise."""


def by_how_much(
    entry: BanditEntry,
    cell: GradientCell,
    pair: tuple[Estimator, Estimator],
    predicted: float,
    what: str,
    rivals: dict[str, float] | None = None,
) -> Check:
    """The excess of the second baseline's MSE over the first's."""
    statement = equal(predicted, rivals, scale=scale(cell, pair[1]))
    return entry.check(f"{label(cell)}: {what}", saving(cell, *pair), statement)


def with_errors(entry: BanditEntry, group_size: int, batch_size: int) -> Iterator[Check]:
    """b(x) over prompts: the cost of a critic's error, and the error at which grpo is as good."""
    problem, moments = entry.problem, entry.problem.moments()
    cell = GradientCell(problem, group_size, batch_size)
    share = 1 / (group_size * batch_size)
    values, guess = values_of(problem), np.array(within(problem, CRITIC))
    error, trace, probs = guess - values, moments.fisher_trace, problem.context_probs
    wrong = {
        NO_CROSS: share * float(probs @ (trace * error**2)),
        APART: share * float((probs @ trace) * (probs @ error**2))
        - 2 * share * float(probs @ (error * moments.norm_advantage)),
    }
    excess, none = (
        critic_excess(moments, baseline, group_size, batch_size) for baseline in (guess, 0 * guess)
    )
    best = minimum_variance_gain(moments, group_size, batch_size)
    for pair, predicted, what, rivals in (
        ((ORACLE, critic(guess)), excess, "a critic over the oracle", wrong),
        ((BEST, ORACLE), best, "the oracle over b*(x)", {}),
        ((ORACLE, VANILLA), none, "vanilla over the oracle", {}),
    ):
        yield by_how_much(entry, cell, pair, predicted, what, rivals)
    # A critic with an error of one step, up or down, against the oracle: its mean cross term is 0.
    low, high = problem.reward_range
    step = (high - low) / 2
    signs = [(SquaredError(critic(values + sign * step)), 0.5) for sign in (1, -1)]
    second = Linear(cell, (*signs, (mse_of("oracle"), -1.0)))
    traces = (problem.policy.probs * problem.policy.squared_norms).sum(axis=1)
    cost = step**2 * share * float(probs @ traces)
    par = (critic_error_at_par(moments, group_size) / step) ** 2
    yield entry.check(
        f"{label(cell)}: the square of the error at par, over that of a step",
        Ratio(saving(cell, ORACLE, GRPO), second, cost),
        equal(par, {PAR: par * (1 - 1 / group_size)}, scale=scale(cell, GRPO) / cost),
    )


def learned(
    problem: SoftmaxBandit, rollouts: int, step_size: float | None = None, start: float = 0.0
) -> list[tuple[Estimator, float]]:
    """Every critic that can result from some rewards of each prompt, with its probability."""
    laws = []
    for probs, rewards in zip(problem.outcomes.probs, problem.outcomes.rewards, strict=True):
        outcomes, law = list(zip(probs.tolist(), rewards.tolist(), strict=True)), {start: 1.0}
        for count in range(1, rollouts + 1):
            step = 1 / count if step_size is None else step_size
            after: dict[float, float] = {}
            for (value, chance), (prob, reward) in product(law.items(), outcomes):
                # Sums in a different order count as the same value.
                new = round(value + step * (reward - value), 12)
                after[new] = after.get(new, 0.0) + chance * prob
            law = {value: chance for value, chance in after.items() if chance > 0}
        laws.append(law.items())
    return [
        (Estimator("critic", values=values), prod(chances))
        for values, chances in (zip(*row, strict=True) for row in product(*laws))
    ]


def learning(entry: BanditEntry, group_size: int, batch_size: int) -> Iterator[Check]:
    """A critic that learns from earlier outputs: its cost, its break-even with grpo, its memory."""
    problem, moments = entry.problem, entry.problem.moments()
    cell = GradientCell(problem, group_size, batch_size)
    policy, outcomes = problem.policy, problem.outcomes
    values = (outcomes.probs * outcomes.rewards).sum(axis=1)
    spread = (outcomes.probs * (outcomes.rewards - values[:, None]) ** 2).sum(axis=1)
    traces = (policy.probs * policy.squared_norms).sum(axis=1)
    noise = float(problem.context_probs @ (spread * traces)) / (group_size * batch_size)

    def over_the_oracle(critics: list[tuple[Estimator, float]]) -> Linear:
        errors = ((SquaredError(baseline), chance) for baseline, chance in critics)
        return Linear(cell, (*errors, (mse_of("oracle"), -1.0)))

    def costs(mean: np.ndarray, variance: np.ndarray) -> float:
        return critic_excess(moments, mean, group_size, batch_size, variance)

    def check(
        what: str, critics: list[tuple[Estimator, float]], value: float, wrong: dict[str, float]
    ) -> Check:
        statement = equal(value, wrong, scale=scale(cell, ORACLE))
        name = f"{label(cell)}: {what} over the oracle"
        return entry.check(name, over_the_oracle(critics), statement)

    count = 3
    critics, cost = learned(problem, count), costs(*learned_values(moments, count))
    what = f"the mean of {count} earlier rewards"
    yield check(what, critics, cost, {ONE_LESS: noise / (count - 1)})
    yield entry.check(
        f"{label(cell)}: grpo over the oracle, beside {what}",
        Ratio(saving(cell, ORACLE, GRPO), over_the_oracle(critics), noise / count),
        equal(
            count / critic_rollouts_at_par(moments, group_size),
            {WHOLE_GROUP: count / group_size, NO_SLOPE: count / (group_size - 1)},
            scale=scale(cell, GRPO) * count / noise,
        ),
    )
    count, step, start = 2, 0.6, 1.5
    mean, variance = learned_values(moments, count, step, start)
    kept = 1 - (1 - step) ** (2 * count)
    wrong = {FORGOTTEN: costs(values, variance), HALF_STEP: costs(mean, kept * step / 2 * spread)}
    what = f"a running average of {count} earlier rewards"
    yield check(what, learned(problem, count, step, start), costs(mean, variance), wrong)
    other = elsewhere(problem, float(problem.context_probs @ (spread * traces)))
    mean, variance = learned_values(other.moments(), count)
    what = f"the mean of {count} rewards at other parameters"
    wrong = {STILL: costs(values, variance)}
    yield check(what, learned(other, count), costs(mean, variance), wrong)


def elsewhere(problem: SoftmaxBandit, noise: float) -> SoftmaxBandit:
    """The problem at parameters uphill or downhill, where the error of values costs a visible part of the
    cost of their noise.

    Uphill values are too high. Outside Assumption 2 the cost has either sign, and is 0 at some distance.
    """
    balances = [Balance.of(problem.restrict([x])) for x in range(problem.contexts)]
    value, trace, best = (
        np.array([getattr(each, name) for each in balances]) for name in ("value", "trace", "best")
    )
    uphill = problem.gradient() / np.linalg.norm(problem.gradient())
    costs: dict[float, float] = {}
    for distance in (2.0, -2.0, 4.0, 1.0):
        other = problem.with_theta(problem.policy.theta + distance * uphill)
        error = values_of(other) - value
        costs[distance] = abs(
            problem.context_probs @ (trace * error * (error + 2 * (value - best)))
        )
        if costs[distance] > VISIBLE * noise:
            return other
    return problem.with_theta(problem.policy.theta + max(costs, key=costs.__getitem__) * uphill)


def hessian(entry: BanditEntry) -> Iterator[Check]:
    """E[⟨s, u⟩² a], by one output and baselines V ± 1, is the second derivative of J along u."""
    problem, cell = entry.problem, GradientCell(entry.problem, 1)
    values = values_of(problem)
    for number in (0, 1):
        unit = direction(problem, number)
        sides = [(SquaredProjection(critic(values + s), number), -s / 4) for s in (1.0, -1.0)]
        size = scale(cell, critic(values + 1), unit)
        bend = equal(float(unit @ problem.hessian() @ unit), scale=size)
        what = f"curvature of J along direction {number}"
        yield entry.check(what, Linear(cell, tuple(sides)), bend)


def checks(suite: Suite) -> Iterator[Check]:
    """Critics with an error, and critics that learn from few rewards of two prompts."""
    for entry, group_size, batch_size in (
        (suite.uneven, 2, 1),
        (suite.repeated, 3, 2),
        (suite.several, 2, 3),
        *((entry, 2, 2) for entry in suite.rates()),
        *((entry, 3, 1) for entry in suite.repeats()),
    ):
        yield from with_errors(entry, group_size, batch_size)
    for entry in (suite.uneven, *suite.rates()):
        few = entry.problem.restrict([1, 2])
        yield from learning(Entry(f"{entry.name}[1, 2]", entry.origin, few), 3, 2)
    for entry in (suite.several, suite.repeated, *suite.repeats()):
        yield from hessian(entry)
