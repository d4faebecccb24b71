"""Probes against values computed from probabilities and scores, outcome by outcome."""

from __future__ import annotations

from itertools import combinations, product
from math import inf

import numpy as np
import pytest

from simulations.problems.tokens import bandits
from tests.support.refusals import refuses
from ustat_pg.engines import Estimator
from ustat_pg.engines.networks.cell import PolicyQuantity
from ustat_pg.experiment.probes import PROBES, Probe, correlation, pl_ratio
from ustat_pg.problems import SoftmaxBandit, random_problem

GRPO, ORACLE = Estimator("grpo"), Estimator("oracle")

TOKENS = {
    entry.name: entry.problem
    for entry in bandits("tokens", 0)
    if entry.name in ("sorting", "sums-trained", "one-token")
}
PROBLEMS = {
    **TOKENS,
    "noisy rewards": random_problem(0, "plain", contexts=2),
    "negative rewards": random_problem(3, "negative-rewards", contexts=2),
}


@pytest.fixture(params=list(PROBLEMS))
def problem(request):
    return PROBLEMS[request.param]


def outcomes(problem, x):
    """Probability, score and reward of each pair of an arm and a reward at a prompt."""
    probs, scores = problem.policy.probs[x], problem.policy.scores(x)
    for arm, chance in enumerate(probs):
        values, law = problem.reward_values[x, arm], problem.reward_probs[x, arm]
        for value, share in zip(values, law, strict=True):
            if chance * share > 0:
                yield chance * share, scores[arm], float(value)


def average(problem, function):
    """E of a function of (x, score, reward)."""
    return sum(
        rho * weight * function(x, score, reward)
        for x, rho in enumerate(problem.context_probs)
        for weight, score, reward in outcomes(problem, x)
    )


def gradient(problem):
    """E z s."""
    return average(problem, lambda x, score, reward: reward * score)


def values(problem):
    """E[z | x], (X,)."""
    return [sum(w * z for w, _, z in outcomes(problem, x)) for x in range(problem.contexts)]


def advantages_by_hand(baseline, rewards, norms, constant):
    """The rewards of a group less the prompt's constant, the group's mean, or that of the others."""
    if baseline == "group-mean":
        return rewards - rewards.mean()
    if constant is not None:
        return rewards - constant
    heavy = norms if baseline == "norm-weighted" else np.ones(len(rewards))
    others = heavy.sum() - heavy
    return rewards - (heavy @ rewards - heavy * rewards) / np.where(others > 0, others, 1.0)


def by_hand(problem, baseline, group_size, batch_size):
    """E‖ĝ - g‖² of a minibatch of i.i.d. prompts, group by group at one prompt.

    ĝ is a mean of B independent estimates of one prompt: (E‖ĝ₁‖² - ‖E ĝ₁‖²)/B + ‖E ĝ₁ - g‖².
    """
    mean, square, truth = 0.0, 0.0, gradient(problem)
    for x, rho in enumerate(problem.context_probs):
        weights, scores, own = map(np.array, zip(*outcomes(problem, x), strict=True))
        norms = (scores**2).sum(axis=1)
        constant = {
            "vanilla": 0.0,
            "oracle": weights @ own,
            "minimum-variance": (weights * norms) @ own / (weights * norms).sum(),
        }.get(baseline)
        for group in map(list, product(range(len(own)), repeat=group_size)):
            found = advantages_by_hand(baseline, own[group], norms[group], constant)
            found = found @ scores[group] / group_size
            chance = rho * weights[group].prod()
            mean, square = mean + chance * found, square + chance * float(found @ found)
    off = mean - truth
    return (square - float(mean @ mean)) / batch_size + float(off @ off)


# Values.


def test_return_and_gradient(problem):
    expected = average(problem, lambda x, score, reward: reward)
    assert Probe(GRPO, 0, "return").of(problem) == pytest.approx(expected, rel=1e-12)
    slope = gradient(problem)
    assert Probe(GRPO, 0, "gradient").of(problem) == pytest.approx(slope @ slope, rel=1e-10)


def test_pl_is_the_squared_slope_over_twice_the_gap(problem):
    best = sum(
        rho * max(law @ value for law, value in zip(laws, rewards, strict=True))
        for rho, laws, rewards in zip(
            problem.context_probs, problem.reward_probs, problem.reward_values, strict=True
        )
    )
    gap = best - average(problem, lambda x, score, reward: reward)
    slope = gradient(problem)
    assert pl_ratio(problem) == pytest.approx(slope @ slope / (2 * gap), rel=1e-10)
    assert Probe(GRPO, 0, "pl").of(problem) == pl_ratio(problem)


def test_correlation_is_that_of_squared_norm_and_reward_at_fixed_prompts(problem):
    centre = values(problem)
    length = [sum(w * (s @ s) for w, s, _ in outcomes(problem, x)) for x in range(problem.contexts)]
    together = average(problem, lambda x, s, z: (s @ s - length[x]) * (z - centre[x]))
    norms = average(problem, lambda x, s, z: (s @ s - length[x]) ** 2)
    rewards = average(problem, lambda x, s, z: (z - centre[x]) ** 2)
    expected = together / np.sqrt(norms * rewards)
    assert correlation(problem) == pytest.approx(expected, abs=1e-12)
    assert Probe(GRPO, 0, "correlation").of(problem) == correlation(problem)
    assert -1 <= correlation(problem) <= 1


def test_correlation_does_not_count_differences_between_prompts():
    # At each prompt norms and rewards do not go together; over prompts they would.
    bandit = SoftmaxBandit.tabular(
        [0.5, 0.5],
        np.log([[0.5, 0.5], [0.9, 0.1]]),
        [[[1.0, 0.0]] * 2, [[1.0, 0.0]] * 2],
        [[[0.9, 0.1]] * 2, [[0.2, 0.8]] * 2],
    )
    assert correlation(bandit) == pytest.approx(0.0, abs=1e-15)
    moments = bandit.moments()
    assert np.ptp(moments.fisher_trace) > 0.1
    assert np.ptp(moments.value) > 0.1


PLAIN = ("vanilla", "oracle", "minimum-variance", "grpo")
LARGER = [("norm-weighted", 3, 1), ("norm-weighted", 2, 2), ("grpo", 3, 1), ("group-mean", 3, 2)]


@pytest.mark.parametrize(
    ("name", "baseline", "group_size", "batch_size"),
    [
        *(
            (name, baseline, *sizes)
            for name, baseline, sizes in product(PROBLEMS, PLAIN, ((1, 2), (2, 1), (2, 3)))
            # One output is enough for a baseline of the prompt.
            if (baseline, sizes) != ("grpo", (1, 2))
        ),
        *((name, *asked) for name, asked in product(("one-token", "sorting"), LARGER)),
    ],
)
def test_errors_of_baselines(name, baseline, group_size, batch_size):
    problem, sizes = PROBLEMS[name], (baseline, group_size, batch_size)
    expected = by_hand(problem, *sizes)
    assert Probe(GRPO, 5, "mse", *sizes).of(problem) == pytest.approx(expected, rel=1e-9)
    over = expected / by_hand(problem, "oracle", group_size, batch_size)
    assert Probe(GRPO, 5, "relative-mse", *sizes).of(problem) == pytest.approx(over, rel=1e-9)
    # The estimator of the runs is not that of the error.
    assert Probe(ORACLE, 5, "mse", *sizes).of(problem) == Probe(GRPO, 5, "mse", *sizes).of(problem)


def test_where_nothing_varies():
    sure = SoftmaxBandit.tabular([1.0], [[0.0, 0.0]], [[[1.0], [1.0]]], np.ones((1, 2, 1)))
    assert pl_ratio(sure) == 0.0
    assert correlation(sure) == 0.0
    assert Probe(GRPO, 0, "return").of(sure) == 1.0
    assert Probe(GRPO, 0, "gradient").of(sure) == 0.0
    # An error over none must not look like the oracle's own; none over none is equal to it.
    for baseline in ("vanilla", "grpo", "oracle", "minimum-variance"):
        own = Probe(GRPO, 0, "mse", baseline, 2).of(sure)
        relative = Probe(GRPO, 0, "relative-mse", baseline, 2).of(sure)
        assert relative == (inf if own > 0 else 1.0)
    assert Probe(GRPO, 0, "mse", "oracle", 2).of(sure) == 0.0
    assert Probe(GRPO, 0, "mse", "vanilla", 2).of(sure) > 0.1


# Names.


def every():
    for estimator, step, name in product((GRPO, ORACLE), (0, 10), PROBES):
        if not name.endswith("mse"):
            yield Probe(estimator, step, name)
            continue
        for sizes in ((2, 1), (8, 1), (2, 8)):
            for baseline in ("grpo", "oracle", "norm-weighted"):
                yield Probe(estimator, step, name, baseline, *sizes)


def test_labels_are_distinct_and_all_are_probes_of_runs():
    probes = list(every())
    for one, other in combinations(probes, 2):
        assert one.label != other.label
        assert one != other
    for probe in probes:
        assert isinstance(probe, PolicyQuantity)
        assert hash(probe) == hash(Probe(**vars(probe)))


def test_ranges_hold(problem):
    for probe in every():
        if probe.name.endswith("mse") or probe.estimator != GRPO or probe.step:
            continue
        low, high = probe.range
        assert low <= probe.of(problem) <= high
    assert Probe(GRPO, 0, "return").range == (-inf, inf)
    assert Probe(GRPO, 0, "correlation").range == (-1.0, 1.0)
    for probe in every():
        if probe.name not in ("return", "correlation"):
            assert probe.range == (0.0, inf)


def test_rewards_below_zero_have_a_return_below_zero():
    # So that no range of a return may begin at 0.
    assert Probe(GRPO, 0, "return").of(PROBLEMS["negative rewards"]) < 0


NO_BASELINE = "a baseline is given with, and only with, an mse: "


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((1, "loss"), "probe 'loss' is unknown: choose one of return, gradient, pl"),
        *(((1, name), f"{NO_BASELINE}''") for name in ("mse", "relative-mse")),
        ((1, "return", "grpo"), f"{NO_BASELINE}'grpo'"),
        ((-1, "return"), "step is -1"),
        *(((1, "mse", name, 0), "group size is 0") for name in ("grpo", "oracle")),
        ((1, "mse", "grpo"), "group size is 1"),
        *(
            ((1, name, baseline, 1, 8), "group size is 1")
            for name in ("mse", "relative-mse")
            for baseline in ("grpo", "norm-weighted")
        ),
        ((1, "mse", "grpo", 2, 0), "batch size is 0"),
        ((1.5, "return"), "step"),
        # A baseline without an error is refused before anything is trained.
        *(((1, "mse", name, 4), name) for name in ("gpro", "constant", "critic")),
    ],
)
def test_what_does_not_fit_is_refused(words, message):
    refuses(message, Probe, GRPO, *words)
