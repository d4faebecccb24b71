"""What the public edge refuses, and what it says."""

from __future__ import annotations

import re

import numpy as np
import pytest

from ustat_pg.validation import (
    InputError,
    field,
    finite_array,
    integer,
    number,
    positive,
    probabilities,
    record,
)


@pytest.mark.parametrize("value", [1, 7, np.int64(3), np.uint8(4), 2**63 - 1])
def test_integers_come_back_as_ints(value):
    number = integer("n", value)
    assert type(number) is int
    assert number == value


@pytest.mark.parametrize(
    "value",
    [0, 2**63, 2.0, "3", None, True, float("nan"), [2]],
)
def test_what_is_not_a_positive_whole_number_is_refused(value):
    with pytest.raises(
        InputError, match=r"^group size is .*at least 1( and below 2\^63)?$"
    ) as caught:
        integer("group size", value)
    assert repr(value) in str(caught.value)


@pytest.mark.parametrize("value", [[1, 2], [True, False], np.float32([1.5]), ((1.0,), (2.0,)), 3])
def test_arrays_come_back_as_float64_copies(value):
    array = finite_array("a", value)
    assert array.dtype == np.float64
    assert np.array_equal(array, np.asarray(value, dtype=np.float64))


@pytest.mark.parametrize(
    ("value", "ndim", "message"),
    [
        ([[1.0], [1.0, 2.0]], None, "a is ragged: its rows must have equal lengths"),
        ({}, None, "a is not an array of numbers (its type is object)"),
        ([1.0], 2, "a has shape (1,): it must have 2 dimension(s)"),
        (1.0, 1, "a has shape (): it must have 1 dimension(s)"),
        (np.ones((2, 0)), 2, "a has shape (2, 0): it must not be empty"),
        ([[0.0, float("nan")]], 2, "a holds nan at [0, 1]: all entries must be finite"),
    ],
)
def test_arrays_that_are_refused(value, ndim, message):
    with pytest.raises(InputError, match=re.escape(message)):
        finite_array("a", value, ndim)


def test_probabilities_within_tolerance_are_renormalised():
    given = np.array([0.5, 0.5 + 5e-10])
    found = probabilities("p", given, 1)
    assert found.sum() == 1.0
    assert found[1] / found[0] == pytest.approx(given[1] / given[0], rel=1e-15)


@pytest.mark.parametrize(
    ("value", "ndim", "message"),
    [
        ([0.5, 0.6, -0.1], 1, "p is -0.1 at [2]: probabilities must not be negative"),
        ([0.5, 0.4], 1, "p sums to 0.9: probabilities must sum to 1"),
        ([0.5, 0.5 + 2e-9], 1, "probabilities must sum to 1"),
        ([[1.0, 0.0], [0.5, 0.25]], 2, "p sums to 0.75 at [1]: probabilities must sum to 1"),
        ([float("inf"), 1.0], 1, "p holds inf at [0]"),
    ],
)
def test_probabilities_that_are_refused(value, ndim, message):
    with pytest.raises(InputError, match=re.escape(message)):
        probabilities("p", value, ndim)


def test_probabilities_accepted_once_are_accepted_unchanged_again():
    """Otherwise a problem read back from a file is another problem, with other draws."""
    generator = np.random.default_rng(0)
    changed = 0
    for _ in range(300):
        once = probabilities("p", generator.dirichlet(np.ones(7)), 1)
        changed += not np.array_equal(once, probabilities("p", once, 1))
    assert changed == 0


@pytest.mark.parametrize(
    ("limits", "value", "message"),
    [
        ({"above": 0}, 0.0, "a is 0.0: it must be positive"),
        ({"minimum": 0}, -1e-300, "a is -1e-300: it must be at least 0"),
        ({}, float("nan"), "a holds nan"),
        ({}, [1.0], "a has shape (1,): it must have 0 dimension(s)"),
    ],
)
def test_numbers_that_are_refused(limits, value, message):
    with pytest.raises(InputError, match=re.escape(message)):
        number("a", value, **limits)


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
