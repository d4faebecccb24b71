"""Evidence: claims as lists of checks, with planning, running and storing; intervals that are valid at every
sample size, and one decider; the records of a run, and the pages from them.
"""

from .chi_squares import Below, ChiSquares, TransformOf
from .claim import Check, Claim
from .curves import Point, run_points
from .executors import LostWorkers, dask_cluster
from .forecast import plan_claims
from .functionals import (
    Eigenvalue,
    EverySample,
    Extrapolation,
    Known,
    Linear,
    LogSlope,
    Ratio,
    mean_of,
)
from .intervals import Forecast, Interval, NearlyNormal
from .laws import LawDistance, LawExcess, LawShare
from .options import Options
from .pits import ConditionalPit, Pit
from .plan import Plan
from .planning import FAMILY_ALPHA, allotted_alpha, replications_needed
from .results import load_curves, load_results, load_run
from .runner import Run, run_claims
from .store import Store, StoreError
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
from .work import Interrupted

__all__ = [
    "FAMILY_ALPHA",
    "Below",
    "Check",
    "ChiSquares",
    "Claim",
    "ConditionalPit",
    "Decision",
    "Eigenvalue",
    "EverySample",
    "Evidence",
    "Extrapolation",
    "Forecast",
    "Interrupted",
    "Interval",
    "Known",
    "LawDistance",
    "LawExcess",
    "LawShare",
    "Linear",
    "LogSlope",
    "LostWorkers",
    "NearlyNormal",
    "Options",
    "Pit",
    "Plan",
    "Point",
    "Ratio",
    "RivalVerdict",
    "Run",
    "Statement",
    "Store",
    "StoreError",
    "TransformOf",
    "Verdict",
    "allotted_alpha",
    "at_most",
    "attained",
    "dask_cluster",
    "decide",
    "equal",
    "load_curves",
    "load_results",
    "load_run",
    "mean_of",
    "plan_claims",
    "positive",
    "replications_needed",
    "run_claims",
    "run_points",
    "worst",
]
