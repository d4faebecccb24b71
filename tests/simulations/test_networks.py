"""Token problems of the suite: their rewards, and their bandits at all parameters."""

from __future__ import annotations

from importlib.util import find_spec
from itertools import islice

import numpy as np
import pytest

from simulations.problems import tokens
from simulations.problems.tokens import tasks
from ustat_pg.policies import TabulatedPolicy
from ustat_pg.problems import TokenBandit

needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="torch not installed")


# Problems.


def test_tasks_reward_what_their_names_say():
    found = tasks()
    rewards = {
        name: {
            (prompt, output): problem.rewards[x, k]
            for x, prompt in enumerate(problem.prompts)
            for k, output in enumerate(map(tuple, problem.space.outputs))
        }
        for name, problem in found.items()
    }
    # Token 2 ends an output, and places after it hold -1.
    for (prompt, output), value in rewards["sums"].items():
        total = sum(token for token in output if token in (0, 1))
        assert value == float((total - sum(prompt)) % 2 == 0)
    for (prompt, output), value in rewards["addition"].items():
        digits = "".join(str(token) for token in output if token in (0, 1))
        assert value == float(digits != "" and int(digits or "0", 2) == sum(prompt))
    assert rewards["sorting"][(1, 0), (0, 1)] == 1.0
    assert rewards["sorting"][(1, 0), (1, 0)] < 1.0
    assert rewards["sorting"][(1, 1), (1, 1)] == 1.0
    assert {problem.space.end for problem in found.values()} == {True, False}
    for problem in found.values():
        assert problem.rewards.min() == 0.0
        assert (problem.rewards.max(axis=1) == 1.0).all()


# The problems that claims run on.


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
