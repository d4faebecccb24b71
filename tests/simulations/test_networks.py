"""Bandits of the token problems, at all parameters or as few as scores span."""

from importlib.util import find_spec
from itertools import islice

import numpy as np
import pytest

from simulations.evidence.verdict import ROUNDING
from simulations.problems import tokens
from simulations.shared.numerics import HALVINGS
from simulations.shared.peers import slope
from ustat_pg.engines.gradients.cell import direction
from ustat_pg.policies import TabulatedPolicy
from ustat_pg.problems import TokenBandit

needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="torch not installed")


@needs_torch
def test_dense_bandits_keep_their_parameters_and_the_same_moments():
    entries = [islice(tokens.bandits("transformer", 0, dense=dense), 4) for dense in (False, True)]
    for one, other in zip(*entries, strict=True):
        short, dense = one.problem, other.problem
        assert one.name == other.name
        assert isinstance(short, TokenBandit)
        assert isinstance(dense, TokenBandit)
        assert isinstance(short.policy, TabulatedPolicy)
        assert dense.d > 500 > 30 > short.d
        one, other = short.moments(), dense.moments()
        for what in ("value", "fisher_trace", "gradient_sq", "norm_advantage"):
            assert getattr(one, what) == pytest.approx(getattr(other, what), rel=1e-8, abs=1e-12)
        # Draws of the one are draws of the other; names say which is which.
        assert np.array_equal(short.policy.probs, dense.policy.probs)
        assert short.digest != dense.digest


@needs_torch
def test_a_return_s_slope_takes_few_passes_and_is_found_once(monkeypatch):
    from ustat_pg.policies.network import CausalTransformer

    passes, forward = [], CausalTransformer.forward

    def counted(self, read):
        passes.append(read)
        return forward(self, read)

    monkeypatch.setattr(CausalTransformer, "forward", counted)
    problem = next(tokens.bandits("transformer", 0, dense=True)).problem
    for number in (0, 1):
        unit = direction(problem, number)
        size = float(np.linalg.norm(problem.gradient()))
        # An interval is one pass of each prompt, whatever its points; the second time is looked up.
        for most in (HALVINGS * problem.contexts, 0):
            passes.clear()
            value, error = slope(problem, unit)
            assert abs(value - problem.gradient() @ unit) <= error < ROUNDING * size
            assert len(passes) <= most
