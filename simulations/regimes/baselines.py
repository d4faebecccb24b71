"""Baselines by search and by pairs of critics: best tables and shrinkage, learned values."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from ustat_pg.engines import Estimator
from ustat_pg.predictions import (
    best_shrinkage,
    best_table,
    count_table,
    critic_error_at_par,
    critic_excess,
    critic_rollouts_at_par,
    explicit_bound,
    learned_values,
)
from ustat_pg.problems import SoftmaxBandit

from ..evidence import Check
from . import Asked, Drawn, Known, ratio, rounding
from .gradients import LARGEST_BATCH, LARGEST_GROUP, Law, problem

Array = NDArray[np.float64]


def _square(bandit: SoftmaxBandit, successes: Array, failures: Array) -> float:
    """E‖ĝ‖² of a table in a minibatch of one prompt."""
    spec = ",".join(map(repr, [*successes.tolist(), *failures.tolist()]))
    law = Law.of(bandit, Estimator(f"count-table:{spec}"), len(successes))
    return float(np.einsum("x,xii->", bandit.context_probs, law.seconds))


def tables(drawn: Drawn) -> Iterator[Check]:
    """The best table for a δ that is asked: no other with that δ has a smaller square, which is a quadratic
    form of the failures' entries and is least where a step to either side of any makes as much of it.
    """
    bandit = problem(drawn, 3, binary=True)
    for size in (2, 3, int(drawn.rng.integers(4, 7))):
        for delta in (1.0, drawn.rng.uniform(-1, 2, size=size)):
            gains = np.broadcast_to(delta, size)
            where = f"G={size}, δ {'= 1' if np.ndim(delta) == 0 else 'given'}"
            table = best_table(bandit.moments(), size, delta=delta)
            given, lost = table.successes[1:], table.failures[:-1]
            more, less = (
                np.array([_square(bandit, given + step, lost + step) for step in steps])
                for steps in (np.eye(size), -np.eye(size))
            )
            yield drawn.check(f"{where}: least square", more, less, rounding(more, less))
            yield drawn.check(
                f"{where}: δ of the best table", given - lost, gains, rounding(given, lost)
            )
        by_name, best = count_table("best", size, bandit), best_table(bandit.moments(), size)
        yield drawn.check(f"G={size}: the table called best", by_name.failures, best.failures)


def shrinkage(drawn: Drawn) -> Iterator[Check]:
    """The best amount of shrinkage, towards means near and far, also where it is all or nothing."""
    bandit = problem(drawn, 3, binary=True)
    moments = bandit.moments()
    for mean in (None, 0.0, 1.0, float(moments.value[1]), float(drawn.rng.normal())):
        size = drawn.size(2, LARGEST_GROUP)
        centre = float(bandit.context_probs @ moments.value) if mean is None else mean

        # A parabola through three amounts, and its lowest point.
        (none, half, full), errors = np.transpose(
            [
                Law.of(bandit, Estimator(f"shrinkage:{amount},{centre!r}"), size).error(1, "iid")
                for amount in (0.0, 0.5, 1.0)
            ]
        )
        best, error = ratio(
            (3 * none - 4 * half + full, errors @ [3, 4, 1]),
            (4 * (none - 2 * half + full), errors @ [4, 8, 4]),
        )
        yield drawn.check(
            f"G={size} towards {mean}: best amount",
            best_shrinkage(moments, size, mean_value=mean),
            np.clip(best, 0.0, 1.0),
            error,
        )


def critics(drawn: Drawn) -> Iterator[Check]:
    """Critics that learn, random ones as means of two that are as likely; when they are as good as grpo."""
    bandit, group = problem(drawn, 3), drawn.size(2, LARGEST_GROUP)
    moments, batch = bandit.moments(), drawn.size(2, LARGEST_BATCH)
    value = moments.value

    oracle = Law.of(bandit, Estimator("oracle"), group).error(1, "iid")

    def excess(*estimators: Estimator) -> Known:
        """The mean error of estimators that are equally likely, over the oracle's; of one prompt."""
        errors = [Law.of(bandit, estimator, group).error(1, "iid") for estimator in estimators]
        error, rounded = np.mean(errors, axis=0)
        return error - oracle[0], rounded + oracle[1]

    def critic(values: Array) -> Estimator:
        return Estimator("critic", values=tuple(values))

    grpo, limit = excess(Estimator("grpo"))
    mean, spread = drawn.rng.normal(size=3), drawn.rng.uniform(0.1, 1, size=3)
    where = f"G={group} B={batch}"
    for variance in (None, spread**2):
        off = 0 * spread if variance is None else spread
        more, error = excess(critic(mean + off), critic(mean - off))
        yield drawn.check(
            f"{where}: excess of {'one critic' if variance is None else 'random critics'}",
            critic_excess(moments, mean, group, batch, variance=variance),
            more / batch,
            error / batch,
        )
    count = critic_rollouts_at_par(moments, group)
    for what, level in (
        ("error", critic_error_at_par(moments, group)),
        ("rollouts", np.sqrt(moments.reward_variance / count)),
    ):
        more, error = excess(critic(value + level), critic(value - level))
        yield drawn.check(f"{where}: {what} at par", more, grpo, error + limit)
    rollouts, step, start = drawn.size(2, 200), float(drawn.rng.uniform(0.01, 1)), 3.0
    centre, noise = np.full(3, start), np.zeros(3)
    for _ in range(rollouts):
        centre = centre + step * (value - centre)
        noise = (1 - step) ** 2 * noise + step**2 * moments.reward_variance
    values = learned_values(moments, rollouts, step_size=step, start=start)
    apart = rounding(start, value)
    yield drawn.check(f"{rollouts} rewards, running: mean", values[0], centre, apart)
    yield drawn.check(f"{rollouts} rewards, running: variance", values[1], noise, rounding(noise))
    plain, shared = learned_values(moments, rollouts), moments.reward_variance / rollouts
    yield drawn.check(f"{rollouts} rewards: mean", plain[0], value, rounding(value))
    yield drawn.check(f"{rollouts} rewards: variance", plain[1], shared, rounding(shared))
    low, high = bandit.reward_range
    squares = np.einsum("xk,xk->x", bandit.policy.probs, bandit.policy.squared_norms)
    share = bandit.context_probs @ squares / batch / group / (group - 1)
    yield drawn.check(
        f"{where}: explicit bound",
        explicit_bound(moments, group, batch),
        (high - low) ** 2 * share,
        rounding(high, low) * 2 * (high - low) * share,
    )


ASKED: Asked = {
    "best_baseline": (tables, shrinkage),
    "optimality": (critics,),
}
