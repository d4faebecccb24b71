"""Problems whose optimum is interior, which training runs of claims climb, and the constants around it."""

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
