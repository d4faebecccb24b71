"""The autograd engine by both its ways: every surrogate differentiated, or sums of the outputs' gradients."""

from __future__ import annotations

import pytest

from tests.support import laws
from tests.support.laws import SUBJECTS, errors_of
from tests.support.problems import NAMED, named
from ustat_pg.engines import Distance, Estimator, GradientCell

pytest.importorskip("torch")

from simulations.engines import autograd

AUTOGRAD = SUBJECTS["autograd"]


@pytest.mark.parametrize("share", [0.0, autograd.KEPT_SHARE])
@pytest.mark.parametrize("problem", [name for name in NAMED if name != "transformer-short"])
def test_the_same_sums_of_few_estimators(problem, share, monkeypatch):
    monkeypatch.setattr(autograd, "_KEPT", {})
    monkeypatch.setattr(autograd, "KEPT_SHARE", share)
    cell = GradientCell(named(problem), 4, 2)
    for count in (1, 3):
        names = ("norm-weighted", "grpo", "oracle")[:count]
        few = errors_of(*names)
        few += [Distance(Estimator(names[0]), Estimator(names[-1]))] * (count > 1)
        laws.same_numbers(AUTOGRAD, cell, few)
