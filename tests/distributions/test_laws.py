"""Mixtures of laws, and the distance of two: against laws that SciPy knows."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from tests.support.refusals import refuses
from ustat_pg.distributions import MixtureLaw, WeightedChi2, sup_distance
from ustat_pg.predictions import conditional_transform


@settings(max_examples=20)
@given(
    st.lists(st.floats(0.05, 5.0), min_size=2, max_size=4),
    st.lists(st.floats(0.01, 1.0), min_size=4, max_size=4),
)
def test_a_mixture_of_laws_with_two_equal_weights_is_a_mixture_of_exponentials(weights, shares):
    probs = np.array(shares[: len(weights)]) / sum(shares[: len(weights)])
    law = MixtureLaw([WeightedChi2([weight, weight]) for weight in weights], probs)
    parts, x = stats.expon(scale=2 * np.array(weights)), np.array([0.03, 0.7, 3.0, 9.0])
    for name in ("cdf", "sf", "pdf"):
        wanted = probs @ getattr(parts, name)(x[:, None]).T
        np.testing.assert_allclose(getattr(law, name)(x), wanted, rtol=1e-11)
    np.testing.assert_allclose(law.cdf(law.ppf([0.01, 0.5, 0.99])), [0.01, 0.5, 0.99], rtol=1e-10)
    assert law.mean() == pytest.approx(probs @ parts.mean(), rel=1e-12)
    square = probs @ (parts.var() + parts.mean() ** 2)
    assert law.var() == pytest.approx(square - (probs @ parts.mean()) ** 2, rel=1e-9)
    own = conditional_transform(np.ones(len(weights)), np.repeat(weights, 2).reshape(-1, 2))
    np.testing.assert_allclose(own, parts.cdf(1.0), rtol=1e-11)


@pytest.mark.parametrize(
    ("one", "other", "wanted"),
    [
        (stats.norm(0, 1), stats.norm(1, 1), stats.norm.cdf(0.5) - stats.norm.cdf(-0.5)),
        (stats.uniform(0, 1), stats.uniform(5, 1), 1.0),
        (stats.uniform(0, 1), stats.uniform(0.25, 1), 0.25),
        (stats.expon(), stats.expon(), 0.0),
        # A narrow law inside a wide one: the difference peaks where the wide one has no quantile.
        (stats.norm(0.3, 1e-7), stats.norm(0, 1), stats.norm.cdf(0.3)),
    ],
)
def test_the_distance_of_known_laws(one, other, wanted):
    assert wanted - 1e-5 <= sup_distance(one, other) <= wanted + 1e-9


def test_a_jump_is_approached_from_its_side_and_two_at_one_place_are_refused():
    # Just below the jump at .8 the uniform has .8 and the other law .1.
    assert 0.7 - 1e-5 <= sup_distance(stats.uniform(0, 1), stats.bernoulli(0.9, -0.2)) <= 0.7
    laws = stats.bernoulli(0.6), stats.bernoulli(0.7)
    refuses("both laws jump at the same place", sup_distance, *laws)
