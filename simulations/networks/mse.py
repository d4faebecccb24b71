"""Theorem 2 on networks: errors and matrices at single prompts."""

from __future__ import annotations

from ustat_pg.experiment import Claim

from ..mse import RIVALS, SHORT, STEM, at_one_prompt, curves
from ..problems import Suite

__all__ = ["OF_ERRORS", "STEM", "claim", "curves"]

OF_ERRORS = tuple(rival for rival in RIVALS if rival != SHORT)
"""Those about an error; the other is about a mean, which is asked of bandits alone."""


def claim(suite: Suite) -> Claim:
    """Every single prompt at every group size; the other baselines and matrices at small ones."""
    return Claim(STEM, OF_ERRORS, tuple(at_one_prompt(suite)))
