"""Theorem 7 on a problem of the user's own: the curve of the gradient's error, without training."""

from __future__ import annotations

from ustat_pg.experiment import Claim, Point

from ..group_size import RIVALS, STEM, gradient_errors
from ..problems import Suite


def claim(suite: Suite) -> Claim:
    """The error of the gradient at two group sizes and one budget."""
    (entry,) = suite.stand_ins
    return Claim(STEM, RIVALS, tuple(gradient_errors(entry, 4)))


def curves(suite: Suite) -> tuple[Point, ...]:
    """None: the curves are those of training runs."""
    return ()
