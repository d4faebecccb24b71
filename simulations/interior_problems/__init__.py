"""Problems with an interior optimum, for the training runs of claims, and the constants around it."""

from .bent_bandit import BentBandit, norm_only_problem, ordered_problem
from .constants import Constants, constants
from .interior import InteriorProblem
from .location_bandit import LocationBandit, mixture_problem

__all__ = [
    "BentBandit",
    "Constants",
    "InteriorProblem",
    "LocationBandit",
    "constants",
    "mixture_problem",
    "norm_only_problem",
    "ordered_problem",
]
