"""Engines: what loops one replication's arithmetic over outcomes or over random draws.

``exact`` enumerates every outcome, ``reference`` is plain NumPy written to be read, ``cpu`` is the
same compiled, ``cuda`` the same on a GPU, and ``autograd`` differentiates a network. All answer the
same questions about the same cells. A cell is a gradient at fixed parameters (:class:`Cell`) or whole
training runs (:class:`Training`, and :class:`NetworkTraining`).
"""

from .base import (
    Cell,
    Distance,
    Draws,
    Engine,
    Estimator,
    InfeasibleError,
    MomentSums,
    Projection,
    Quantity,
    SquaredError,
    SquaredProjection,
    get_engine,
)
from .networks.cell import NetworkTraining
from .runs.cell import ConditionalPit, Gap, GapTransform, Pit, Training
from .runs.regions import Ball, Box
from .runs.schedules import Constant, Decay

__all__ = [
    "Ball",
    "Box",
    "Cell",
    "ConditionalPit",
    "Constant",
    "Decay",
    "Distance",
    "Draws",
    "Engine",
    "Estimator",
    "Gap",
    "GapTransform",
    "InfeasibleError",
    "MomentSums",
    "NetworkTraining",
    "Pit",
    "Projection",
    "Quantity",
    "SquaredError",
    "SquaredProjection",
    "Training",
    "get_engine",
]
