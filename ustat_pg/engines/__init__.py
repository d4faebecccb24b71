"""Engines: what loops one replication's arithmetic over outcomes or over random draws.

``exact`` enumerates every outcome, ``reference`` is plain NumPy written to be read, ``cpu`` is the
same compiled, ``cuda`` the same on a GPU, and ``autograd`` differentiates a network. A cell says
what is drawn: a gradient at fixed parameters (:class:`GradientCell`), one step along it
(:class:`OneStep`) or whole training runs (:class:`Training`). All have one door,
``cell.measure(engine, quantities)``. Each kind has a folder, with a file for the cell and one for
each engine that runs it.
"""

from .base import Cell, Draws, Estimator, InfeasibleError, MomentSums, Quantity
from .gradients.adaptive import GroupSize, PlanCell, SizedCell, SurvivorCell, of_plan
from .gradients.cell import (
    Distance,
    GradientCell,
    Mixed,
    Projection,
    SquaredError,
    SquaredProjection,
)
from .gradients.tokens import TokenMeanCell
from .one_step import GapAfterStep, OneStep
from .practical import PracticalCell, PracticalError, RatioBias, Rule, TargetBias
from .runs.cell import (
    Away,
    Binned,
    Coordinate,
    Cosine,
    Gap,
    GapTransform,
    OneRun,
    Product,
    Training,
)
from .runs.regions import Ball
from .runs.schedules import Constant, Decay

__all__ = [
    "Away",
    "Ball",
    "Binned",
    "Cell",
    "Constant",
    "Coordinate",
    "Cosine",
    "Decay",
    "Distance",
    "Draws",
    "Estimator",
    "Gap",
    "GapAfterStep",
    "GapTransform",
    "GradientCell",
    "GroupSize",
    "InfeasibleError",
    "Mixed",
    "MomentSums",
    "OneRun",
    "OneStep",
    "PlanCell",
    "PracticalCell",
    "PracticalError",
    "Product",
    "Projection",
    "Quantity",
    "RatioBias",
    "Rule",
    "SizedCell",
    "SquaredError",
    "SquaredProjection",
    "SurvivorCell",
    "TargetBias",
    "TokenMeanCell",
    "Training",
    "of_plan",
]
