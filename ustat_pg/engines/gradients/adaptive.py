"""Cells of groups whose size a plan of sampling chooses during the draws.

A cell of a plan draws the plan's largest group and reads its beginning. Outputs are independent, so
the outputs after a stop change nothing. This module does not count paths.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ...estimators import advantages, balanced, sequential, two_stage
from ...execution.memory import slices
from ...files.digests import digest
from ...problems import SoftmaxBandit
from ...rounding import DERIVED
from ...sampling.plans import Plan
from ...validation import InputError
from ..base import (
    Array,
    Draws,
    Estimator,
    InfeasibleError,
    Integers,
    MomentSums,
    Quantity,
    Replications,
)
from .cell import GradientCell, GradientQuantity, Projection
from .exact import effort, minibatches, size
from .reference import different, values_of

_BLOCK = 8192
"""Replications in a block; few, because NumPy computes the weights of groups."""
_ROWS = 8192
"""Minibatches whose weights are computed together."""
_MOST_GROUPS = 300_000
"""The largest number of ordered groups that is enumerated."""


@dataclass(frozen=True)
class GroupSize:
    """The number of outputs of a group that count: those drawn before a plan stops, or those that survive."""

    label = "group-size"
    estimators = ()


class OrderedCell(GradientCell):
    """A cell of one prompt's group, which sets the weights output by output in the order of the draws."""

    block = _BLOCK
    engines = ("exact", "reference")

    def require_quantity(self, quantity: Quantity) -> None:
        """Refuse quantities other than a group size and the error of one estimator."""
        if not isinstance(quantity, GroupSize) and not hasattr(quantity, "estimator"):
            raise InputError(f"{quantity!r} is not a quantity of such a group")

    def require_exact(self, quantities: Sequence[Quantity]) -> None:
        self.require_quantities(quantities)
        if size(self, tuples=True) > _MOST_GROUPS:
            raise InfeasibleError(f"more than {_MOST_GROUPS} ordered groups: take a smaller plan")

    def effort(self, quantities: Sequence[Quantity]) -> float:
        return effort(self, len(quantities), tuples=True)

    def range(self, quantity: Quantity) -> tuple[float, float]:
        if isinstance(quantity, GroupSize):
            return 0.0, float(self.group_size)
        norms = float(np.sqrt(self.problem.policy.squared_norms.max()))
        gradient = float(np.linalg.norm(self.problem.gradient()))
        largest = norms * self._largest(quantity.estimator) + gradient  # type: ignore[attr-defined]
        return (-largest, largest) if isinstance(quantity, Projection) else (0.0, largest**2)

    def rounding(self, quantity: Quantity) -> float:
        if isinstance(quantity, GroupSize):
            return DERIVED * self.group_size
        return super().rounding(quantity) * self.group_size

    def _measure(
        self, engine: str, quantities: Sequence[GradientQuantity], block: Replications
    ) -> MomentSums:
        if engine == "exact":
            outcomes = minibatches(self, tuples=True)
            return MomentSums.exact(
                np.asarray(
                    sum(chance @ self._values(quantities, draws) for draws, chance in outcomes)
                )
            )
        values = []
        for some in slices(block.count, _ROWS):
            first, count = block.first + some.start, some.stop - some.start
            draws, place = different(self, seed=block.seed, first=first, replications=count)
            values.append(self._values(quantities, draws)[place])
        return MomentSums.of(np.concatenate(values))

    def _values(self, quantities: Sequence[GradientQuantity], draws: Draws) -> Array:
        """The values of the quantities in each replication, (R, Q)."""
        of_gradients = [
            replace(quantity, estimator=self.weighed(quantity.estimator))  # type: ignore
            for quantity in quantities
            if not isinstance(quantity, GroupSize)
        ]
        values = iter(values_of(self, of_gradients, draws).T if of_gradients else ())
        sizes = self._sizes(draws).astype(np.float64).mean(axis=-1)
        return np.stack(
            [sizes if isinstance(quantity, GroupSize) else next(values) for quantity in quantities],
            axis=-1,
        )

    def weighed(self, estimator: Estimator) -> Estimator:
        """The estimator on the outputs that count, as a function of the largest group in drawing order."""

        def weighed(rewards: Array, draws: Draws) -> Array:
            used = self._used(draws)
            result = np.zeros(rewards.shape)
            numbers = used.sum(axis=-1)
            for number in np.unique(numbers[numbers > 0]):
                here = numbers == number
                places = np.argsort(~used[here], axis=-1, kind="stable")[..., :number]
                group = np.take_along_axis(rewards[here], places, axis=-1)
                weights = self._advantages(estimator.name, group)
                # Engines average over all drawn outputs, but estimates average over the outputs that count.
                spread = np.zeros(rewards[here].shape)
                np.put_along_axis(spread, places, weights * self.group_size / number, axis=-1)
                result[here] = spread
            return result

        return Estimator(estimator.label, function=weighed)

    def _sizes(self, draws: Draws) -> Integers:
        return np.asarray(self._used(draws).sum(axis=-1))

    @abstractmethod
    def _used(self, draws: Draws) -> Array:
        """Which outputs count, S + (B, G)."""

    @abstractmethod
    def _advantages(self, name: str, rewards: Array) -> Array:
        """The advantages of the outputs that count, (n, size)."""

    @abstractmethod
    def _largest(self, estimator: Estimator) -> float:
        """The largest possible mean of |Aᵢ| over a group."""


@dataclass(frozen=True)
class PlanCell(OrderedCell):
    """Groups of one prompt under a plan of sampling. Rewards are 0 and 1, except in a plan of two stages
    that draws more if the pilot's rewards are not all equal: it takes any rewards.

    Arguments:
        group_size: the plan's largest group size, which the plan sets.
        plan: the plan in words; its chances must be 0 or 1, and it must not replace a group that
            it discards.

    >>> from ustat_pg.problems import SoftmaxBandit
    >>> coin = SoftmaxBandit.tabular([1.0], [[0.0, 0.0]], [[[1.0], [0.0]]], [[[1.0], [1.0]]])
    >>> cell = PlanCell.of(coin, "3+2 if mixed")
    >>> cell.measure("exact", [GroupSize()]).mean
    array([4.5])
    """

    plan: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.problem.binary and not self._scheme.two_stages:
            raise InputError(
                f"plan {self.plan!r} counts successes: graded rewards take plans like "
                "'3+2 if mixed'"
            )

    @classmethod
    def of(cls, problem: SoftmaxBandit, plan: str) -> PlanCell:
        """The cell of a plan in words."""
        return cls(problem, Plan.parse(plan).looks[-1], plan=plan)

    @property
    def name(self) -> str:
        return f"{super().name}/plan/{digest(self.plan)}"

    @property
    def _scheme(self) -> Plan:
        return Plan.parse(self.plan)

    def _stops(self, draws: Draws) -> tuple[Integers, Integers]:
        """The number of outputs drawn before each group's stop, and the index of that look, S + (B,)."""
        scheme, rewards = self._scheme, draws.rewards
        if not self.problem.binary:
            pilot = rewards[..., : scheme.looks[0]]
            stop = (pilot.min(axis=-1) < pilot.max(axis=-1)).astype(np.int64)
            return np.array(scheme.looks)[stop], stop
        stop = np.full(rewards.shape[:-1], len(scheme.looks) - 1)
        for index, (look, chances) in enumerate(zip(scheme.looks, scheme.go_on, strict=False)):
            successes = rewards[..., :look].sum(axis=-1).astype(np.int64)
            ends = np.array(chances, dtype=np.float64)[successes] == 0
            stop = np.where(ends, np.minimum(stop, index), stop)
        return np.array(scheme.looks)[stop], stop

    def _sizes(self, draws: Draws) -> Integers:
        return self._stops(draws)[0]

    def _used(self, draws: Draws) -> Array:
        sizes, looks = self._stops(draws)
        used = np.arange(self.group_size) < sizes[..., None]
        if not self.problem.binary:
            return np.asarray(used)
        successes = (draws.rewards * used).sum(axis=-1).astype(np.int64)
        for look, chances in enumerate(self._scheme.kept):
            lost = (looks == look) & (
                np.array([*chances, 1], dtype=np.float64)[np.minimum(successes, len(chances))] == 0
            )
            used = used & ~lost[..., None]
        return np.asarray(used)

    def _advantages(self, name: str, rewards: Array) -> Array:
        family, _, outputs = name.partition(":")
        if name == SEQUENTIAL.name and not self.problem.binary:
            return np.asarray(two_stage(rewards, pilot=self._scheme.looks[0]))
        if name == SEQUENTIAL.name:
            return np.asarray(sequential(rewards, plan=self._scheme))
        if family in _BALANCED:
            return np.asarray(balanced(rewards, outputs=int(outputs), divisor=_BALANCED[family]))
        return np.asarray(advantages(name, rewards))

    def _largest(self, estimator: Estimator) -> float:
        if not self.problem.binary:
            raise InputError(
                "no range is known for graded rewards under a plan: use the engine exact"
            )
        sums = []
        for n, k in zip(self._scheme.stops.sizes, self._scheme.stops.successes, strict=True):
            if estimator.name == SEQUENTIAL.name:
                # Twice the mean of ½ (z - z') over pairs; no reward difference is above 1.
                return 1.0
            group = np.repeat([1.0, 0.0], [k, n - k])
            sums.append(np.abs(self._advantages(estimator.name, group)).mean())
        return float(max(sums))


_BALANCED = {"balanced": "none", "balanced-inverse": "rate", "balanced-std": "std"}
"""Divisors of sub-samples by the label's first word; the number of outputs follows a colon."""


def _under_a_plan(rewards: Array, draws: Draws) -> Array:
    raise InputError("the sequential estimator needs a plan's cell")


SEQUENTIAL = Estimator("sequential", function=_under_a_plan)
"""The estimator that is unbiased under the plan of the cell that it is measured on."""


def of_plan(estimator: str) -> Estimator:
    """The estimator of a plan's cell by name: sequential, two-stage, a balanced sub-sample or any other."""
    if estimator.partition(":")[0] in ("sequential", "two-stage", *_BALANCED):
        return Estimator(estimator.replace("two-stage", "sequential"), function=_under_a_plan)
    return Estimator(estimator)
