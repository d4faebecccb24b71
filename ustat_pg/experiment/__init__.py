"""Experiments: claims as lists of checks, their planning, running and storing."""

from .claim import (
    Check,
    Claim,
    Identity,
    Linear,
    LogSlope,
    Ratio,
    mean_of,
)
from .curves import Point, load_curves, run_points
from .plan import Options, Plan
from .results import load_results
from .runner import Interrupted, Run, plan_claims, run_claims
from .store import Store, StoreError

__all__ = [
    "Check",
    "Claim",
    "Identity",
    "Interrupted",
    "Linear",
    "LogSlope",
    "Options",
    "Plan",
    "Point",
    "Ratio",
    "Run",
    "Store",
    "StoreError",
    "load_curves",
    "load_results",
    "mean_of",
    "plan_claims",
    "run_claims",
    "run_points",
]
