"""Plans of sampling: what their words mean, the paths they have, and what is refused."""

from fractions import Fraction
from itertools import product

import numpy as np
import pytest

from ustat_pg import InputError
from ustat_pg.predictions import plan_weight
from ustat_pg.sampling import SCHEMES, Plan


def walk(plan, rewards):
    """The stop of a sequence and the chance to come so far, by the plan's tables alone."""
    chance = Fraction(1)
    for look, go_on in zip(plan.looks, plan.go_on, strict=False):
        further = Fraction(go_on[sum(rewards[:look])])
        yield look, chance * (1 - further)
        chance *= further
    yield plan.looks[-1], chance


PLANS = [
    "4",
    "3+2 if mixed",
    "2+1+2 if silent 0.25",
    "1..5 until 2 successes and 1 failure",
    "2,5 if 0.5..1",
    "1,2,4 if unsolved",
    "2,4 until 1 success",
]


@pytest.mark.parametrize("words", PLANS)
def test_paths_are_those_of_all_sequences(words):
    plan = Plan.parse(words)
    paths, mixed = {}, {}
    for rewards in product((0, 1), repeat=plan.looks[-1]):
        for look, chance in walk(plan, rewards):
            if chance:
                stop = look, sum(rewards[:look])
                # A path of n outputs is the beginning of 2^(largest - n) sequences.
                weight = chance / 2 ** (plan.looks[-1] - look)
                paths[stop] = paths.get(stop, 0) + weight
                mixed[stop] = mixed.get(stop, 0) + weight * (rewards[:2] == (1, 0) and look > 1)
    stops = plan.stops
    places = list(zip(stops.sizes.tolist(), stops.successes.tolist(), strict=True))
    assert dict(zip(places, stops.paths, strict=True)) == paths
    if plan.looks[0] > 1 or plan.go_on[0] == (1, 1):
        assert dict(zip(places, stops.mixed_starts, strict=True)) == mixed


@pytest.mark.parametrize("words", PLANS)
def test_probabilities_sum_to_one(words):
    np.testing.assert_allclose(Plan.parse(words).stops.probabilities([0, 0.3, 1]).sum(axis=1), 1)


def test_probabilities_keep_their_limit_at_the_ends():
    stops = Plan.parse("4").stops
    near = stops.probabilities(1e-9, won=1) * 1e-9 / 1e-9
    np.testing.assert_allclose(stops.probabilities(0.0, won=1), near, atol=1e-7)


def test_words_that_mean_the_same():
    assert Plan.parse("4+4+8 if mixed").looks == Plan.parse("4,8,16 if mixed").looks == (4, 8, 16)
    assert Plan.parse(8) == Plan.parse("8")
    assert Plan.parse("8, retry silent").expected_size(0.5) > 8
    assert Plan.parse("dapo").text == SCHEMES["dapo"].plan


@pytest.mark.parametrize("name", SCHEMES)
def test_every_published_scheme_can_be_weighed(name):
    scheme = SCHEMES[name]
    assert np.isfinite(plan_weight(scheme.plan, scheme.estimator, [0.0, 0.02, 0.5, 1.0])).all()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        *(
            (words, r"cannot be read: plans are written like '8'; .*; events are mixed, silent")
            for words in ("", "3+2", "3+2 if", "3+2 if lucky", "8 if mixed", "4,8 until 2 foos")
        ),
        ("8, ban silent", "cannot be read"),
        ("8 oh", "cannot be read"),
        ("3+2 if mixed 2", "'mixed 2' has a chance above 1"),
        ("3+2 if 0.8..0.2", "its ends exchanged"),
        ("0", "outputs at a look is 0"),
        ("8,4 if mixed", "must be increasing"),
        ("1..9999 until 1 success", "its table holds 1024"),
        (2.5, "must be a whole number"),
    ],
)
def test_words_that_are_no_plan(words, said):
    with pytest.raises(InputError, match=said):
        Plan.parse(words)


def test_tables_that_are_no_plan():
    with pytest.raises(InputError, match="holds no chance"):
        Plan.of((2, 4), lambda n, k: 1.5)
    with pytest.raises(InputError, match="rows of"):
        Plan((2, 4), ((1, 1),), ((1,) * 3, (1,) * 5))
    with pytest.raises(InputError, match="holds 300000"):
        Plan.of(range(1, 1000), lambda n, k: True)


def test_a_plan_of_one_output_has_no_unbiased_estimate():
    with pytest.raises(InputError, match="may stop at one output"):
        plan_weight("1..4 until 1 success", "sequential", [0.5])
    np.testing.assert_allclose(
        plan_weight("1..4 until 2 successes and 1 failure", "sequential", [0.3]), 1
    )
