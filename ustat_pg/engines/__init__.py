"""Engines: what loops one replication's arithmetic over outcomes or over random draws.

``exact`` enumerates every outcome, ``reference`` is plain NumPy written to be read, ``cpu`` is the
same compiled, ``cuda`` the same on a GPU. A cell says what is drawn, a gradient at fixed parameters
(:class:`GradientCell`), and has one door, ``cell.measure(engine, quantities)``.
"""

from .base import Cell, Draws, Estimator, InfeasibleError, MomentSums, Quantity
from .gradients.adaptive import GroupSize, PlanCell, of_plan
from .gradients.cell import (
    Distance,
    GradientCell,
    Mixed,
    Projection,
    SquaredError,
    SquaredProjection,
)

__all__ = [
    "Cell",
    "Distance",
    "Draws",
    "Estimator",
    "GradientCell",
    "GroupSize",
    "InfeasibleError",
    "Mixed",
    "MomentSums",
    "PlanCell",
    "Projection",
    "Quantity",
    "SquaredError",
    "SquaredProjection",
    "of_plan",
]
