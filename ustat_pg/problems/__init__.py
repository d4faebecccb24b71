"""Problems: what a policy is trained on, with exact ground truth."""

from .files import example_problem, load_problem, problem_from_mapping, save_problem
from .generator import KINDS, random_problem
from .labelled import digits_problem, labelled_problem
from .softmax_bandit import Outcomes, SoftmaxBandit

__all__ = [
    "KINDS",
    "Outcomes",
    "SoftmaxBandit",
    "digits_problem",
    "example_problem",
    "labelled_problem",
    "load_problem",
    "problem_from_mapping",
    "random_problem",
    "save_problem",
]
