"""The autograd engine by all its ways: a surrogate for each estimator, or the gradients of the outputs."""

from __future__ import annotations

import pytest

from tests.support import laws
from tests.support.laws import SUBJECTS, errors_of
from tests.support.problems import NAMED, named
from ustat_pg.engines import Distance, Estimator, GradientCell

pytest.importorskip("torch")

from ustat_pg.engines.gradients import autograd
from ustat_pg.policies import OutputSpace
from ustat_pg.policies.transformer import TransformerPolicy
from ustat_pg.problems import TokenProblem

AUTOGRAD = SUBJECTS["autograd"]


@pytest.mark.parametrize("problem", [name for name in NAMED if name != "transformer-short"])
def test_the_same_sums_of_few_estimators(problem):
    """Some take a surrogate each; one more and they share the outputs' own gradients."""
    cell = GradientCell(named(problem), 4, 2)
    for count in range(1, autograd.SEPARATE_GRADIENTS + 2):
        names = ("norm-weighted", "grpo", "oracle", "minimum-variance")[:count]
        assert len(names) == count
        few = errors_of(*names)
        few += [Distance(Estimator(names[0]), Estimator(names[-1]))] * (count > 1)
        laws.same_numbers(AUTOGRAD, cell, few)


def test_many_outputs_and_parameters():
    """A thousand outputs of a network of some thousand parameters, few of them ever drawn."""
    space = OutputSpace(10, 3)
    problem = TokenProblem(space, [(3,), (1, 4)], lambda x, y: float(sum(y) % 10 == x[0]))
    policy = TransformerPolicy.initial(space, problem.prompts, width=8, seed=2)
    assert policy.d > 1000
    cell = GradientCell(problem.at(policy), 8, 2)
    laws.same_numbers(AUTOGRAD, cell, errors_of("grpo", "vanilla", "oracle"), replications=20)
