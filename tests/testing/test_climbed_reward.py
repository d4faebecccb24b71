"""Rewards that depend on the group: what is climbed, by every group in fractions."""

from fractions import Fraction
from itertools import product
from math import prod

import numpy as np
import pytest

from tests.support.refusals import refuses
from ustat_pg.catalogue import catalogue
from ustat_pg.problems import SoftmaxBandit
from ustat_pg.testing import climbed_reward

LAW = [Fraction(8, 20), Fraction(7, 20), Fraction(5, 20)]
OUTPUTS = range(3)
TIED = (0, 1, 1)
HALF = Fraction(1, 2)


def of(law, rewards):
    values = np.array(rewards, dtype=float).reshape(1, -1, 1)
    return SoftmaxBandit.tabular(
        [1.0], [np.log(np.array(law, float))], values, np.ones_like(values)
    )


def mean_step(advantages, size):
    """E ĝ by the logits, s_k = 1(y = k) - π(k)."""
    step = [Fraction(0)] * 3
    for group in product(OUTPUTS, repeat=size):
        chance = prod(LAW[y] for y in group)
        for y, a in zip(group, advantages(group), strict=True):
            for k in OUTPUTS:
                step[k] += chance * a * ((y == k) - LAW[k]) / size
    return step


def projection(advantages, size):
    """(1/G) Σᵢ E[Aᵢ | yᵢ = y]."""
    reward = [Fraction(0)] * 3
    for group in product(OUTPUTS, repeat=size):
        for i, a in enumerate(advantages(group)):
            others = prod(LAW[y] for j, y in enumerate(group) if j != i)
            reward[group[i]] += others * a / size
    return reward


def climbing(reward):
    """E s r by the logits."""
    mean = sum(p * r for p, r in zip(LAW, reward, strict=True))
    return [p * (r - mean) for p, r in zip(LAW, reward, strict=True)]


def beats(a, b):
    return Fraction((a > b) - (a < b) + 1, 2)


def ranks(group, quality=OUTPUTS):
    size = len(group)
    z = [quality[y] for y in group]
    return [(sum(beats(a, b) for b in z) - HALF) / (size - 1) for a in z]


def centred(z):
    return [a - sum(z) / len(z) for a in z]


def left_out(z):
    return [a - (sum(z) - a) / (len(z) - 1) for a in z]


def judged(group):
    return centred(ranks(group))


def judged_with_ties(group):
    return centred(ranks(group, TIED))


def label(votes):
    return max(OUTPUTS, key=list(votes).count)


def voted(group):
    return left_out([Fraction(y == label(group)) for y in group])


def by_place(group):
    """No two outputs of a group treated alike."""
    return [
        Fraction((7 * y + 3 * sum(group) + 5 * group[0] * i) % 11, 7) for i, y in enumerate(group)
    ]


def as_function(advantages):
    """The same on arrays of groups, whose rewards are the outputs' numbers."""

    def batched(z):
        return np.array([[float(a) for a in advantages(tuple(map(int, g)))] for g in z])

    return batched


@pytest.mark.parametrize("advantages", [judged, judged_with_ties, voted, by_place])
@pytest.mark.parametrize("size", [2, 3, 4])
def test_the_mean_step_is_the_gradient_of_the_projection_held_still(advantages, size):
    reward = projection(advantages, size)
    assert mean_step(advantages, size) == climbing(reward)
    found = climbed_reward(as_function(advantages), of(LAW, OUTPUTS), group_size=size)
    np.testing.assert_allclose(found, [[float(r) for r in reward]], atol=1e-12)


@pytest.mark.parametrize("size", [2, 3, 4, 5])
@pytest.mark.parametrize("quality", [OUTPUTS, TIED])
def test_centred_ranks_climb_the_win_rate_with_factor_1(size, quality):
    wins = [sum(p * beats(quality[a], quality[b]) for b, p in enumerate(LAW)) for a in OUTPUTS]

    def judge(group):
        return centred(ranks(group, quality))

    def judge_left_out(group):
        return left_out(ranks(group, quality))

    assert projection(judge, size) == [w - HALF for w in wins]
    assert mean_step(judge, size) == climbing(wins)
    assert mean_step(judge_left_out, size) == [s * size / (size - 1) for s in climbing(wins)]
    text = catalogue().others["ranks"]
    assert "with factor 1 at every G" in text.climbs
    assert "times G/(G-1)" in text.nothing


def test_ranks_of_0_and_1_are_half_of_rloo():
    for group in product((0, 1), repeat=4):
        z = [Fraction(y) for y in group]
        assert centred(ranks(group)) == [a / 2 for a in left_out(z)]
    assert "RLOO at half the learning rate" in catalogue().others["ranks"].advice


def test_no_function_has_the_gradient_that_ranks_climb():
    """Its Jacobian by the logits is not symmetric; that of the mean quality is."""

    def step(theta, ranked):
        law = np.exp(theta) / np.exp(theta).sum()
        wins = np.tril(np.ones((3, 3)), -1) @ law + law / 2
        reward = wins if ranked else np.arange(3.0)
        return law * (reward - law @ reward)

    theta, small = np.log(np.array(LAW, float)), 1e-5 * np.eye(3)
    for ranked in (True, False):
        slopes = [(step(theta + e, ranked) - step(theta - e, ranked)) / 2e-5 for e in small]
        off = np.abs(np.array(slopes) - np.transpose(slopes)).max()
        assert (off > 0.01) if ranked else (off < 1e-9)
    assert "not the gradient of any function of the policy" in catalogue().others["ranks"].climbs


def test_prompts_layouts_and_lots():
    """Two prompts and rewards drawn by lot: r(x, y) is a mean over these, too."""
    values = np.array([[[0.0, 1.0], [0.0, 1.0]], [[0.0, 1.0], [0.0, 1.0]]])
    chances = np.array([[[0.3, 0.7], [0.9, 0.1]], [[0.5, 0.5], [0.2, 0.8]]])
    problem = SoftmaxBandit.tabular([0.75, 0.25], [[0.2, -0.4], [1.0, 0.3]], values, chances)
    expected = (chances * values).sum(-1)
    for layout in ("batched", "group"):
        found = climbed_reward(lambda z: z, problem, group_size=2, layout=layout)
        np.testing.assert_allclose(found, expected, rtol=1e-12)

    def scaled(z, contexts):
        return (1 + contexts)[..., None] * z

    found = climbed_reward(scaled, problem, group_size=2, inputs=("rewards", "contexts"))
    np.testing.assert_allclose(found, expected * [[1.0], [2.0]], rtol=1e-12)


def test_bad_input_is_refused():
    refuses("problem is a str", climbed_reward, lambda z: z, "uneven", group_size=2)
    refuses("group size is 1", climbed_reward, lambda z: z, of(LAW, OUTPUTS), group_size=1)
    with pytest.raises(AssertionError, match="is not finite"):
        climbed_reward(lambda z: z / 0, of(LAW, OUTPUTS), group_size=2)
