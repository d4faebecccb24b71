"""Cells of gradients in which the divisor of an output includes the tokens of other outputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from ustat_pg.engines.base import Draws, Estimator, MomentSums, Quantity, Replications
from ustat_pg.engines.gradients.cell import (
    Distance,
    GradientCell,
    GradientQuantity,
    Mixed,
    Projection,
)
from ustat_pg.estimators import token_weights
from ustat_pg.files.digests import digest
from ustat_pg.validation import Array


@dataclass(frozen=True)
class TokenMeanCell(GradientCell):
    """A cell whose loss is the mean over all tokens, instead of over outputs.

    Only engines that see a whole minibatch can measure it, so reference replaces the compiled ones.
    A weight of one output only needs no separate cell: see :class:`~ustat_pg.problems.WeightedBandit`.

    Arguments:
        lengths: tokens of every output, K whole numbers >= 1.
        how: token-mean (over the minibatch) or prompt-mean (over each group).
        scale: c, the factor on estimates, at least 1; E|y| makes them comparable.
        less_plain: whether the estimate of the sum over tokens on the same draws is subtracted, so that
            the difference has little noise.

    >>> from ustat_pg.problems import random_problem
    >>> from ustat_pg.engines import SquaredError
    >>> cell = TokenMeanCell(random_problem(0), 2, lengths=(1, 2, 4, 4))
    >>> cell.measure("reference", [SquaredError(Estimator("grpo"))], replications=10).n
    10
    """

    lengths: tuple[int, ...] = ()
    how: str = "token-mean"
    scale: float = 1.0
    less_plain: bool = False

    engines = ("exact", "reference")

    @property
    def name(self) -> str:
        numbers = np.array([self.scale, self.less_plain, *self.lengths], dtype=np.float64)
        return f"{super().name}/{digest(self.how, {'numbers': numbers})}"

    def range(self, quantity: Quantity) -> tuple[float, float]:
        # No weight is above 1.
        low, high = super().range(quantity)
        power = 1 if isinstance(quantity, (Projection, Mixed)) else 2
        return low * self.scale**power, high * self.scale**power

    def rounding(self, quantity: Quantity) -> float:
        return super().rounding(quantity) * self.scale**2

    def _measure(
        self, engine: str, quantities: Sequence[GradientQuantity], block: Replications
    ) -> MomentSums:
        return super()._measure(engine, [*map(self._by_tokens, quantities)], block)

    @cached_property
    def _masks(self) -> Array:
        """The mask of the tokens of each output, (K, T)."""
        lengths = np.array(self.lengths)
        return np.asarray(np.arange(lengths.max()) < lengths[:, None], dtype=np.float64)

    def _by_tokens(self, quantity: GradientQuantity) -> GradientQuantity:
        if isinstance(quantity, Mixed):
            return quantity
        if isinstance(quantity, Distance):
            return Distance(self._weighted(quantity.first), self._weighted(quantity.second))
        return replace(quantity, estimator=self._weighted(quantity.estimator))

    def _weighted(self, estimator: Estimator) -> Estimator:
        def advantages(rewards: Array, draws: Draws) -> Array:
            # Engines take means over outputs.
            outputs = self.batch_size * self.group_size
            weights = outputs * token_weights(self._masks[draws.arms], self.how)[..., 0]
            advantage = estimator.advantages(self.problem, draws)
            return np.asarray((self.scale * weights - self.less_plain) * advantage)

        return Estimator(estimator.label, function=advantages)
