"""Formulas that an estimator is compared with group by group (Lemma 1, ustatistic).

Each takes scores (n, G, d), rewards (n, G) and the law of one rollout, and gives (n, d).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import log10
from typing import Any

import numpy as np

from ustat_pg.engines import Draws, Estimator, GradientCell, InfeasibleError, MomentSums, Quantity
from ustat_pg.engines.base import Array, Replications
from ustat_pg.engines.gradients import exact, reference
from ustat_pg.estimators import gradient
from ustat_pg.ustatistics import (
    Hoeffding,
    covariance_kernel,
    covariance_ustatistic,
    hoeffding,
    ustatistic,
)
from ustat_pg.validation import InputError

Law = tuple[Array, Array, Array]
"""One rollout at one prompt: scores (M, d), rewards (M,), probabilities (M,)."""

ENUMERATED_GROUPS = 300
"""The most groups of a cell on which formulas are compared one by one."""

DRAWN_GROUPS = 40
"""Groups in a block, and the fewest of a problem so large that their parts take long."""
FEWEST_DRAWN_GROUPS = 5

KERNEL_VALUES = 200_000_000
"""Numbers in the kernel's tables for all groups of a block: a Hoeffding part has every pair of
outcomes."""


def _by_group(function: Callable[[Array, Array, Law], Any]) -> Callable[[Array, Array, Law], Array]:
    """A formula for one group, applied to every group."""

    def apply(scores: Array, rewards: Array, law: Law) -> Array:
        return np.stack([function(s, z, law) for s, z in zip(scores, rewards, strict=True)])

    return apply


def _parts(scores: Array, rewards: Array, law: Law) -> Hoeffding:
    return hoeffding(covariance_kernel, (scores, rewards), law[:2], law[2])


def _first_part(scores: Array, rewards: Array, law: Law) -> Array:
    parts = _parts(scores, rewards, law)
    return np.asarray(parts.mean + parts.first)


def _against_law(scores: Array, rewards: Array, law: Law) -> Array:
    """E[h | sᵢ, zᵢ] of every output, the kernel's mean over the other one, (n, G, d)."""
    known_scores, known_rewards, probs = law
    rows, columns = np.divmod(np.arange(rewards.size * len(probs)), len(probs))
    flat = scores.reshape(-1, scores.shape[-1]), rewards.ravel()
    values = covariance_kernel(
        (flat[0][rows], flat[1][rows]), (known_scores[columns], known_rewards[columns])
    )
    return np.asarray(probs @ values.reshape(*rewards.shape, len(probs), -1))


def _projections(scores: Array, rewards: Array, law: Law) -> Array:
    """The mean of 2 h₁ - g over a group: that of s a, if h₁ = ½ (s a + g)."""
    mean = law[2] @ _against_law(law[0][None], law[1][None], law)[0]
    return 2 * _against_law(scores, rewards, law).mean(axis=1) - mean


def _given_one(scores: Array, rewards: Array, law: Law) -> Array:
    """The U-statistic, and what E[h₂ | first output] adds to it: nothing."""
    added = [
        sum(
            probability * _parts(np.stack([s, other]), np.array([z, reward]), law).second
            for other, reward, probability in zip(*law, strict=True)
        )
        for s, z in zip(scores[:, 0], rewards[:, 0], strict=True)
    ]
    return covariance_ustatistic(scores, rewards) + np.stack(added)


FORMULAS: dict[str, Callable[[Array, Array, Law], Array]] = {
    "U-statistic": _by_group(lambda s, z, _: ustatistic(covariance_kernel, (s, z))),
    "U-statistic in O(G d)": lambda s, z, _: covariance_ustatistic(s, z),
    "(G-1)/G U-statistic": lambda s, z, _: (1 - 1 / z.shape[1]) * covariance_ustatistic(s, z),
    "g + first + second": _by_group(lambda s, z, law: _parts(s, z, law).total),
    "g + first": _by_group(_first_part),
    "mean of 2 h1 - g": _projections,
    "U-statistic + E[h2 | one output]": _given_one,
}
"""The formulas by name."""

LEAST_GROUP = {"mean of 2 h1 - g": 1}
"""The least group of those that need no pair."""


@dataclass(frozen=True)
class FormulaDistance:
    """‖ĝ - f‖² of an estimator and a formula on the same group, relative to the cell's scale.

    Arguments:
        estimator: the side of an identity that trainers compute.
        formula: the other side, one of :data:`FORMULAS`.
    """

    estimator: Estimator
    formula: str

    @property
    def label(self) -> str:
        return f"distance[{self.estimator.label},{self.formula}]"


@dataclass(frozen=True)
class Groups(GradientCell):
    """A cell of single groups at one prompt: formulas are compared on each.

    An identity holds in every sample, so that few groups are drawn, by the reference engine.

    Arguments:
        problem, group_size, batch_size, design, device: as :class:`~ustat_pg.engines.GradientCell`
            has them: one prompt, batch size 1.
    """

    @property
    def name(self) -> str:
        return f"{super().name}/groups"

    @property
    def block(self) -> int:
        """The groups in a block: fewer of a problem with many outcomes or parameters."""
        values = int(self.problem.outcomes.counts.max()) ** 2 * self.problem.d
        return min(DRAWN_GROUPS, max(FEWEST_DRAWN_GROUPS, KERNEL_VALUES // values))

    def pilot(self, replications: int) -> int:
        """One group: a plan needs none."""
        return 1

    @cached_property
    def law(self) -> Law:
        """The law of one rollout."""
        outcomes = self.problem.outcomes
        scores = self.problem.policy.scores(0)
        return scores[outcomes.arms[0]], outcomes.rewards[0], outcomes.probs[0]

    @cached_property
    def scale(self) -> float:
        """The largest norm of a score times the largest reward; 1 where that is 0."""
        scores, rewards, _ = self.law
        return float(np.linalg.norm(scores, axis=1).max() * np.abs(rewards).max()) or 1.0

    def groups(self, draws: Draws) -> tuple[Array, Array]:
        """The scores (n, G, d) and rewards (n, G) of drawn groups."""
        return self.problem.policy.scores(0)[draws.arms[:, 0]], draws.rewards[:, 0]

    def range(self, quantity: Quantity) -> tuple[float, float]:
        return 0.0, np.inf

    def rounding(self, quantity: Quantity) -> float:
        """Nothing: what is taken for rounding is the claim's to say."""
        return 0.0

    engines = ("exact", "reference")

    def require_quantity(self, quantity: Quantity) -> None:
        """Refuse what is not a distance from a formula, and leave-one-out in a group of one."""
        if not isinstance(quantity, FormulaDistance):
            raise InputError(f"{quantity!r} is not a distance from a formula")
        if self.group_size < LEAST_GROUP.get(quantity.formula, 2):
            raise InputError(f"group size is {self.group_size}: formulas need pairs of outputs")

    def require_exact(self, quantities: Sequence[Quantity]) -> None:
        self.require_quantities(quantities)
        number = exact.size(self)
        values = int(self.problem.outcomes.counts.max()) ** 2 * self.problem.d
        if number > ENUMERATED_GROUPS or number * values > KERNEL_VALUES // 20:
            raise InfeasibleError(f"10^{log10(number):.1f} groups, compared one by one")

    def effort(self, quantities: Sequence[Quantity]) -> float:
        # Where more can be asked, what comes on top is slower: parts, and parts of parts.
        return float(exact.size(self) * len(quantities) ** 2)

    def _measure(self, engine: str, quantities: Sequence[Any], block: Replications) -> MomentSums:
        distances: Sequence[FormulaDistance] = quantities
        if engine == "exact":
            every = exact.minibatches(self)
            means = [chance @ self._squares(distances, draws) for draws, chance in every]
            return MomentSums.exact(np.sum(means, axis=0))
        draws = reference.draw(self, seed=block.seed, first=block.first, replications=block.count)
        return MomentSums.of(self._squares(distances, draws))

    def _squares(self, distances: Sequence[FormulaDistance], draws: Draws) -> Array:
        scores, rewards = self.groups(draws)
        columns = []
        for distance in distances:
            advantages = distance.estimator.advantages(self.problem, draws)[:, 0]
            error = FORMULAS[distance.formula](scores, rewards, self.law) - gradient(
                scores, advantages
            )
            columns.append(((error / self.scale) ** 2).sum(axis=-1))
        return np.stack(columns, axis=-1)
