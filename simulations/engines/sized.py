"""Cells of groups in which some outputs do not count: a fixed smaller size, or lost outputs."""

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
    """Groups with a size that was fixed for each prompt before any of its rewards was known.

    Arguments:
        group_size: the largest size.
        sizes: n(x), (X,).
        pooled: whether a prompt's weight is its number of outputs, as in a mean over all outputs of a batch:
            each estimate times n(x)/E n. If not, all prompts have equal weights.
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
    """Groups in which only some outputs survive; the estimator uses only the survivors.

    Arguments:
        problem: each output has two arms of equal score, one for survival and one for loss.
        survives: whether an arm survives, (K,).
        lone: whether the raw reward of a lone survivor counts; if not, it adds nothing.
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
