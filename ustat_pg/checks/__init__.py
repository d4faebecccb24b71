"""Statistical verdicts: intervals that hold at every sample size, one decider, planning."""

from .intervals import Forecast, Interval, NearlyNormal
from .planning import FAMILY_ALPHA, allotted_alpha, replications_needed
from .verdict import (
    Decision,
    Evidence,
    RivalVerdict,
    Statement,
    Verdict,
    at_most,
    attained,
    decide,
    equal,
    positive,
    worst,
)

__all__ = [
    "FAMILY_ALPHA",
    "Decision",
    "Evidence",
    "Forecast",
    "Interval",
    "NearlyNormal",
    "RivalVerdict",
    "Statement",
    "Verdict",
    "allotted_alpha",
    "at_most",
    "attained",
    "decide",
    "equal",
    "positive",
    "replications_needed",
    "worst",
]
