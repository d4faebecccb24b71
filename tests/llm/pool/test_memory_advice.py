"""The group size of a pool with a memory of earlier rewards."""

import numpy as np
import pytest

from tests.support.refusals import refuses
from ustat_pg import advise, load_problem
from ustat_pg.llm.pool.constants import constants
from ustat_pg.llm.pool.memory import memory_pool_advice
from ustat_pg.llm.pool.scored import ScoredPool
from ustat_pg.predictions import memory_group_size


@pytest.fixture(scope="module")
def pool():
    """Prompts whose gradients differ, so that c1 is well above 0."""
    rng = np.random.default_rng(0)
    rates = rng.uniform(0.2, 0.8, 60)
    rewards = (rng.random((60, 8)) < rates[:, None]).astype(float)
    scores = rng.normal(size=(60, 8, 3)) * 0.3
    scores += (rewards - rates[:, None])[..., None] * rng.normal(size=(60, 1, 3))
    return ScoredPool.from_scores(rewards, scores)


def test_it_is_the_advice_of_the_estimates_with_intervals(pool):
    found, estimates = memory_pool_advice(pool, 1, 24), constants(pool)
    spread = estimates.c1.value + estimates.signal.value
    plain = memory_group_size(estimates.predictions(), 1, 24, spread=spread)
    assert (found.group_size, found.ratio) == (plain.group_size, plain.ratio)
    for value, interval in (
        (found.g_star, found.g_star_interval),
        (found.ratio, found.ratio_interval),
        (found.ratio_at_one, found.ratio_at_one_interval),
    ):
        assert 0 < interval[0] <= value <= interval[1] < np.inf
    low, high = estimates.g_star.interval
    assert found.g_star_interval == (max(1.0, low - 1), max(1.0, high - 1))


def test_advise_says_it_with_the_rest(pool):
    found = advise(pool, 24, remember=1, off_policy=True)
    assert str(found.memory) in str(found)
    assert found.to_dict()["memory"]["memory"] == 1
    assert "(95%: " in str(found.memory)


def test_of_a_problem_there_is_no_interval():
    found = advise("ustat:uneven", 24, remember=4)
    assert found.memory == memory_group_size(load_problem("ustat:uneven"), 4, 24)
    assert "G = 1 is the best with this memory" in str(found)
    assert found.to_dict()["memory"]["group_size"] == 1
    assert "memory" not in advise("ustat:uneven", 24).to_dict()
    refuses("leave out costs", advise, "ustat:uneven", 24, remember=4, prompt_cost=1.0)
    refuses("memory is 0", advise, "ustat:uneven", 24, remember=0)
