"""Groups cut down by their rewards, against every outcome enumerated in order."""

from functools import cache
from itertools import combinations, product

import numpy as np
import pytest

from tests.support.refusals import refuses
from ustat_pg.engines import Estimator, enumerate_mse
from ustat_pg.estimators import advantages
from ustat_pg.predictions import DOWNSAMPLING, kept_successes, plan_mse
from ustat_pg.predictions.count_tables import count_table
from ustat_pg.problems import SoftmaxBandit, load_problem

PROBLEMS = {
    "two prompts": SoftmaxBandit.bernoulli(
        [[0.6, 0.3, 0.1], [0.2, 0.5, 0.3]], [[0, 1, 0.5], [1, 0.2, 0]], [0.7, 0.3]
    ),
    "rare": SoftmaxBandit.bernoulli([0.1, 0.9], [1, 0]),
}
CHOICES = {
    "variance": lambda kept: (-np.var(kept), -sum(kept)),
    "highest": lambda kept: -sum(kept),
    "lowest": lambda kept: sum(kept),
}


def chosen(group, kept, by):
    """The subset that a search over all subsets finds."""
    subsets = combinations(range(len(group)), kept)
    return list(min(subsets, key=lambda members: CHOICES[by]([group[i] for i in members])))


def cut_down(estimator, kept, by):
    """The advantages of the chosen subset, 0 of the others."""

    @cache
    def of_group(group):
        best = chosen(group, kept, by)
        row = np.zeros(len(group))
        row[best] = advantages(estimator, np.array(group)[best]) * len(group) / kept
        return row

    def function(rewards, draws):
        groups = rewards.reshape(-1, rewards.shape[-1]).tolist()
        return np.array([of_group(tuple(group)) for group in groups]).reshape(rewards.shape)

    return function


@pytest.mark.parametrize("by", DOWNSAMPLING)
@pytest.mark.parametrize(("drawn", "kept"), [(3, 2), (4, 2), (4, 3), (3, 3)])
@pytest.mark.parametrize("estimator", ["grpo", "std", "vanilla"])
@pytest.mark.parametrize("name", PROBLEMS)
def test_mean_and_error_are_those_of_every_outcome(name, estimator, drawn, kept, by):
    problem = PROBLEMS[name]
    found = enumerate_mse(
        problem, Estimator("cut down", function=cut_down(estimator, kept, by)), drawn
    )
    predicted = plan_mse(problem, str(drawn), f"{by}:{kept}:{estimator}")
    assert predicted.mse == pytest.approx(found.mse, rel=1e-10)
    assert predicted.squared_bias == pytest.approx(found.squared_bias, abs=1e-12)
    mean = sum(
        chance
        * weight
        * problem.policy.combine(x, problem.policy.probs[x] * (z - z @ problem.policy.probs[x]))
        for x, (chance, weight, z) in enumerate(
            zip(problem.context_probs, predicted.mean_factor, problem.mean_rewards, strict=True)
        )
    )
    assert np.allclose(mean, found.mean, rtol=0, atol=1e-12)
    length, gradient = np.linalg.norm(mean), problem.gradient()
    cosine = mean @ gradient / length / np.linalg.norm(gradient)
    assert predicted.cosine == pytest.approx(cosine, rel=1e-10)
    noise = found.mse - found.squared_bias
    assert predicted.noise_to_signal == pytest.approx(noise / length**2, rel=1e-9)
    several = plan_mse(problem, str(drawn), f"{by}:{kept}:{estimator}", 3)
    assert several.mse == pytest.approx(found.squared_bias + noise / 3, rel=1e-10)
    assert several.noise_to_signal == pytest.approx(noise / 3 / length**2, rel=1e-9)


@pytest.mark.parametrize("by", DOWNSAMPLING)
@pytest.mark.parametrize(("drawn", "kept"), [(4, 2), (5, 4), (3, 3), (3, 1)])
def test_groups_whose_kept_rewards_are_equal_are_silent(drawn, kept, by):
    problem = PROBLEMS["two prompts"]
    value, silent = problem.moments().value[:, None], 0.0
    for group in product((0, 1), repeat=drawn):
        if len({group[i] for i in chosen(group, kept, by)}) == 1:
            rates = np.where(group, value, 1 - value)
            silent += problem.context_probs @ rates.prod(axis=1)
    found = plan_mse(problem, str(drawn), f"{by}:{kept}:vanilla")
    assert found.silent == pytest.approx(silent, rel=1e-12)
    assert (found.plan, found.estimator) == (str(drawn), f"{by}:{kept}:vanilla")


@pytest.mark.parametrize("by", DOWNSAMPLING)
def test_all_that_are_drawn_are_a_group(by):
    moments = load_problem("ustat:skewed").moments()
    for estimator in ("grpo", "std"):
        found = plan_mse(moments, "6", f"{by}:6:{estimator}")
        table = count_table(estimator, 6)
        assert np.allclose(found.mean_factor, table.weight(moments.value), rtol=1e-12)
        assert np.allclose(found.second_moment, table.second_moments(moments), rtol=1e-12)


@pytest.mark.parametrize("pass_rate", [0.2, 0.5, 0.9])
def test_half_of_many_are_successes(pass_rate):
    problem = SoftmaxBandit.bernoulli([pass_rate, 1 - pass_rate], [1, 0])
    (weight,) = plan_mse(problem, "1000", "variance:8:grpo").mean_factor
    assert weight == pytest.approx(8 / (4 * 7 * pass_rate * (1 - pass_rate)), rel=1e-9)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("variance:5:grpo", "has 5 outputs: the plan may stop at 4"),
        ("variance:4", "it is written variance:N:NAME"),
        ("highest:0:grpo", "it is written highest:N:NAME"),
        ("balanced:4:grpo", "it is written balanced:N"),
        ("luck:4:grpo", "'luck' is unknown"),
        ("lowest:2:oracle", "not a table by the number of successes"),
        ("lowest:1:grpo", "at least 2"),
    ],
)
def test_what_has_no_closed_form_is_refused(words, says):
    refuses(says, plan_mse, PROBLEMS["rare"], "4", words)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"kept": 5}, "kept is 5: it must be at most drawn, 4"),
        ({"by": "luck"}, "by 'luck' is unknown"),
    ],
)
def test_no_more_than_are_drawn_are_kept(change, says):
    refuses(says, kept_successes, **{"drawn": 4, "kept": 2} | change)


def test_a_plan_is_cut_down_where_it_stops():
    """At each stop of "3+2 if mixed" the same two of its outputs, whatever their number."""
    problem, p = PROBLEMS["rare"], 0.1
    found = plan_mse(problem, "3+2 if mixed", "variance:2:grpo")
    mixed = 1 - p**3 - (1 - p) ** 3
    assert found.mean_factor == pytest.approx([mixed / (2 * p * (1 - p))], rel=1e-12)
    assert found.silent == pytest.approx(1 - mixed, rel=1e-12)


def test_the_kept_are_a_subset():
    for by in DOWNSAMPLING:
        for drawn in range(1, 9):
            for kept in range(1, drawn + 1):
                successes, k = kept_successes(drawn, kept, by), np.arange(drawn + 1)
                assert (successes <= np.minimum(k, kept)).all()
                assert (kept - successes <= drawn - k).all()
