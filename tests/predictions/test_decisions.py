"""A group size is as sure as the intervals of the constants: what is decided where these have no end."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest

from tests.llm.advice.test_advice_words import made
from ustat_pg.llm.advice.advise import decide
from ustat_pg.llm.pool.constants import constants
from ustat_pg.llm.pool.scored import ScoredPool
from ustat_pg.predictions import (
    MseConstants,
    decision,
    group_size_advice,
    mse_constants,
    prompts_to_settle,
)
from ustat_pg.problems import SoftmaxBandit

BUDGET = 64
CLOSED = constants(made())
SIZES = group_size_advice(CLOSED.predictions(), BUDGET)
FEASIBLE = np.array([row.group_size for row in SIZES.table])


def losses(c1, c2, c3):
    """The error of each feasible size over the least."""
    noise = c1 * FEASIBLE + c2 + c3 / (FEASIBLE - 1)
    return noise / noise.min()


def opened(star=(1.0, math.inf), **ends):
    """The estimates with other intervals."""
    found = replace(CLOSED, g_star=replace(CLOSED.g_star, low=star[0], high=star[1]))
    return replace(
        found,
        **{
            name: replace(getattr(CLOSED, name), low=low, high=high)
            for name, (low, high) in ends.items()
        },
    )


@pytest.mark.parametrize("star", [(1.0, math.inf), (1.75, math.inf), (4.0, 12.0), (6.0, math.inf)])
@pytest.mark.parametrize("open_end", ["c1", "c2", "c3"])
def test_where_an_end_is_open_the_interval_of_the_best_size_decides(star, open_end):
    found = decision(opened(star, **{open_end: (0.0, math.inf)}), SIZES)
    share = CLOSED.c2.value / CLOSED.c3.value
    # From c1 = c3 on a larger c1 is impossible.
    stars = 1 + np.geomspace(max(star[0] - 1, 1.0), min(star[1] - 1, 1e6), 2001)
    tables = np.array([losses((each - 1) ** -2.0, share, 1.0) for each in stars])
    best = FEASIBLE[tables.argmin(axis=1)]
    assert found.not_ruled_out == (best.min(), best.max())
    assert not found.known
    within = (best.min() <= FEASIBLE) & (best.max() >= FEASIBLE)
    worst = tables.max(axis=0)
    assert found.worst == pytest.approx(worst[within].min(), rel=1e-5)
    assert worst[found.group_size == FEASIBLE] == pytest.approx(found.worst, rel=1e-5)


@pytest.mark.parametrize("star", [(2.0, 4.0), (9.0, 17.0), (40.0, 1e4)])
def test_no_size_is_advised_that_is_ruled_out(star):
    """However wide the intervals of the three are; what it may lose is by these."""
    wide = {"c1": (1e-3, 1.0), "c2": (0.0, 1.0), "c3": (0.5, 2.0)}
    found = decision(opened(star, **wide), SIZES)
    least, most = found.not_ruled_out
    assert found.known
    assert least <= found.group_size <= most
    worst = max(
        losses(c1, c2, c3)[found.group_size == FEASIBLE][0]
        for c1, c2, c3 in itertools.product(*wide.values())
    )
    assert found.worst == pytest.approx(worst)


def rare_rewards(prompts=60):
    """One output in four is right on every fifth prompt, one in fifty on the others."""
    rng = np.random.default_rng(11)
    rates = np.where(np.arange(prompts) % 5 == 0, 0.25, 0.02)
    features = rng.normal(size=(prompts, 6, 5))
    features[:, 0, 0] += 1
    wrong = (1 - rates)[:, None] * rng.dirichlet(np.full(5, 2.0), size=prompts)
    rewards = np.zeros((prompts, 6, 1))
    rewards[:, 0] = 1.0
    return SoftmaxBandit.linear(
        np.full(prompts, 1 / prompts),
        features,
        np.zeros(5),
        rewards,
        np.ones_like(rewards),
        offset=np.log(np.column_stack([rates, wrong])),
    )


@pytest.mark.parametrize("prompts", [8, 16])
def test_a_small_pool_of_rare_rewards_is_advised_well(prompts):
    """The best at the estimates is not: it is one group of all outputs wherever c1 is estimated below 0."""
    problem = rare_rewards()
    truth = mse_constants(problem.moments())
    loss = dict(zip(FEASIBLE, losses(truth.c1, truth.c2, truth.c3), strict=True))
    advised, at_estimates = [], []
    for seed in range(80):
        drawn = problem.sample(np.random.default_rng(seed), 8, prompts)
        found = decide(ScoredPool.from_scores(drawn.rewards, drawn.scores), BUDGET)
        if found is not None:
            advised.append(loss[found.group_size])
            at_estimates.append(loss[found.sizes.group_size])
    assert len(advised) > 40
    assert np.mean(np.array(advised) <= 1.5) >= 0.95
    assert max(advised) <= 3
    assert max(at_estimates) > 3


def test_how_many_prompts_settle_it():
    known = [constants(made(24, seed=seed)) for seed in range(11)]
    sizes = SIZES
    numbers = [prompts_to_settle(each, 24, sizes, 0.05) for each in known]
    asked = int(np.median([each or math.inf for each in numbers]))

    def settled(prompts):
        pools = (made(prompts, seed=seed) for seed in range(20, 36))
        return np.mean([decide(each, BUDGET).decision.settles(0.05) for each in pools])

    assert asked > 24
    assert settled(asked // 2) < 0.5 < settled(2 * asked)
    known = known[numbers.index(asked)]
    assert prompts_to_settle(known, 24, sizes, 0.01) >= asked
    # Where nothing says how far c1 is from 0, nothing says how many.
    unclear = replace(known, c1=replace(known.c1, value=known.c1.se / 2))
    assert prompts_to_settle(unclear, 24, sizes, 0.05) is None
    assert (
        prompts_to_settle(replace(known, c3=replace(known.c3, se=math.nan)), 24, sizes, 1) is None
    )


def test_costs_and_a_population_decide_too():
    found = opened(c1=(0.0, math.inf))
    costly = group_size_advice(CLOSED.predictions(), 1000, prompt_cost=20.0)
    assert decision(found, costly).group_size > decision(found, SIZES).group_size
    few = decision(found, SIZES, population=BUDGET // 2)
    # All prompts at once have no spread between them.
    assert few.not_ruled_out[0] == 2
    assert few.worst >= 1
    assert MseConstants(1.0, 0.0, 0.0).mse(2, 32, population=32) == 0
