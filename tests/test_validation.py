"""What the public edge refuses, and what it says."""

from __future__ import annotations

import re
from functools import partial

import numpy as np
import pytest

from tests.support.refusals import refusals
from ustat_pg.validation import (
    field,
    finite_array,
    integer,
    number,
    positive,
    probabilities,
    record,
)

test_what_is_not_a_positive_whole_number_is_refused = refusals(
    *(
        (
            partial(integer, "group size", value),
            f"^group size is {re.escape(repr(value))}.*at least 1",
        )
        for value in (0, 2**63, 2.0, "3", None, True, float("nan"), [2])
    )
)

REFUSED = (
    (finite_array, ([[1.0], [1.0, 2.0]],), "a is ragged: its rows must have equal lengths"),
    (finite_array, ({},), "a is not an array of numbers (its type is object)"),
    (finite_array, ([1.0], 2), "a has shape (1,): it must have 2 dimension(s)"),
    (finite_array, (1.0, 1), "a has shape (): it must have 1 dimension(s)"),
    (finite_array, (np.ones((2, 0)), 2), "a has shape (2, 0): it must not be empty"),
    (finite_array, ([[0.0, np.nan]], 2), "a holds nan at [0, 1]: all entries must be finite"),
    (probabilities, ([0.5, 0.6, -0.1], 1), "a is -0.1 at [2]: probabilities must not be negative"),
    (probabilities, ([0.5, 0.4], 1), "a sums to 0.9: probabilities must sum to 1"),
    (probabilities, ([0.5, 0.5 + 2e-9], 1), "probabilities must sum to 1"),
    (probabilities, ([[1.0, 0.0], [0.5, 0.25]], 2), "a sums to 0.75 at [1]"),
    (probabilities, ([float("inf"), 1.0], 1), "a holds inf at [0]"),
    (partial(number, above=0), (0.0,), "a is 0.0: it must be positive"),
    (partial(number, minimum=0), (-1e-300,), "a is -1e-300: it must be at least 0"),
    (partial(number, above=0, maximum=1), (2.0,), "a is 2.0: it must be positive and at most 1"),
    (number, (float("nan"),), "a holds nan"),
    (number, ([1.0],), "a has shape (1,): it must have 0 dimension(s)"),
)
test_values_that_are_refused = refusals(
    *((partial(take, "a", *values), re.escape(said)) for take, values, said in REFUSED)
)


def test_probabilities_within_tolerance_are_renormalised():
    given = np.array([0.5, 0.5 + 5e-10])
    result = probabilities("p", given, 1)
    assert result.sum() == 1.0
    assert result[1] / result[0] == pytest.approx(given[1] / given[0], rel=1e-15)


def test_probabilities_accepted_once_are_accepted_unchanged_again():
    """Otherwise a problem read back from a file is another problem, with other draws."""
    generator = np.random.default_rng(0)
    for _ in range(300):
        once = probabilities("p", generator.dirichlet(np.ones(7)), 1)
        assert np.array_equal(once, probabilities("p", once, 1))


@record()
class Disc:
    centre: np.ndarray = field(finite_array, ndim=1)
    radius: float = field(positive, default=1.0)
    weight: float | None = field(positive, name="mass", default=None)
    label: str = "disc"


def test_a_record_keeps_what_its_requirements_return():
    disc = Disc([1, 2], 3)
    assert disc.centre.dtype == np.float64
    assert type(disc.radius) is float
    assert (disc.weight, disc.label) == (None, "disc")
    assert Disc([0], weight=2).weight == 2.0
