"""The experiments: one file for each result, its design as data, its checks and its rivals."""

from __future__ import annotations

from importlib import import_module

from ustat_pg.experiment import Claim
from ustat_pg.paper import delivered

from .problems import Suite

__all__ = ["STEMS", "Suite", "claim"]

STEMS = tuple(delivered())
"""The results that have an experiment, in the paper's order."""


def claim(stem: str, suite: Suite) -> Claim:
    """The claim of that stem, designed on the suite's problems."""
    built: Claim = import_module(f"{__name__}.{stem}").claim(suite)
    return built
