"""What the public edge refuses, and what it says."""

import re
from functools import partial

import numpy as np
import pytest

from tests.support.refusals import refusals
from ustat_pg.validation import (
    device_name,
    field,
    finite_array,
    frozen,
    integer,
    nearest,
    number,
    one_of,
    positive,
    probabilities,
    record,
    shares,
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


@pytest.mark.parametrize(
    ("take", "value"),
    [
        (integer, 1),
        (integer, 2**63 - 1),
        (integer, np.int8(3)),
        (partial(integer, minimum=-2), -2),
        (partial(number, above=0), 5e-324),
        (partial(number, minimum=0), 0.0),
        (partial(number, above=0, maximum=1), 1.0),
        (partial(number, minimum=-1, maximum=1), -1.0),
        (number, 2**63),
        (number, -(2**64)),
        (partial(finite_array, minimum=0.5), [0.5, 2.0]),
        (shares, [0.0, 1.0]),
        (partial(one_of, allowed=("cpu", "cuda")), "cuda"),
        (device_name, "cpu"),
        (device_name, "cuda:12"),
    ],
)
def test_what_is_just_allowed_is_returned(take, value):
    np.testing.assert_array_equal(
        take("a", value) if take is not device_name else take(value), value
    )


test_what_is_just_beyond_is_refused = refusals(
    (lambda: integer("a", -3, -2), "a is -3: it must be a whole number of at least -2$"),
    (lambda: integer("a", 2**63), r"at least 1 and below 2\^63"),
    (lambda: integer("a", 0), "at least 1$"),
    (lambda: number("a", 2**1000), "a holds inf"),
    (lambda: number("a", -1.5, minimum=-1, maximum=1), "at least -1 and at most 1"),
    (lambda: number("a", 1.5, minimum=-1, maximum=1), "at least -1 and at most 1"),
    (lambda: number("a", 0.5, above=0.5), "a is 0.5: it must be above 0.5$"),
    (lambda: finite_array("a", [0.4, 2.0], minimum=0.5), "a holds 0.4: .* at least 0.5"),
    (lambda: finite_array("a", ["x"]), "its type is <U1"),
    (lambda: finite_array("a", [1j]), "not an array of numbers"),
    (lambda: shares("a", [-1e-9, 0.5]), "a is -1e-09: it must lie in"),
    (lambda: shares("a", [0.5, 1.5]), "a is 1.5: it must lie in"),
    (lambda: one_of("a", "gpu", ("cpu", "cuda")), "did you mean cpu\\? choose one of cpu, cuda"),
    (lambda: one_of("a", "tpux9", ("cpu", "cuda")), "a 'tpux9' is unknown: choose one of"),
    (lambda: one_of("a", 3, ("cpu", "cuda")), "a 3 is unknown: choose"),
    *((partial(device_name, name), "choose cpu") for name in ("gpu", "cuda:", "cuda:x", "mps", 0)),
)


def test_the_nearest_words_come_first():
    words = ("Scale", "scales", "score", "other")
    assert nearest("scale", words) == ["Scale"]
    assert nearest("SCALE", words, count=2) == ["Scale", "scales"]
    assert nearest("scale", words, count=3) == ["Scale", "scales", "score"]
    assert nearest("scale", words, count=3, cutoff=0.9) == ["Scale", "scales"]
    assert nearest("zzz", words) == []


def test_arrays_are_copied_and_read_only():
    given = np.array([1.0, 2.0])
    kept = finite_array("a", given)
    given[0] = 5.0
    assert kept.tolist() == [1.0, 2.0]
    assert frozen(given) is given
    for array in (kept, given, probabilities("p", [0.5, 0.5 + 5e-10], 1)):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1.0


def test_rows_at_1_to_rounding_are_left_beside_others():
    rows = np.array([[0.25, 0.75], [0.5, 0.5 + 5e-10], [0.5, 0.5 + 5e-13]])
    result = probabilities("p", rows, 2)
    assert result[0].tolist() == rows[0].tolist()
    assert result[2].tolist() == rows[2].tolist()
    assert result[1].sum() == 1.0


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
