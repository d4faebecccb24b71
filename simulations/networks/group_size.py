"""Theorem 7 on networks: the noise of the gradient at fixed parameters, random and trained.

Cost: seconds for prefix policies, a minute or two for transformers.
"""

from __future__ import annotations

from ustat_pg.experiment import Claim, Point

from ..group_size import HALVED, PAPER, STEM, gradient_errors
from ..problems import Suite


def claim(suite: Suite) -> Claim:
    """The gradient's error on every problem at two group sizes and one budget."""
    checks = [check for entry in suite.token_problems for check in gradient_errors(entry, 4)]
    return Claim(STEM, (PAPER, HALVED), tuple(checks))


def curves(suite: Suite) -> tuple[Point, ...]:
    """None: the figure is that of whole training runs."""
    return ()
