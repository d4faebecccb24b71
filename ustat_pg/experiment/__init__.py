"""Experiments: claims as lists of checks, their planning, running and storing."""

from ..results import load_curves, load_results, load_run
from .chi_squares import Below, ChiSquares, TransformOf
from .claim import Check, Claim
from .curves import Point, run_points
from .executors import LostWorkers, dask_cluster
from .forecast import plan_claims
from .functionals import (
    Eigenvalue,
    EverySample,
    Extrapolation,
    LawDistance,
    LawExcess,
    LawShare,
    Linear,
    LogSlope,
    Ratio,
    mean_of,
)
from .options import Options
from .pits import ConditionalPit, Pit
from .plan import Plan
from .runner import Run, run_claims
from .store import Store, StoreError
from .work import Interrupted

__all__ = [
    "Below",
    "Check",
    "ChiSquares",
    "Claim",
    "ConditionalPit",
    "Eigenvalue",
    "EverySample",
    "Extrapolation",
    "Interrupted",
    "LawDistance",
    "LawExcess",
    "LawShare",
    "Linear",
    "LogSlope",
    "LostWorkers",
    "Options",
    "Pit",
    "Plan",
    "Point",
    "Ratio",
    "Run",
    "Store",
    "StoreError",
    "TransformOf",
    "dask_cluster",
    "load_curves",
    "load_results",
    "load_run",
    "mean_of",
    "plan_claims",
    "run_claims",
    "run_points",
]
