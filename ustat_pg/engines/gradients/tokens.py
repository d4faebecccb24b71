"""Cells of gradients whose outputs are divided by the tokens of other outputs too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from ...digests import digest
from ...estimators import token_weights
from ...validation import InputError, finite_array, one_of
from ..base import Array, Draws, Estimator, MomentSums, Replications
from .cell import Distance, GradientCell, GradientQuantity, Mixed

__all__ = ["TokenMeanCell"]


@dataclass(frozen=True)
class TokenMeanCell(GradientCell):
    """A cell whose loss is the sum over all tokens over their number, in place of outputs.

    Only engines that see a whole minibatch measure it: in the place of compiled ones stands reference.
    A weight of each output alone needs no cell of its own: see :class:`~ustat_pg.problems.WeightedBandit`.

    Arguments:
        lengths: tokens of every output, K whole numbers >= 1.
        how: token-mean, over the minibatch, or prompt-mean, over each group.

    Raises:
        InputError: lengths that are not as said, or another way.

    >>> from ustat_pg.problems import random_problem
    >>> from ustat_pg.engines import SquaredError
    >>> cell = TokenMeanCell(random_problem(0), 2, lengths=(1, 2, 4))
    >>> cell.measure("cpu", [SquaredError(Estimator("grpo"))], replications=10).n
    10
    """

    lengths: tuple[int, ...] = ()
    how: str = "token-mean"

    engines = ("exact", "reference")

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("aggregation", self.how, ("token-mean", "prompt-mean"))
        lengths = finite_array("lengths", self.lengths, 1, minimum=1)
        if len(lengths) != self.problem.arms or (lengths != np.round(lengths)).any():
            raise InputError(f"lengths must be {self.problem.arms} whole numbers, one for each arm")

    @property
    def name(self) -> str:
        own = digest(self.how, {"lengths": np.array(self.lengths, dtype=np.float64)})
        return f"{super().name}/{own}"

    def engine(self, asked: str) -> str:
        return asked if asked in self.engines else "reference"

    def _measure(
        self, engine: str, quantities: Sequence[GradientQuantity], block: Replications
    ) -> MomentSums:
        # No weight is above 1, so that the ranges of the estimators themselves hold.
        return super()._measure(self.engine(engine), [*map(self._by_tokens, quantities)], block)

    @cached_property
    def _masks(self) -> Array:
        """Which tokens each output has, (K, T)."""
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
            weights = token_weights(self._masks[draws.arms], self.how)[..., 0]
            # Engines take means over outputs.
            outputs = self.batch_size * self.group_size
            return np.asarray(weights * outputs * estimator.advantages(self.problem, draws))

        return Estimator(estimator.label, function=advantages)
