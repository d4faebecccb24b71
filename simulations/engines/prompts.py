"""Cells of prompts that are chosen: weights that a whole batch shares, and screening by earlier rollouts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ustat_pg.engines.base import Draws, Estimator, MomentSums, Replications
from ustat_pg.engines.gradients.adaptive import OrderedCell
from ustat_pg.engines.gradients.cell import GradientCell, GradientQuantity
from ustat_pg.estimators import advantages
from ustat_pg.files.digests import digest
from ustat_pg.validation import Array


@dataclass(frozen=True)
class NormalisedCell(GradientCell):
    """A minibatch of weighted prompts, with weights divided by their mean over the minibatch.

    Arguments:
        weights: v(x), (X,), positive.
    """

    weights: tuple[float, ...] = ()

    engines = ("exact", "reference")

    @property
    def name(self) -> str:
        return f"{super().name}/normalised/{digest('', {'weights': np.array(self.weights)})}"

    def _measure(
        self, engine: str, quantities: Sequence[GradientQuantity], block: Replications
    ) -> MomentSums:
        weighted = [replace(each, estimator=self._weighted(each.estimator)) for each in quantities]  # type: ignore
        return super()._measure(engine, weighted, block)

    def _weighted(self, estimator: Estimator) -> Estimator:
        def weighted(rewards: Array, draws: Draws) -> Array:
            weights = np.array(self.weights)[draws.contexts]
            shares = weights / weights.mean(axis=-1, keepdims=True)
            return np.asarray(shares[..., None] * estimator.advantages(self.problem, draws))

        return Estimator(estimator.label, function=weighted)


@dataclass(frozen=True)
class ScreenedCell(OrderedCell):
    """Groups that are used only if earlier rollouts of the prompt have a number of successes in a range.

    Arguments:
        group_size: the number of screening rollouts and of outputs together.
        screened: k, the rollouts that decide; they are not used again.
        kept: least and greatest number of successes among them.
    """

    screened: int = 0
    kept: tuple[int, int] = (0, 0)

    @property
    def name(self) -> str:
        return f"{super().name}/screened/{digest(repr((self.screened, self.kept)))}"

    def _used(self, draws: Draws) -> Array:
        least, most = self.kept
        successes = draws.rewards[..., : self.screened].sum(axis=-1)
        chosen = (successes >= least) & (successes <= most)
        return np.asarray(chosen[..., None] & (np.arange(self.group_size) >= self.screened))

    def _advantages(self, name: str, rewards: Array) -> Array:
        return np.asarray(advantages(name, rewards))

    def _largest(self, estimator: Estimator) -> float:
        low, high = self.problem.reward_range
        return high - low
