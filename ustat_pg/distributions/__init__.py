"""Laws in results of the paper that no library computes to full accuracy.

They look like SciPy's frozen distributions.
"""

from __future__ import annotations

from .laws import MixtureLaw, sup_distance
from .weighted_chi2 import WeightedChi2

__all__ = ["MixtureLaw", "WeightedChi2", "sup_distance"]
