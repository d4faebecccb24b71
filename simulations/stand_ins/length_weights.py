"""Lengths of outputs, which a problem of the user's own does not have."""

from __future__ import annotations

from ustat_pg.experiment import Claim, Point

from ..length_weights import RIVALS, STEM
from ..problems import Suite


def claim(suite: Suite) -> Claim:
    """Nothing: no file holds tokens."""
    return Claim(STEM, RIVALS, ())


def curves(suite: Suite) -> tuple[Point, ...]:
    """None."""
    return ()
