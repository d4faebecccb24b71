"""Minibatches with graded rewards, of estimators that no compiled engine has."""

from __future__ import annotations

from dataclasses import dataclass

from ustat_pg.engines import GradientCell


@dataclass(frozen=True)
class GradedCell(GradientCell):
    """A cell that is drawn by the reference engine: compiled bodies have max@k for rewards 0 and 1 only.

    >>> from ustat_pg.problems import random_problem
    >>> GradedCell(random_problem(0), 4).engine("cpu")
    'reference'
    """

    engines = ("exact", "reference")
