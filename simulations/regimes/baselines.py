"""Baselines by search and by pairs of critics: best tables and shrinkage, learned values."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from ustat_pg.engines import Estimator
from ustat_pg.experiment import Check
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

from . import Asked, Drawn
from .gradients import LARGEST_BATCH, LARGEST_GROUP, Law, problem

Array = NDArray[np.float64]


def _square(bandit: SoftmaxBandit, successes: Array, failures: Array) -> float:
    """E‖ĝ‖² of a table in a minibatch of one prompt."""
    spec = ",".join(map(repr, [*successes.tolist(), *failures.tolist()]))
    law = Law.of(bandit, Estimator(f"count-table:{spec}"), len(successes))
    return float(np.einsum("x,xii->", bandit.context_probs, law.seconds))


def tables(drawn: Drawn) -> Iterator[Check]:
    """The best table for a δ that is asked: no other with that δ has a smaller square."""
    bandit = problem(drawn, 3, binary=True)
    for size in (2, 3, int(drawn.rng.integers(4, 7))):
        for delta in (1.0, drawn.rng.uniform(-1, 2, size=size)):
            gains = np.broadcast_to(delta, size)
            # E‖ĝ‖² is a quadratic form of the failures' entries: by its values at corners.
            corners = np.eye(size)
            zero = _square(bandit, gains, np.zeros(size))
            one = np.array([_square(bandit, gains + row, row) for row in corners])
            less = np.array([_square(bandit, gains - row, -row) for row in corners])
            form = np.diag(one + less - 2 * zero)
            for i in range(size):
                for j in range(i):
                    both = corners[i] + corners[j]
                    off = _square(bandit, gains + both, both) - one[i] - one[j] + zero
                    form[i, j] = form[j, i] = off
            # A count that hardly ever comes leaves its entry to rounding: the square is compared.
            where = f"G={size}, δ {'= 1' if np.ndim(delta) == 0 else 'given'}"
            table = best_table(bandit.moments(), size, delta=delta)
            least = zero - (one - less) @ np.linalg.solve(form, one - less) / 8
            yield drawn.check(f"{where}: least square", _square(
                bandit, table.successes[1:], table.failures[:-1]), least, 1e-7)  # fmt: skip
            yield drawn.check(f"{where}: δ of the best table", table.delta, gains)
        by_name, best = count_table("best", size, bandit), best_table(bandit.moments(), size)
        yield drawn.check(f"G={size}: the table called best", by_name.failures, best.failures)


def shrinkage(drawn: Drawn) -> Iterator[Check]:
    """The best amount of shrinkage, towards means near and far, also where it is all or nothing."""
    bandit = problem(drawn, 3, binary=True)
    moments = bandit.moments()
    for mean in (None, 0.0, 1.0, float(moments.value[1]), float(drawn.rng.normal())):
        size = drawn.size(2, LARGEST_GROUP)
        centre = float(bandit.context_probs @ moments.value) if mean is None else mean

        def error(amount: float, centre: float = centre, size: int = size) -> float:
            return Law.of(bandit, Estimator(f"shrinkage:{amount},{centre!r}"), size).error(1, "iid")

        none, half, full = error(0.0), error(0.5), error(1.0)
        bend = 2 * (none + full - 2 * half)
        best = np.clip((bend - (full - none)) / (2 * bend), 0.0, 1.0)
        yield drawn.check(
            f"G={size} towards {mean}: best amount",
            best_shrinkage(moments, size, mean_value=mean),
            best,
            1e-6,
        )


def critics(drawn: Drawn) -> Iterator[Check]:
    """Critics that learn, random ones as means of two that are as likely; when they are as good as grpo."""
    bandit, group = problem(drawn, 3), drawn.size(2, LARGEST_GROUP)
    moments, batch = bandit.moments(), drawn.size(2, LARGEST_BATCH)
    value = moments.value

    def excess(*critics: Array) -> float:
        """The mean error of critics that are equally likely, over the oracle's; of one prompt."""
        errors = [
            Law.of(bandit, Estimator("critic", values=tuple(critic)), group).error(1, "iid")
            for critic in critics
        ]
        return float(np.mean(errors)) - Law.of(bandit, Estimator("oracle"), group).error(1, "iid")

    grpo = Law.of(bandit, Estimator("grpo"), group).error(1, "iid")
    grpo -= Law.of(bandit, Estimator("oracle"), group).error(1, "iid")
    mean, spread = drawn.rng.normal(size=3), drawn.rng.uniform(0.1, 1, size=3)
    where = f"G={group} B={batch}"
    for variance in (None, spread**2):
        off = 0 * spread if variance is None else spread
        yield drawn.check(
            f"{where}: excess of {'one critic' if variance is None else 'random critics'}",
            critic_excess(moments, mean, group, batch, variance=variance),
            excess(mean + off, mean - off) / batch,
            1e-7,
        )
    level = critic_error_at_par(moments, group)
    yield drawn.check(f"{where}: error at par", excess(value + level, value - level), grpo, 1e-7)
    count = critic_rollouts_at_par(moments, group)
    off = np.sqrt(moments.reward_variance / count)
    yield drawn.check(f"{where}: rollouts at par", excess(value + off, value - off), grpo, 1e-7)
    rollouts, step, start = drawn.size(2, 200), float(drawn.rng.uniform(0.01, 1)), 3.0
    centre, noise = np.full(3, start), np.zeros(3)
    for _ in range(rollouts):
        centre = centre + step * (value - centre)
        noise = (1 - step) ** 2 * noise + step**2 * moments.reward_variance
    values = learned_values(moments, rollouts, step_size=step, start=start)
    yield drawn.check(f"{rollouts} rewards, running: mean", values[0], centre)
    yield drawn.check(f"{rollouts} rewards, running: variance", values[1], noise)
    plain = learned_values(moments, rollouts)
    yield drawn.check(f"{rollouts} rewards: mean", plain[0], value)
    yield drawn.check(f"{rollouts} rewards: variance", plain[1], moments.reward_variance / rollouts)
    low, high = bandit.reward_range
    squares = np.einsum("xk,xk->x", bandit.policy.probs, bandit.policy.squared_norms)
    yield drawn.check(
        f"{where}: explicit bound",
        explicit_bound(moments, group, batch),
        (high - low) ** 2 * (bandit.context_probs @ squares) / batch / group / (group - 1),
    )


ASKED: Asked = {
    "best_baseline": (tables, shrinkage),
    "optimality": (critics,),
}
