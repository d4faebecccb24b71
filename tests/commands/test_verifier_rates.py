"""A verifier that errs and advantages that are cut off, against every outcome enumerated."""

from __future__ import annotations

import json
from itertools import product

import numpy as np
import pytest

from tests.support.refusals import refuses
from ustat_pg.cli import main
from ustat_pg.estimators import advantages
from ustat_pg.llm.advise import _wrong_norms, decide
from ustat_pg.llm.constants import constants
from ustat_pg.llm.pool import ScoredPool
from ustat_pg.predictions import count_table, gradient_mse, group_size_advice, verifier_effect
from ustat_pg.predictions.advice import ERRS
from ustat_pg.problems import SoftmaxBandit, load_problem

RIGHT, WRONG = 0.9, 0.2
SIZE = 3
PROBS, SUCCESS = np.array([[0.6, 0.3, 0.1], [0.2, 0.5, 0.3]]), np.array([[0, 1, 1], [1, 0, 0]])
CONTEXTS = np.array([0.7, 0.3])
PROBLEM = SoftmaxBandit.bernoulli(PROBS, SUCCESS, CONTEXTS)


def enumerated(advantage):
    """E ĝ of each prompt and E‖ĝ‖² of one drawn at random, over outputs and the verifier's words."""
    means, square = [], 0.0
    for chance, probs, success in zip(CONTEXTS, PROBS, SUCCESS, strict=True):
        accepted = np.where(success == 1, RIGHT, WRONG)
        mean = np.zeros(3)
        for arms in product(range(3), repeat=SIZE):
            for words in product((0, 1), repeat=SIZE):
                said = np.array(words)
                law = np.where(said, accepted[[*arms]], 1 - accepted[[*arms]]).prod()
                weight = probs[[*arms]].prod() * law
                scores = np.eye(3)[[*arms]] - probs
                gradient = advantage(said.astype(float)) @ scores / SIZE
                mean += weight * gradient
                square += chance * weight * (gradient @ gradient)
        means.append(mean)
    return np.array(means), square


@pytest.mark.parametrize("name", ["grpo", "group-mean", "std-ddof1", "maxrl"])
def test_mean_and_noise_with_a_verifier_that_errs(name):
    means, square = enumerated(lambda rewards: advantages(name, rewards))
    effect = verifier_effect(PROBLEM, RIGHT, WRONG, name, SIZE)
    gradients = [p * (r - p @ r) for p, r in zip(PROBS, SUCCESS, strict=True)]
    # The problem's parameters are each context's logits.
    for factor, gradient, mean in zip(effect.mean_factors, gradients, means, strict=True):
        np.testing.assert_allclose(mean, factor * gradient, atol=1e-12)
    whole = (CONTEXTS[:, None] * means).ravel()
    expected = (square - whole @ whole) / (whole @ whole)
    assert effect.noise_to_signal == pytest.approx(expected, rel=1e-10)


def test_a_table_that_is_cut_off():
    """w and the error of advantages clipped at ±L, and the least pull of a deviation that is."""
    size, limit = 4, 0.7
    problem = SoftmaxBandit.bernoulli([0.2, 0.3, 0.5], [1, 0, 0])
    table = count_table("std-ddof1", size).clipped(limit)
    mean, square, probs = np.zeros(3), 0.0, np.array([0.2, 0.3, 0.5])
    for arms in product(range(3), repeat=size):
        rewards = (np.array(arms) == 0).astype(float)
        clipped = np.clip(advantages("std-ddof1", rewards), -limit, limit)
        gradient = clipped @ (np.eye(3)[[*arms]] - probs) / size
        mean += probs[[*arms]].prod() * gradient
        square += probs[[*arms]].prod() * (gradient @ gradient)
    result = gradient_mse(problem, table.estimator, size)
    np.testing.assert_allclose(mean, table.weight(0.2) * problem.gradient(), atol=1e-12)
    expected = square - 2 * mean @ problem.gradient() + problem.gradient() @ problem.gradient()
    assert result.mse == pytest.approx(expected, rel=1e-10)
    p, most = 0.02, 8**-0.5
    tight = count_table("std-ddof1", 8).clipped(most)
    ratio = tight.weight(p) / tight.weight(0.5)
    assert ratio == pytest.approx((2 - p**7 - (1 - p) ** 7) / (2 - 2**-6))
    refuses("limit is 0", table.clipped, 0)


def test_predict_and_advise_say_it(capsys):
    words = (
        "predict",
        "ustat:uneven",
        "--group-size",
        "4",
        "--estimator",
        "std",
        "--verifier-rates",
    )
    effect = verifier_effect(load_problem("ustat:uneven"), 0.95, 0.05, "std", 4)
    assert main([*words, ".95,.05"]) == 0
    assert str(effect) in capsys.readouterr().out
    assert main([*words, ".95,.05", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["verifier"] == effect.to_dict()
    for bad, said in ((".95", "write the shares"), ("2,0", "true_positive_rate is 2")):
        assert main([*words, bad]) == 2
        assert said in capsys.readouterr().err
    assert main([*words, ".9,.1", "--covariance"]) == 2
    assert "does not read --covariance" in capsys.readouterr().err

    advice = group_size_advice(load_problem("ustat:uneven"), 64)
    few = verifier_effect(load_problem("ustat:uneven"), 1.0, 0.05, group_size=advice.group_size)
    times = few.noise_to_signal / few.without_errors
    assert advice.with_errors == pytest.approx((few.best_group_size, times))
    assert "with 5% of wrong answers accepted" in str(advice)
    assert group_size_advice(load_problem("ustat:several"), 64).with_errors is None


def test_a_pool_knows_the_mean_over_a_verifiers_words():
    """U-statistics of a pool, averaged over every verifier's word on its wrong answers, are what is said."""
    rng = np.random.default_rng(3)
    rewards, scores = np.array([[1, 0, 1, 1], [0, 0, 1, 1.0]]), rng.normal(size=(2, 4, 3))
    # Gradients that differ: c1 > 0.
    scores[..., 0] += 6 * (rewards - 0.5) * [[1], [-1]]
    pool = ScoredPool.from_scores(rewards, scores)
    wrong = np.argwhere(rewards == 0)

    def sums(found):
        # ‖g‖² has a term of mean 0 over scores, not over words: it cancels here.
        return np.array([found.c1.value + found.c2.value, found.c2.value + found.c3.value])

    mean = np.zeros(2)
    for words in product((0, 1), repeat=len(wrong)):
        said = rewards.copy()
        said[tuple(wrong.T)] = words
        chance = np.prod(np.where(words, ERRS, 1 - ERRS))
        mean += chance * sums(constants(ScoredPool.from_scores(said, scores)))
    single, pairs = _wrong_norms(pool)
    kept, own = (1 - ERRS) ** 2, ERRS * (1 - ERRS)
    expected = kept * sums(constants(pool)) + own * np.array([single, single + pairs])
    np.testing.assert_allclose(mean, expected, rtol=1e-9)
    assert "with 5% of wrong answers accepted" in str(decide(pool, 8))
    assert _wrong_norms(ScoredPool.from_scores(rewards / 2, scores)) is None
