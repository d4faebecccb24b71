"""Problems: what a policy is trained on, with exact ground truth."""

from .bent_bandit import BentBandit, norm_only_problem, ordered_problem
from .constants import Constants, constants
from .files import load_problem, save_problem
from .generator import KINDS, random_problem
from .interior import InteriorProblem
from .labelled import digits_problem, labelled_problem
from .location_bandit import LocationBandit, mixture_problem
from .mappings import example_problem, problem_from_mapping
from .named import NamedProblem, named_problem, named_problems
from .softmax_bandit import Outcomes, SoftmaxBandit
from .survivors import survivor_moments
from .tokens import (
    TokenBandit,
    TokenProblem,
    bracket_matching,
    digit_addition,
    modular_sum,
    sorting,
    token_outcomes,
)
from .weighted import WeightedBandit

__all__ = [
    "KINDS",
    "BentBandit",
    "Constants",
    "InteriorProblem",
    "LocationBandit",
    "NamedProblem",
    "Outcomes",
    "SoftmaxBandit",
    "TokenBandit",
    "TokenProblem",
    "WeightedBandit",
    "bracket_matching",
    "constants",
    "digit_addition",
    "digits_problem",
    "example_problem",
    "labelled_problem",
    "load_problem",
    "mixture_problem",
    "modular_sum",
    "named_problem",
    "named_problems",
    "norm_only_problem",
    "ordered_problem",
    "problem_from_mapping",
    "random_problem",
    "save_problem",
    "sorting",
    "survivor_moments",
    "token_outcomes",
]
