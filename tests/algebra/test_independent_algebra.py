"""The algebra against enumeration in fractions, as its docstrings say: all groups, all tuples of outputs."""

import itertools
import math
import random
from fractions import Fraction
from functools import cache
from typing import NamedTuple

import pytest
import sympy

from ustat_pg.algebra import Law, counted, distinct

G = sympy.Symbol("G")
ANY, BINARY = Law(), Law(binary=("h",))
ABSORBED = Law(binary=("h",), absorbed={"s": "h"})
SIZES = (1, 2, 3, 4)
LAWS = range(3)
TEXTS = [
    " ".join("s" * vectors + "h" * counts + "z" * power)
    for vectors, counts, power in itertools.product(range(3), range(2), range(5))
    if vectors + counts + power
]


class Outcome(NamedTuple):
    """What a group's output can be: a vector, a number, and an indicator."""

    s: tuple[Fraction, Fraction]
    z: Fraction
    h: Fraction


@cache
def drawn(seed):
    """Three outcomes and their chances: the mean of s is 0, and z is any number."""
    rng = random.Random(seed)
    weights = [rng.randint(1, 5) for _ in range(3)]
    chances = [Fraction(w, sum(weights)) for w in weights]
    vectors = [[Fraction(rng.randint(-4, 4)) for _ in range(2)] for _ in range(3)]
    mean = [sum(p * v[k] for p, v in zip(chances, vectors, strict=True)) for k in range(2)]
    return tuple(
        (
            p,
            Outcome(
                tuple(v[k] - mean[k] for k in range(2)),
                Fraction(rng.randint(-3, 4), 2),
                Fraction(h),
            ),
        )
        for p, v, h in zip(chances, vectors, (1, 0, 1), strict=True)
    )


def product(factors):
    """The product of numbers and of at most two vectors, whose product is the inner one."""
    number, vectors = Fraction(1), []
    for factor in factors:
        if isinstance(factor, tuple):
            vectors.append(factor)
        else:
            number *= factor
    if len(vectors) == 2:
        return number * sum(a * b for a, b in zip(*vectors, strict=True))
    return tuple(number * a for a in vectors[0]) if vectors else number


def taken(outcome, text):
    return product([getattr(outcome, name) for name in text.split()])


def summed(group, outputs, weight=lambda others: 1):
    """The sum over tuples of different outputs of a product, each times a weight of the other outputs."""
    members = []
    for places in itertools.permutations(range(len(group)), len(outputs)):
        others = [group[i] for i in range(len(group)) if i not in places]
        factors = [taken(group[i], text) for i, text in zip(places, outputs, strict=True)]
        members.append(product([*factors, Fraction(weight(others))]))
    if members and isinstance(members[0], tuple):
        return tuple(map(sum, zip(*members, strict=True)))
    return sum(members, Fraction(0))


def enumerated(outcomes, size, value):
    """The mean of a function of a group, over all groups of a size; of a vector, its first coordinate."""
    total = Fraction(0)
    for group in itertools.product(outcomes, repeat=size):
        found = value([outcome for _, outcome in group])
        total += math.prod(p for p, _ in group) * (found[0] if isinstance(found, tuple) else found)
    return total


def moment(outcomes, text):
    values = [(p, taken(outcome, text)) for p, outcome in outcomes]
    if isinstance(values[0][1], tuple):
        return tuple(sum(p * v[k] for p, v in values) for k in range(2))
    return sum(p * v for p, v in values)


@cache
def values_of(law, outcomes):
    """The values of the symbols of moments at a law of outcomes; of a mean vector, its first coordinate."""
    values, means = {}, {}
    for text in TEXTS:
        found = moment(outcomes, text)
        if isinstance(found, tuple):
            means[text], found = found, found[0]
        values[law.moment(text)] = found
    for one, two in itertools.combinations_with_replacement(means, 2):
        values[law.inner(one, two)] = product([means[one], means[two]])
    return {k: rational(v) for k, v in values.items() if isinstance(k, sympy.Symbol)}


def rational(fraction):
    return sympy.Rational(fraction.numerator, fraction.denominator)


def evaluated(expression, law, outcomes, size):
    result = sympy.sympify(expression).xreplace(values_of(law, outcomes) | {G: sympy.Integer(size)})
    assert result.is_Rational, f"{result} is no number"
    return Fraction(int(result.p), int(result.q))


@pytest.mark.parametrize("outputs", range(5))
def test_a_pattern_has_a_falling_factorial_of_members(outputs):
    found = Law().mean(distinct(G, *[""] * outputs))
    for size in range(7):
        assert found.subs(G, size) == len(list(itertools.permutations(range(size), outputs)))


@pytest.mark.parametrize(
    "outputs", [("s",), ("s", "z"), ("s", "s z"), ("s", "s"), ("s z", "z h", "s")]
)
def test_a_score_alone_ends_a_member(outputs):
    assert ANY.mean(distinct(G, *outputs)) == 0
    assert Law(centred=()).mean(distinct(G, *outputs)) != 0


NUMBERS = [
    ("z",),
    ("z", "z z"),
    ("z h", "z"),
    ("h", "z z", "z"),
    ("", "z"),
    ("", "", "h z"),
    ("s s z", "s s"),
]
VECTORS = [("s z",), ("s", "z"), ("s z", "z"), ("s h", "z z"), ("s", "z", "h"), ("", "s z")]


@pytest.mark.parametrize("seed", LAWS)
@pytest.mark.parametrize(
    "outputs", [*NUMBERS, *VECTORS, ("s z", "s h"), ("s", "s z"), ("s", "s"), ("s z", "h", "s z")]
)
def test_a_mean_factorises_over_outputs(outputs, seed):
    outcomes, law = drawn(seed), BINARY
    found = law.mean(distinct(G, *outputs))
    for size in SIZES:
        expected = enumerated(outcomes, size, lambda group: summed(group, outputs))
        assert evaluated(found, law, outcomes, size) == expected


@pytest.mark.parametrize(
    "pair", list(itertools.combinations_with_replacement([*NUMBERS, *VECTORS], 2))
)
def test_products_of_two_sums(pair):
    """Two numbers, a number and a vector, or two vectors: then the product is the inner one."""
    one, two = pair
    if sum(text.split().count("s") for text in one + two) > 2:
        pair = one, two = one, ("z", "h")
    outcomes, law = drawn(len(one) + 5 * len(two)), BINARY
    found = law.mean(distinct(G, *one) * distinct(G, *two))
    for size in SIZES[:3]:
        expected = enumerated(
            outcomes, size, lambda group: product([summed(group, one), summed(group, two)])
        )
        assert evaluated(found, law, outcomes, size) == expected


@pytest.mark.parametrize(
    "three", [("z", "h", "z z"), ("z", "s", "s z"), ("s s", "z", "z"), ("z h", "z h", "h")]
)
def test_products_of_three_sums_of_one_output(three):
    outcomes, law = drawn(11), BINARY
    found = law.mean(math.prod((distinct(G, text) for text in three), start=distinct(G)))
    for size in SIZES:
        expected = enumerated(
            outcomes, size, lambda group: product([summed(group, (text,)) for text in three])
        )
        assert evaluated(found, law, outcomes, size) == expected


def test_a_product_of_three_sums_of_two_outputs():
    outcomes, law = drawn(12), ANY
    found = law.mean(distinct(G, "s", "z") * distinct(G, "z", "") * distinct(G, "s z", "z"))
    for size in SIZES:
        expected = enumerated(
            outcomes,
            size,
            lambda group: product(
                [summed(group, ("s", "z")), summed(group, ("z", "")), summed(group, ("s z", "z"))]
            ),
        )
        assert evaluated(found, law, outcomes, size) == expected


def test_coefficients_signs_and_powers():
    outcomes, law = drawn(13), ANY
    one, two = distinct(G, "z"), distinct(G, "z", "z")
    found = law.mean((3 - one / G + two * (G + 2)) ** 2 - (-one))
    for size in SIZES:
        expected = enumerated(
            outcomes,
            size,
            lambda group, size=size: (
                (3 - summed(group, ("z",)) / size + summed(group, ("z", "z")) * (size + 2)) ** 2
                + summed(group, ("z",))
            ),
        )
        assert evaluated(found, law, outcomes, size) == expected


@pytest.mark.parametrize("uncentred", [("z", "s z"), ("s", "s z"), ("s z", "s", "z")])
def test_a_vector_that_is_not_centred_keeps_its_mean(uncentred):
    shift = (Fraction(1), Fraction(-2))
    outcomes = tuple(
        (p, o._replace(s=tuple(a + b for a, b in zip(o.s, shift, strict=True))))
        for p, o in drawn(14)
    )
    law = Law(centred=())
    found = law.mean(distinct(G, *uncentred))
    for size in SIZES:
        expected = enumerated(outcomes, size, lambda group: summed(group, uncentred))
        assert evaluated(found, law, outcomes, size) == expected


FUNCTIONS = {
    "1/(1+m)": lambda m: Fraction(1, 1 + m),
    "1 if m = 0": lambda m: Fraction(m == 0),
    "1/m, 0 at 0": lambda m: Fraction(1, m) if m else Fraction(0),
    "m²-3": lambda m: Fraction(m * m - 3),
    "uneven": lambda m: Fraction((7, -2, 5, 11, 3)[m]),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize(
    "outputs", [("s z",), ("z",), ("h z", "z"), ("s h z", "s h"), ("s", "s z"), ("",)]
)
def test_a_function_of_the_number_of_others_that_have_an_indicator(outputs, name):
    outcomes, law, of = drawn(15), BINARY, FUNCTIONS[name]
    for size in SIZES:
        if size < len(outputs):
            continue
        total = counted(size, outputs, "h", lambda m: rational(of(m)))
        expected = enumerated(
            outcomes,
            size,
            lambda group: summed(group, outputs, lambda others: of(int(sum(o.h for o in others)))),
        )
        assert evaluated(law.mean(total), law, outcomes, size) == expected


@pytest.mark.parametrize("name", ["1/(1+m)", "uneven"])
def test_the_inner_product_of_two_counted_sums(name):
    outcomes, law, of = drawn(16), BINARY, FUNCTIONS[name]

    def total(group):
        return summed(group, ("s h z",), lambda others: of(int(sum(o.h for o in others))))

    for size in SIZES[:3]:
        one = counted(size, ["s h z"], "h", lambda m: rational(of(m)))
        found = evaluated(law.mean(one * one), law, outcomes, size)
        assert found == enumerated(
            outcomes, size, lambda group: product([total(group), total(group)])
        )


@pytest.mark.parametrize(
    "outputs", [("s z",), ("s z h", "s"), ("s h", "z h"), ("s s z h", "h"), ("s z", "h", "s h z")]
)
def test_a_name_that_has_a_binary_number_as_a_factor(outputs):
    """s is 0 where h is 0: the law says so, and moments with and without h are then the same."""
    p, q = Fraction(1, 3), Fraction(1, 4)
    one, none = Fraction(1), Fraction(0)
    outcomes = (
        (p, Outcome((q, 2 * q), 3 * one, one)),
        (q, Outcome((-p, -2 * p), -one / 2, one)),
        (1 - p - q, Outcome((none, none), 5 * one, none)),
    )
    law = ABSORBED
    assert law.moment("s z h h") == law.moment("s z")
    assert law.moment("z h") != law.moment("z")
    one = distinct(G, *outputs)
    for total, value in (
        (one, lambda group: summed(group, outputs)),
        (
            one * distinct(G, "h"),
            lambda group: product([summed(group, outputs), summed(group, ("h",))]),
        ),
    ):
        found = law.mean(total)
        for size in SIZES:
            assert evaluated(found, law, outcomes, size) == enumerated(outcomes, size, value)


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("batch", [1, 2])
def test_two_levels_outputs_of_prompts_and_prompts_of_a_batch(batch, size):
    """E‖ĝ‖² of a batch of prompts drawn at random: sums over prompts of sums over their outputs."""
    prompts = [(Fraction(2, 5), drawn(18)), (Fraction(3, 5), drawn(19))]
    law, above = ANY, Law(vectors=("v",), centred=())
    each = distinct(size, "s z") / size - distinct(size, "s", "z") / (size * (size - 1))
    inner = [evaluated(law.mean(each * each), law, outcomes, size) for _, outcomes in prompts]
    means = [moment(outcomes, "s z") for _, outcomes in prompts]
    mean = [sum(w * m[k] for (w, _), m in zip(prompts, means, strict=True)) for k in range(2)]
    total = distinct(batch, "v", vectors=("v",)) / batch
    found = above.mean(total * total).subs(
        {
            above.moment("v v"): sum(w * a for (w, _), a in zip(prompts, inner, strict=True)),
            above.inner("v", "v"): product([tuple(mean), tuple(mean)]),
        }
    )

    def estimate(group):
        z = [o.z for o in group]
        weights = [z_i - (sum(z) - z_i) / (size - 1) for z_i in z]
        return [
            sum(a * o.s[k] for a, o in zip(weights, group, strict=True)) / size for k in range(2)
        ]

    expected = Fraction(0)
    groups = [
        [
            (w * math.prod(p for p, _ in group), estimate([o for _, o in group]))
            for group in itertools.product(outcomes, repeat=size)
        ]
        for w, outcomes in prompts
    ]
    for drawn_prompts in itertools.product(itertools.chain(*groups), repeat=batch):
        chance = math.prod(c for c, _ in drawn_prompts)
        expected += chance * sum(
            (sum(e[k] for _, e in drawn_prompts) / batch) ** 2 for k in range(2)
        )
    assert sympy.simplify(found) == rational(expected)
