"""What commands and pools say of a verifier with errors.

Its formulas are held against every outcome in ``tests/agreement/test_verifier.py``.
"""

import json
from itertools import product

import numpy as np
import pytest

from ustat_pg.cli import main
from ustat_pg.llm.advice.advise import _wrong_norms, decide
from ustat_pg.llm.pool.constants import constants
from ustat_pg.llm.pool.scored import ScoredPool
from ustat_pg.predictions import group_size_advice, verifier_effect
from ustat_pg.predictions.advice import ERRS
from ustat_pg.problems import load_problem


def test_predict_and_advise_say_it(capsys):
    words = [
        "predict",
        "ustat:uneven",
        "--group-size",
        "4",
        "--estimator",
        "std",
        "--verifier-rates",
    ]
    effect = verifier_effect(load_problem("ustat:uneven"), 0.95, 0.05, "std", 4)
    assert main([*words, ".95,.05"]) == 0
    assert str(effect) in capsys.readouterr().out
    assert main([*words, ".95,.05", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["verifier"] == effect.to_dict()
    for bad, said in ((".95", "write the shares"), ("2,0", "true_positive_rate is 2")):
        assert main([*words, bad]) == 2
        assert said in capsys.readouterr().err
    assert main([*words, ".9,.1", "--covariance"]) == 2
    assert "does not use --covariance" in capsys.readouterr().err

    advice = group_size_advice(load_problem("ustat:uneven"), 64)
    few = verifier_effect(load_problem("ustat:uneven"), 1.0, 0.05, group_size=advice.group_size)
    times = few.noise_to_signal / few.without_errors
    assert advice.with_errors == pytest.approx((few.best_group_size, times))
    assert "if 5% of wrong answers are accepted" in str(advice)
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
    assert "if 5% of wrong answers are accepted" in str(decide(pool, 8))
    assert _wrong_norms(ScoredPool.from_scores(rewards / 2, scores)) is None
