"""The algebra against enumeration in exact fractions: every outcome of every group of a small law."""

from __future__ import annotations

from fractions import Fraction
from itertools import permutations, product
from random import Random

import pytest
import sympy

from ustat_pg.algebra import Law, Output, Sum, distinct, patterns
from ustat_pg.validation import InputError

Outcome = tuple[Fraction, tuple[Fraction, ...], dict[str, Fraction]]


def drawn(seed: int, d: int = 2) -> list[Outcome]:
    """Three outcomes: chances, scores of mean 0 and two numbers."""
    random = Random(seed)
    whole = [random.randint(1, 5) for _ in range(3)]
    chances = [Fraction(w, sum(whole)) for w in whole]
    raw = [[Fraction(random.randint(-4, 4), 3) for _ in range(d)] for _ in range(3)]
    mean = [sum(p * row[k] for p, row in zip(chances, raw, strict=True)) for k in range(d)]
    return [
        (
            p,
            tuple(x - m for x, m in zip(row, mean, strict=True)),
            {"z": Fraction(random.randint(-3, 3), 2), "h": Fraction(random.randint(0, 3), 2)},
        )
        for p, row in zip(chances, raw, strict=True)
    ]


def of_group(total: Sum, group: tuple[Outcome, ...]) -> tuple[list[Fraction], Fraction]:
    """What a sum is in one group: its vector, and the part without a vector."""
    d = len(group[0][1])
    vector, number = [Fraction(0)] * d, Fraction(0)
    for member, coefficient in total.terms.items():
        factor = Fraction(int(sympy.numer(coefficient)), int(sympy.denom(coefficient)))
        for chosen in permutations(group, len(member)):
            value, score = factor, None
            for output, (_, s, numbers) in zip(member, chosen, strict=True):
                for name, power in output.powers:
                    value *= numbers[name] ** power
                if output.vectors:
                    score = s
            if score is None:
                number += value
            else:
                vector = [v + value * x for v, x in zip(vector, score, strict=True)]
    return vector, number


def evaluated(expression: sympy.Expr, law: Law, outcomes: list[Outcome]) -> Fraction:
    """A rational function of moments, at those of a law."""
    d = len(outcomes[0][1])

    def mean(output: Output) -> list[Fraction]:
        found = [Fraction(0)] * d
        for p, s, numbers in outcomes:
            value = p
            for name, power in output.powers:
                value *= numbers[name] ** power
            match len(output.vectors):
                case 0:
                    entries = [value, *[Fraction(0)] * (d - 1)]
                case 1:
                    entries = [value * x for x in s]
                case _:
                    entries = [value * sum(x * x for x in s), *[Fraction(0)] * (d - 1)]
            found = [f + e for f, e in zip(found, entries, strict=True)]
        return found

    values = {}
    powers = [
        tuple((n, k) for n, k in (("h", h), ("z", z)) if k) for h in range(5) for z in range(5)
    ]
    one = [Output(("s",), p) for p in powers]
    for output in [Output((), p) for p in powers] + [Output(("s", "s"), p) for p in powers]:
        values[law.expected((output,))] = mean(output)[0]
    for left, right in product(one, one):
        inner = sum(x * y for x, y in zip(mean(left), mean(right), strict=True))
        values[law.expected((left, right))] = inner
    exact = {
        k: sympy.Rational(v.numerator, v.denominator) for k, v in values.items() if k.is_Symbol
    }
    number = sympy.nsimplify(expression.subs(exact))
    assert number.is_Rational, number
    return Fraction(int(number.p), int(number.q))


def linear(size: int) -> Sum:
    """An estimator with a baseline of the others, of the group, and of two outputs at once."""
    return (
        distinct(size, "s z") / size
        - distinct(size, "s", "z") * sympy.Rational(1, 3)
        + distinct(size, "s h", "z z") * sympy.Rational(2, 5)
        - distinct(size, "s") * sympy.Rational(1, 7)
    )


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("seed", [0, 1])
def test_means_are_those_of_all_groups(size: int, seed: int) -> None:
    outcomes, law, total = drawn(seed), Law(), linear(size)
    number = distinct(size, "z", "h") - 2 * distinct(size, "z") + 1
    square = scalar = crossed = Fraction(0)
    for group in product(outcomes, repeat=size):
        chance = Fraction(1)
        for p, _, _ in group:
            chance *= p
        vector, _ = of_group(total, group)
        square += chance * sum(x * x for x in vector)
        value = of_group(number, group)[1]
        scalar += chance * value
        crossed += chance * value**2
    assert evaluated(sympy.expand(law.mean(total * total)), law, outcomes) == square
    assert evaluated(sympy.expand(law.mean(number)), law, outcomes) == scalar
    assert evaluated(sympy.expand(law.mean(number * number)), law, outcomes) == crossed


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_products_are_products_in_every_group(size: int) -> None:
    outcomes = drawn(3)
    left, right = distinct(size, "s z", "h") + distinct(size, "s"), distinct(size, "z", "h", "z")
    for group in product(outcomes, repeat=size):
        vector, number = of_group(left, group)[0], of_group(right, group)[1]
        assert of_group(left * right, group)[0] == [number * x for x in vector]


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
