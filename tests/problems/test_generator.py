"""Random problems: determinism, and the corners that the kinds promise."""

import numpy as np
import pytest

from ustat_pg.policies import ArmLinearSoftmax, SharedLinearSoftmax, TabularSoftmax
from ustat_pg.problems import KINDS, random_problem

SEEDS = range(12)


@pytest.mark.parametrize("kind", KINDS)
def test_the_seed_is_the_problem(kind):
    digests = [random_problem(seed, kind).digest for seed in SEEDS]
    assert digests == [random_problem(seed, kind).digest for seed in SEEDS]
    assert len(set(digests)) == len(digests)


@pytest.mark.parametrize("kind", KINDS)
def test_problems_are_sound_and_small(kind):
    for seed in SEEDS:
        problem = random_problem(seed, kind)
        assert problem.contexts == (1 if kind == "one-context" else 3)
        assert problem.outcomes.counts.max() <= 8
        moments = problem.moments()
        assert (moments.fisher_trace > 0).all()
        form = {"linear": ArmLinearSoftmax, "shared-linear": SharedLinearSoftmax}
        assert type(problem.policy) is form.get(kind, TabularSoftmax)
    sizes = {random_problem(seed, kind).arms for seed in SEEDS}
    assert sizes == ({2} if kind == "two-arms" else {3, 4})


@pytest.mark.parametrize("kind", KINDS)
def test_assumption_2_holds_where_it_is_promised_and_only_there(kind):
    for seed in SEEDS:
        moments = random_problem(seed, kind).moments()
        scale = moments.fisher_trace * np.abs(moments.value)
        off = np.abs(moments.norm_advantage) / scale
        if kind in ("assumption-2", "equal-rewards"):
            assert off.max() < 1e-13
        elif kind != "near-deterministic":
            assert off.max() > 1e-6


def test_pass_rates():
    for seed in SEEDS:
        rare = random_problem(seed, "rarely-solved").moments().value
        often = random_problem(seed, "nearly-always-solved").moments().value
        assert ((rare >= 1e-3) & (rare <= 1e-2)).all()
        assert ((often >= 0.99) & (often <= 0.999)).all()


@pytest.mark.parametrize("kind", ["binary", "rarely-solved", "nearly-always-solved"])
def test_binary_rewards(kind):
    for seed in SEEDS:
        problem = random_problem(seed, kind)
        assert set(np.unique(problem.outcomes.rewards)) == {0.0, 1.0}
        value = problem.moments().value
        assert np.allclose(problem.moments().reward_variance, value * (1 - value), rtol=1e-10)


def test_equal_rewards():
    for seed in SEEDS:
        problem = random_problem(seed, "equal-rewards")
        low, high = problem.reward_range
        assert low == high
        assert 0.2 <= low <= 0.8
        assert problem.moments().reward_variance.max() < 1e-30
        assert problem.moments().gradient_sq.max() < 1e-30


def test_reward_ranges():
    negative = [random_problem(seed, "negative-rewards") for seed in SEEDS]
    assert all(-2 <= p.reward_range[0] < 0 and p.reward_range[1] <= 0.5 for p in negative)
    assert all((p.moments().value < 0).any() for p in negative)
    plain = [random_problem(seed, "plain") for seed in SEEDS]
    assert all(0 <= p.reward_range[0] < p.reward_range[1] <= 1 for p in plain)
