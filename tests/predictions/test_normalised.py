"""Errors of normalised estimators at finite G against enumeration; their limits are those of claims."""

from itertools import product

import numpy as np
import pytest

from tests.support.refusals import refuses
from ustat_pg.predictions import (
    normalised_distance,
    normalised_error_of,
    normalised_limit,
    normalised_limit_of,
)
from ustat_pg.problems import SoftmaxBandit

# Rewards that are not 0 or 1: probabilities, rewards and scores before their mean is taken off.
GRADED = {
    "a middle that hides the deviation": ([0.495, 0.495, 0.01], [0.6, 0.4, 0.0], [[1], [-1], [0]]),
    "three grades": ([0.5, 0.3, 0.2], [1.0, 0.4, -0.5], [[1, 0], [0, 1], [0.5, -2]]),
    "one great reward": ([0.4, 0.35, 0.25], [0.0, 0.2, 3.0], [[1, 0], [0, 1], [1, 1]]),
}


@pytest.mark.parametrize("name", GRADED)
@pytest.mark.parametrize("size", [1, 2, 5])
def test_the_error_at_a_finite_group_is_the_mean_over_every_ordered_group(name, size):
    probs, rewards, features = map(np.array, GRADED[name])
    scores = features - probs @ features
    advantage = rewards - probs @ rewards
    target = (probs * advantage) @ scores / (probs @ advantage**2) ** 0.5
    result = 0.0
    for chosen in map(list, product(range(3), repeat=size)):
        z = rewards[chosen]
        weights = (z - z.mean()) / z.std() if len(set(z)) > 1 else 0 * z
        result += (
            size * probs[chosen].prod() * ((weights @ scores[chosen] / size - target) ** 2).sum()
        )
    assert normalised_error_of(probs, rewards, scores, size) == pytest.approx(result, rel=1e-12)


def test_it_tends_to_the_limit_and_too_many_groups_are_refused():
    probs, rewards, features = map(np.array, GRADED["three grades"])
    scores = features - probs @ features
    limit = normalised_limit_of(probs, rewards, scores)
    left = [normalised_error_of(probs, rewards, scores, size) - limit for size in (512, 1024)]
    assert left[1] / left[0] == pytest.approx(0.5, abs=0.02)
    many = np.full(12, 1 / 12)
    text = "groups of 64 of 12 outcomes turn out in 4.9e.12 ways: at most"
    refuses(text, normalised_error_of, many, np.arange(12.0), np.ones((12, 1)), 64)
    refuses("group size", normalised_error_of, probs, rewards, scores, 0)


@pytest.mark.parametrize("limit", [normalised_distance, normalised_limit])
def test_moments_without_a_closed_form_are_refused(limit):
    def coin(rewards, chance):
        return SoftmaxBandit.tabular([1.0], [[0.0, 0.0]], [rewards], [chance]).moments()

    graded = coin([[1.0], [0.5]], [[1.0], [1.0]])
    refuses("has a closed form for rewards that are 0 or 1", limit, graded)
    sure = coin([[1.0], [1.0]], [[1.0], [1.0]])
    refuses("always or never solved has deviation 0", limit, sure)
