"""What sums and laws are, beside the enumeration of test_independent_algebra."""

from __future__ import annotations

import pytest
import sympy

from ustat_pg.algebra import Law, Output, distinct, patterns
from ustat_pg.validation import InputError


def test_the_number_of_patterns_is_that_of_partial_matchings() -> None:
    one, two = [tuple(Output.of(f"{x}{k}") for k in range(3)) for x in "ab"]
    found = list(patterns(one, two))
    # Σ_m C(3,m)² m!
    assert len(found) == len({tuple(sorted(each)) for each in found}) == 34


def test_an_output_of_which_nothing_is_taken_is_any_of_the_rest() -> None:
    size = sympy.Symbol("G")
    assert distinct(size, "z", "") == (size - 1) * distinct(size, "z")
    assert distinct(size, "", "") == size * (size - 1) + 0 * distinct(size, "z")
    assert distinct(size, "s", "z") != distinct(size, "s z")


def test_powers_of_a_binary_number_are_itself() -> None:
    law = Law(binary=["z"])
    assert law.moment("z z z") == law.moment("z")
    assert law.moment("s s z z") == law.moment("s s z")
    assert Law(known={"z": 0}).mean(distinct(5, "z", "h") + 2) == 2


def test_bad_input_is_refused() -> None:
    with pytest.raises(InputError, match="groups of 2 and 3: one group is needed"):
        distinct(2, "z") * distinct(3, "z")
    total = distinct(4, "s")
    with pytest.raises(InputError, match="3 vectors in one product"):
        Law().mean(total * total * total)
