"""Cells of groups in which not all outputs count: of a size fixed beforehand, or with outputs lost."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ustat_pg.engines.base import Draws, Estimator
from ustat_pg.engines.gradients.adaptive import OrderedCell
from ustat_pg.estimators import advantages
from ustat_pg.files.digests import digest
from ustat_pg.validation import Array


@dataclass(frozen=True)
class SizedCell(OrderedCell):
    """Groups whose size was fixed for each prompt before any reward of them was seen.

    Arguments:
        group_size: the largest.
        sizes: n(x), (X,).
        pooled: whether a prompt counts by its outputs, as in a mean over all outputs of the batch, each
            prompt's estimate times n(x)/E n; else each prompt counts alike.
    """

    sizes: tuple[int, ...] = ()
    pooled: bool = False

    @property
    def name(self) -> str:
        return f"{super().name}/sizes/{digest(repr((self.sizes, self.pooled)))}"

    def _used(self, draws: Draws) -> Array:
        return np.asarray(
            np.arange(self.group_size) < np.array(self.sizes)[draws.contexts][..., None]
        )

    def _advantages(self, name: str, rewards: Array) -> Array:
        mean = float(self.problem.context_probs @ np.array(self.sizes))
        return np.asarray(advantages(name, rewards)) * (
            rewards.shape[-1] / mean if self.pooled else 1.0
        )

    def _largest(self, estimator: Estimator) -> float:
        low, high = self.problem.reward_range
        return (high - low) * (max(self.sizes) / min(self.sizes) if self.pooled else 1.0)


@dataclass(frozen=True)
class SurvivorCell(OrderedCell):
    """Groups of which only some outputs survive: an estimator of the survivors alone.

    Arguments:
        problem: each output that may be lost or not is two arms of equal score.
        survives: whether an arm survives, (K,).
        lone: whether the raw reward of a lone survivor counts; else it adds nothing.
    """

    survives: tuple[bool, ...] = ()
    lone: bool = False

    @property
    def name(self) -> str:
        return f"{super().name}/survivors/{digest(repr((self.survives, self.lone)))}"

    def _used(self, draws: Draws) -> Array:
        return np.asarray(np.array(self.survives)[draws.arms])

    def _advantages(self, name: str, rewards: Array) -> Array:
        if rewards.shape[-1] < 2:
            return rewards * self.lone
        return np.asarray(advantages(name, rewards))

    def _largest(self, estimator: Estimator) -> float:
        low, high = self.problem.reward_range
        return max(high - low, *(abs(bound) * self.lone for bound in (low, high)))
