"""Where the pages say that a statement needs its condition, the example that breaks it has their numbers."""

from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from scipy.stats import beta, binom

from simulations.problems.batches import batches
from tests.support.site import ROOT
from ustat_pg.predictions import (
    gradient_mse,
    practical_mse,
    survivor_mse,
    turn_mean,
    verifier_effect,
)
from ustat_pg.problems import SoftmaxBandit, load_episodes, survivor_moments

SKEWED = SoftmaxBandit.bernoulli([0.8, 0.1, 0.05, 0.05], [1, 0, 0, 0])


def said(page, words):
    assert words in (ROOT / "theory" / f"{page}.md").read_text("utf-8")


def test_a_plan_that_may_stop_at_one_output_has_unbiased_estimates():
    """Until a success, four outputs at most: a score in one parameter, in fractions."""
    said(
        "adaptive_groups",
        'But $m = 1$ in a group "failure, success" and $m = 0$ in all others is unbiased',
    )
    p = Fraction(1, 3)
    score = {1: 1 - p, 0: -p}
    paths = {z[: (*z, 1).index(1) + 1] for z in product((0, 1), repeat=4)}
    chances = {z: p ** sum(z) * (1 - p) ** (len(z) - sum(z)) for z in paths}
    assert sum(chances.values()) == 1
    pair = sum(chance * (score[1] - score[0]) for z, chance in chances.items() if z[:2] == (0, 1))
    first = sum(chance * score[z[0]] * z[0] for z, chance in chances.items())
    assert pair == first == p * (1 - p)


def test_several_right_answers_leave_the_value_a_good_baseline():
    said("optimality", "vanilla has 35 times the oracle's error at $G = 8$")
    two = SoftmaxBandit.bernoulli([0.495, 0.495, 0.01], [1, 1, 0])
    vanilla, oracle = (gradient_mse(two, name, 8).mse for name in ("vanilla", "oracle"))
    assert vanilla / oracle == pytest.approx(35, abs=0.5)


def test_the_best_table_keeps_the_gain_from_score_lengths():
    said("best_baseline", "the best table has 0.02 of grpo's error in groups of 256")
    best, grpo = (gradient_mse(SKEWED, name, 256).mse for name in ("best", "grpo"))
    assert best / grpo == pytest.approx(0.02, abs=5e-4)


def test_a_prior_that_is_wrong_costs_more_than_it_gains():
    said("best_baseline", "the error within prompts is 1.4 times that of grpo at $G = 4$")
    p, k = beta(0.1, 0.1).ppf((np.arange(2000) + 0.5) / 2000), np.arange(4)[:, None]
    chance = binom.pmf(k, 3, p)
    bayes, grpo = (
        (chance * (p * (1 - b) ** 2 + (1 - p) * b**2)).sum(axis=0).mean()
        for b in ((k + 1) / 5, k / 3)
    )
    assert bayes / grpo == pytest.approx(1.4, abs=0.05)


def test_refusing_right_answers_may_cost_more_than_accepting_wrong_ones():
    said("verifiers", "scores of equal length, refusing costs more")
    one = SoftmaxBandit.bernoulli([0.1, 0.9], [1, 0])
    for error in (0.05, 0.1):
        refused, accepted = (
            verifier_effect(one, *rates, "grpo", group_size=8).noise_to_signal
            for rates in ((1 - error, 0), (1, error))
        )
        assert refused > accepted


def test_a_ratio_and_a_clip_cost_what_is_said():
    ends, three, *_ = batches("tokens", 0, 0)
    said("practical_mse", "from 0.0057 to 0.0067, and the variance from 0.171 to 0.180")
    away = three.away(1 / 4)
    plain = practical_mse(away, "std", 8, beta=0.2)
    token = practical_mse(away, "std", 8, beta=0.2, kl_ratio="token")
    assert [f"{each.squared_bias:.4f}" for each in (plain, token)] == ["0.0057", "0.0067"]
    assert [f"{each.variance:.3f}" for each in (plain, token)] == ["0.171", "0.180"]
    said("practical_mse", "is then 0.6 to 11 times the variance of a group of eight")
    shares = []
    for policy, distance in product((ends, three), (1 / 8, 3 / 16, 1 / 4, 1 / 2)):
        at = policy.away(distance)
        without = practical_mse(at, "std", 8).squared_bias
        clipped = [practical_mse(at, "std", 8, clip=clip) for clip in (0.1, 0.2, 0.3, 0.4, 0.5)]
        acts = [c for c in clipped if abs(c.squared_bias - without) > 1e-9]
        shares += [c.squared_bias / c.variance for c in acts]
    assert 0.6 < min(shares) < max(shares) < 11
    assert max(shares) > 10


def test_survival_by_reward_weighs_no_prompt_in_groups_of_two():
    said("survivors", "In groups of two the weight would be $h_1 h_0$ at every pass rate.")
    two = SoftmaxBandit.bernoulli([[0.1, 0.9], [0.9, 0.1]], [[1, 0], [1, 0]])
    chances = np.array([1, 0.5])
    found = survivor_mse(survivor_moments(two, [chances, chances]), 2)
    np.testing.assert_allclose(found.mean, 0.5 * two.gradient(), atol=1e-12)


def test_survival_by_prompt_changes_the_direction_of_the_step():
    said("survivors", "If this differs between prompts, the step climbs another objective.")
    rewards = np.array([[[1.0], [0.0], [0.0]], [[0.0], [1.0], [0.0]]])
    features = np.array([np.eye(3)] * 2)
    both = SoftmaxBandit.linear([0.5, 0.5], features, [0, 0.1, 0.2], rewards, np.ones_like(rewards))
    found = survivor_mse(survivor_moments(both, [np.ones(3), np.full(3, 0.3)]), 4)
    assert found.cosine < 0.8


def test_differences_from_a_turns_mean_oppose_the_gradient_in_one_problem_and_not_in_another():
    said("turns", "unless every episode takes all turns: such an agent may learn to answer early")
    tool = load_episodes("ustat:tool")
    assert turn_mean(tool, "summed", 4).mean[1] * tool.gradient()[1] < 0
    logits = tool.logits.copy()
    logits[:2] = np.log([0.98, 0.02])
    rare = tool.with_logits(logits)
    assert turn_mean(rare, "summed", 4).mean[1] * rare.gradient()[1] > 0
