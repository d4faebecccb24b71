"""Problems: what a policy is trained on, with exact ground truth."""

from .files import load_problem, save_problem
from .generator import KINDS, random_problem
from .labelled import digits_problem, labelled_problem
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
    "NamedProblem",
    "Outcomes",
    "SoftmaxBandit",
    "TokenBandit",
    "TokenProblem",
    "WeightedBandit",
    "bracket_matching",
    "digit_addition",
    "digits_problem",
    "example_problem",
    "labelled_problem",
    "load_problem",
    "modular_sum",
    "named_problem",
    "named_problems",
    "problem_from_mapping",
    "random_problem",
    "save_problem",
    "sorting",
    "survivor_moments",
    "token_outcomes",
]
