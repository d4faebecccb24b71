"""Engines: what loops one replication's arithmetic over outcomes or over random draws.

``exact`` enumerates every outcome, ``reference`` is plain NumPy written to be read, ``cpu`` is the
same compiled. All answer the same questions about the same cells.
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

__all__ = [
    "Cell",
    "Distance",
    "Draws",
    "Engine",
    "Estimator",
    "InfeasibleError",
    "MomentSums",
    "Projection",
    "Quantity",
    "SquaredError",
    "SquaredProjection",
    "get_engine",
]
