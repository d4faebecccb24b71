"""An estimator that learns along a training run: each run of a network has a running table of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...baselines import parse
from ...estimators import RunningTable
from ..base import Estimator

__all__ = ["LearnedTable"]


@dataclass(frozen=True)
class LearnedTable(Estimator):
    """The leave-one-out table that a run learns from its own earlier steps (best_baseline).

    See :class:`~ustat_pg.estimators.RunningTable`. Runs of networks take it; rewards are 0 and 1.

    Arguments:
        baseline: Bayes leave-one-out, what the table is before the first step.
        by_norms: whether outputs count by their squared score norms.
        keep: what remains of the sums after each step, in (0, 1].

    >>> LearnedTable(keep=0.9).label
    'learned from bayes:1,1,keep=0.9'
    """

    baseline: str = "bayes:1,1"
    by_norms: bool = False
    keep: float = 1.0

    @property
    def label(self) -> str:
        """How results call it."""
        norms = ",norms" if self.by_norms else ""
        return f"learned from {self.baseline}{norms},keep={self.keep!r}"

    def begin(self, runs: int, group_size: int) -> _Tables:
        """A table for each run."""
        prior = tuple(parse(self.baseline)[1].values())
        return _Tables(
            [RunningTable(group_size, prior=prior, keep=self.keep) for _ in range(runs)],
            self.by_norms,
        )


@dataclass
class _Tables:
    """The tables of some runs as they stand."""

    tables: list[RunningTable]
    by_norms: bool

    def weigh(self, rewards: Any, squared_norms: Callable[[], Any], **_: Any) -> Any:
        """Advantages of a step's rewards (R, B, G), from which the tables then learn."""
        groups = rewards.cpu().numpy()
        norms = squared_norms().double().cpu().numpy() if self.by_norms else [None] * len(groups)
        found = [
            table.advantages(own, weights)
            for table, own, weights in zip(self.tables, groups, norms, strict=True)
        ]
        return rewards.new_tensor(np.stack(found))
