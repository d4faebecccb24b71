"""Laws of prompts from rollouts: their saving is measured on rollouts that did not make them."""

from __future__ import annotations

import numpy as np
import pytest

from ustat_pg.llm.pool.drawing import pool_drawing_advice, reward_drawing_advice
from ustat_pg.llm.pool.scored import ScoredPool
from ustat_pg.predictions import DrawingAdvice, rate_law

GROUP, SHARE = 4, 0.2


def rates(prompts: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).beta(0.3, 0.3, size=prompts)


def pool_of(prompts: int, seed: int) -> ScoredPool:
    """Prompts whose scores have nearly equal norms, with a small part along the reward."""
    rng, p = np.random.default_rng([seed, 1]), rates(prompts, seed)
    rewards = (rng.random((prompts, 16)) < p[:, None]).astype(float)
    along = 0.3 * (rewards - p[:, None])[..., None] * rng.normal(size=(prompts, 1, 6))
    return ScoredPool.from_scores(rewards, along + rng.normal(size=(prompts, 16, 6)))


def test_the_saving_is_that_of_a_law_from_half_of_the_rollouts() -> None:
    p, rng = rates(200_000, 9), np.random.default_rng(10)
    law = rate_law(rng.binomial(8, p), 8, share=SHARE) * len(p)
    spread = p * (1 - p)
    true = float((spread / law).mean() / spread.mean())
    found = [reward_drawing_advice(pool_of(150, seed).rewards) for seed in range(40)]
    ratios = np.array([each.ratio for each in found])
    assert abs(ratios.mean() - true) < 4 * ratios.std() / 40**0.5 + 0.005
    inside = [low < true < high for low, high in (each.interval or (0, 0) for each in found)]
    assert sum(inside) >= 33


def test_a_pool_and_its_rewards_agree_where_norms_are_equal() -> None:
    pool = pool_of(300, 3)
    of_pool, of_rewards = pool_drawing_advice(pool, GROUP), reward_drawing_advice(pool.rewards)
    assert of_pool.ratio == pytest.approx(of_rewards.ratio, abs=0.05)
    np.testing.assert_array_equal(of_pool.law, of_rewards.law)
    assert of_pool.names == pool.prompts
    assert of_pool.weights.max() <= 1 / SHARE
    assert of_pool.to_dict()["law"]["prompt"] == [*pool.prompts]
    np.testing.assert_allclose(of_pool.to_frame()["probability"].sum(), 1)
    assert "equal norms" in of_rewards.basis
    assert "saves 1" in str(of_pool)


def test_prompts_that_return_are_one() -> None:
    from dataclasses import replace

    pool = pool_of(40, 5)
    twice = replace(pool, clusters=np.arange(40) // 2)
    found = pool_drawing_advice(twice, GROUP)
    assert len(found.law) == 20
    assert found.names == pool.prompts[::2]


@pytest.mark.parametrize(
    ("rewards", "words"),
    [
        ([[0.5] * 8] * 3, "0 or 1"),
        ([[1.0, 0.0] * 4], "1 prompt"),
        ([[1.0, 0.0] * 3] * 3, "6 rollouts"),
        ([[1.0] * 8] * 3, "not distinguishable from 0"),
    ],
)
def test_what_gives_no_law(rewards: list[list[float]], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        reward_drawing_advice(np.array(rewards))


@pytest.mark.parametrize(
    ("ratio", "interval", "words"),
    [
        (0.7, None, "saves 30%"),
        (0.7, (0.6, 0.8), "95%: 20% to 40%"),
        (0.98, (0.96, 1.0), "draw as the data do"),
        (0.9, (0.7, 1.2), "not known"),
        (float("inf"), (0.5, float("inf")), "0.5 and more"),
    ],
)
def test_what_the_advice_says(ratio, interval, words) -> None:
    half = np.array([0.5, 0.5])
    text = str(DrawingAdvice(("a", "b"), half, half * 2, 4, ratio, interval, "their pass rates"))
    assert words in text
