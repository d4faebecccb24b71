"""The autograd engine by all its ways: a surrogate for each estimator, or the gradients of the outputs."""

from __future__ import annotations

import pytest

from tests.support import laws
from tests.support.laws import SUBJECTS, errors_of
from tests.support.problems import NAMED, named
from ustat_pg.engines import Distance, Estimator, GradientCell

pytest.importorskip("torch")

from ustat_pg.engines.gradients import autograd

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
