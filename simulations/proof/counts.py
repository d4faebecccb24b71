"""Tables by counts: estimators whose advantages depend on the number of successes, for every pass rate.

Rewards are 0 and 1. The entries of a table are symbols, so the proofs hold for all tables:
named ones, clipped ones and those for other objectives. Each group size is a polynomial identity in the pass
rate; powers of a letter separate the sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from math import comb
from typing import Any

import numpy as np

from ustat_pg.algebra import distinct
from ustat_pg.predictions import closed_forms as formulas
from ustat_pg.validation import needed

from .linear import GRPO, LAW, V, error, pair
from .linear import G as SIZE
from .statement import Statement

with needed("a proof by computer algebra", "proof"):
    import sympy

SIZES = range(1, 13)
SCOPE = "G to 12, every table, every pass rate and law of scores"
p, F, g2 = sympy.symbols("p E‖s‖² ‖g‖²", positive=True)
R = sympy.Symbol("E‖s‖²z", positive=True)
X = sympy.Symbol("x")
"""The letter whose power is the group size."""


@dataclass(frozen=True)
class Table:
    """Advantages of groups of G: a₁(n) for a success and a₀(n) for a failure, with n successes in total."""

    group_size: int
    letter: str = "a"

    @cached_property
    def successes(self) -> Any:
        return np.array(
            [0, *sympy.symbols(f"{self.letter}1(1:{self.group_size + 1})")], dtype=object
        )

    @cached_property
    def failures(self) -> Any:
        return np.array([*sympy.symbols(f"{self.letter}0(:{self.group_size})"), 0], dtype=object)

    def over_groups(self, value: Callable[[int, int, int], Any]) -> Any:
        """E f(n) over the n successes of a group: f may have p or 1-p in a denominator that cancels.

        Arguments:
            value: a function of n and the powers of p and 1-p in a group's probability, to f times that.
        """
        size = self.group_size
        return sum(comb(size, n) * value(n, n, size - n) for n in range(size + 1))


def chance(won: int, lost: int) -> Any:
    """p^won (1-p)^lost, where a negative power belongs to a term that is 0."""
    return p ** max(won, 0) * (1 - p) ** max(lost, 0)


def mean_of(size: int) -> formulas.Mean:
    """The mean over the number of successes among the outputs that are not set aside."""

    def mean(aside: int, won: int, values: Sequence[Any]) -> Any:
        return sum(
            comb(size - aside, m) * chance(m, size - aside - m) * value
            for m, value in enumerate(values)
        )

    return mean


def square(table: Table) -> Any:
    """E‖ĝ‖² from the definition: given the rewards, scores are independent with means g/p and -g/(1-p)."""
    a1, a0, size = table.successes, table.failures, table.group_size

    def value(n: int, won: int, lost: int) -> Any:
        singles = n * a1[n] ** 2 * R * chance(won - 1, lost)
        singles += lost * a0[n] ** 2 * (F - R) * chance(won, lost - 1)
        pairs = n * (n - 1) * a1[n] ** 2 * chance(won - 2, lost)
        pairs += lost * (lost - 1) * a0[n] ** 2 * chance(won, lost - 2)
        pairs -= 2 * n * lost * a1[n] * a0[n] * chance(won - 1, lost - 1)
        return singles + pairs * g2

    return table.over_groups(value) / sympy.Integer(size) ** 2


def weight(table: Table) -> Any:
    """w with E ĝ = w g, from the definition."""
    a1, a0 = table.successes, table.failures

    def value(n: int, won: int, lost: int) -> Any:
        return n * a1[n] * chance(won - 1, lost) - lost * a0[n] * chance(won, lost - 1)

    return table.over_groups(value) / sympy.Integer(table.group_size)


def first_order(table: Table) -> Any:
    """G E‖E[ĝ | one output] - E ĝ‖² from the definition: α_z s + γ_z g for an output (s, z), divided by G."""
    a1, a0, size = table.successes, table.failures, table.group_size
    others = size - 1

    def given(own: int) -> tuple[Any, Any]:
        alone = pull = sympy.Integer(0)
        for m in range(size):
            ways, n = comb(others, m), m + own
            alone += ways * chance(m, others - m) * (a1 if own else a0)[n]
            pull += ways * m * a1[n] * chance(m - 1, others - m)
            pull -= ways * (others - m) * a0[n] * chance(m, others - m - 1)
        return alone, pull

    (won, for_won), (lost, for_lost) = given(1), given(0)
    singles = won**2 * R + lost**2 * (F - R)
    crossed = 2 * (won * for_won - lost * for_lost) + p * for_won**2 + (1 - p) * for_lost**2
    return (singles + (crossed - (size * weight(table)) ** 2) * g2) / sympy.Integer(size)


def at_each_size(value: Callable[[Table], Any], most: int | None = None) -> Any:
    """The sum of values at all sizes, or up to a largest, each times a letter to the power of the size."""
    return sum(X**size * value(Table(size)) for size in SIZES if most is None or size <= most)


def wrong(formula: Any, value: Callable[[Table], Any], right: Callable[[Table], Any]) -> Any:
    """A formula with other values at groups of 2 and 3."""
    return formula + at_each_size(lambda t: value(t) - right(t) if t.group_size > 1 else 0, 3)


def chances(table: Table) -> formulas.Mean:
    """The law of the number of successes among the outputs that are not set aside."""
    return mean_of(table.group_size)


def moment(table: Table, **changed: Any) -> Any:
    """E‖ĝ‖² by the closed form, with some shares changed."""
    shares = formulas.table_shares(table, chances(table))
    return formulas.centred_moment(shares._replace(**changed), R, F, g2)


def beyond_1() -> Iterator[Statement]:
    """Mean, error, its first-order part, and a verifier with errors."""

    def table_weight(table: Table) -> Any:
        return formulas.table_weight(table, chances(table))

    def shifted(table: Table) -> Any:
        return chances(table)(1, 0, table.successes[1:] - table.failures[1:])

    mean = at_each_size(table_weight)
    yield Statement(
        "mean of a table over g",
        at_each_size(weight),
        mean,
        {"a failure beside one success more": wrong(mean, shifted, table_weight)},
        SCOPE,
    )
    whole = at_each_size(moment)
    apart = wrong(whole, lambda table: moment(table, mixed=0, turned=0), moment)
    yield Statement(
        "E‖ĝ‖² of a table",
        at_each_size(square),
        whole,
        {"a success and a failure do not meet": apart},
        SCOPE,
    )
    few = 5
    yield Statement(
        "its part of first order",
        at_each_size(first_order, few),
        at_each_size(lambda t: formulas.first_order(t, chances(t), p, R, F, g2), few),
        scope=SCOPE.replace("12", str(few)),
    )

    def unbiased(table: Table) -> Any:
        gains = dict(zip(table.successes[1:], 1 + table.failures[:-1], strict=True))
        return weight(table).subs(gains)

    yield Statement(
        "δ = 1 is unbiased for J", at_each_size(unbiased), at_each_size(lambda _: 1), {}, SCOPE
    )
    yield from pool()
    yield from verifier()
    yield from best_of()


def pool() -> Iterator[Statement]:
    """Two tables on all groups of a pool, whose outputs have vectors of any kind and a law of no kind.

    Each group is added up. Here the shares depend on how many successes are set aside.
    """
    won, lost, most = (0, 1, 2), (3, 4, 5), 4
    whole = len(won) + len(lost)
    u, v = sympy.symbols(f"u:{whole}"), sympy.symbols(f"v:{whole}")

    def estimate(group: Sequence[int], table: Table, vectors: Sequence[Any]) -> Any:
        n = sum(i in won for i in group)
        of = (table.failures[n], table.successes[n])
        return sum(of[i in won] * vectors[i] for i in group) / sympy.Integer(len(group))

    def tables(size: int) -> tuple[Table, Table]:
        return Table(size), Table(size, "b")

    def enumerated(table: Table) -> Any:
        one, two = tables(table.group_size)
        groups = list(combinations(range(whole), table.group_size))
        return sum(estimate(g, one, u) * estimate(g, two, v) for g in groups) / sympy.Integer(
            len(groups)
        )

    def pairs(left: Sequence[int], right: Sequence[int]) -> Any:
        total = sum(u[i] * v[j] for i in left for j in right if i != j)
        return total / sympy.Integer(whole * (whole - 1))

    alone = [sum(u[i] * v[i] for i in some) / sympy.Integer(whole) for some in (won, lost)]
    means = *alone, pairs(won, won), pairs(lost, lost), pairs(won, lost), pairs(lost, won)

    def shares(table: Table) -> formulas.Shares:
        one, two = tables(table.group_size)

        def mean(aside: int, of_won: int, values: Sequence[Any]) -> Any:
            rest, others = table.group_size - aside, (len(won) - of_won, len(lost) - aside + of_won)
            ways = [comb(others[0], m) * comb(others[1], rest - m) for m in range(rest + 1)]
            return sum(w * f for w, f in zip(ways, values, strict=True)) / sympy.Integer(sum(ways))

        return formulas.table_shares(one, mean, two)

    def product(table: Table) -> Any:
        return formulas.inner_product(shares(table), means)

    def as_mixed(table: Table) -> Any:
        known = shares(table)
        return formulas.inner_product(known._replace(turned=known.mixed), means)

    equal = at_each_size(product, most)
    yield Statement(
        "E⟨ĝ, ĝ'⟩ of two tables over all groups of a pool",
        at_each_size(enumerated, most),
        equal,
        {"one share of both mixed pairs": wrong(equal, as_mixed, product)},
        "G to 4, every two tables and all vectors of 3 successes and 3 failures",
    )


def proposition_13() -> Iterator[Statement]:
    """The objective of a table at each group size, and the slope of the limit for division by a deviation."""

    def slope(table: Table) -> Any:
        size = table.group_size
        law = [comb(size, n) * chance(n, size - n) for n in range(size + 1)]
        more = np.array([sum(law[m + 1 :]) for m in range(size)])
        return sympy.diff(formulas.climbed_objective(table, more), p)

    yield Statement(
        "the slope of what a table climbs is its mean over g",
        at_each_size(slope),
        at_each_size(weight),
        scope="G to 12, every table and pass rate",
    )
    yield Statement(
        "the slope of 2 arcsin √p, squared, is 1/σ²",
        sympy.diff(formulas.arcsine(p, sympy.sqrt, sympy.asin), p) ** 2,
        1 / (p * (1 - p)),
        {"1/σ⁴": 1 / (p * (1 - p)) ** 2},
        "every pass rate",
    )
    pairs = Table(2)
    std = dict(zip((*pairs.successes[1:], *pairs.failures[:-1]), (1, 0, 0, -1), strict=True))
    yield Statement(
        "in groups of 2 division by the deviation climbs E V itself",
        weight(pairs).subs(std),
        1,
        {"the arcsine at G = 2": 1 / sympy.sqrt(p * (1 - p)), "ddof swapped": 1 / sympy.sqrt(2)},
        "every pass rate",
    )


def verifier() -> Iterator[Statement]:
    """A verifier that accepts right answers at the rate a and wrong ones at c, whatever their text."""
    a, c = sympy.symbols("a c", positive=True)
    seen = formulas.seen_rate(p, a, c)
    scope = "every a, c, p and law of scores"
    # Right answers: E‖s‖² z = R and E s z = g; wrong ones: F - R and -g.
    yield Statement("share of answers that are accepted", a * p + c * (1 - p), seen, scope=scope)
    g = sympy.Symbol("g")
    yield Statement("E s z̃", a * g + c * -g, (a - c) * g, {"a g": a * g}, scope)
    cross = R - p * F
    accepted = a * R + c * (F - R)
    yield Statement("E‖s‖²(z̃ - p̃)", accepted - seen * F, (a - c) * cross, {}, scope)
    spread = (1 - seen) ** 2 * accepted + seen**2 * (F - accepted)
    yield Statement(
        "E‖s‖²(z̃ - p̃)²",
        spread,
        formulas.binary_square(seen, (a - c) * cross, F),
        {"at the true pass rate": formulas.binary_square(p, (a - c) * cross, F)},
        scope,
    )


def best_of() -> Iterator[Statement]:
    """Two tables for two thresholds of a graded reward, and the number of least noise for the best of k.

    Outputs are below both thresholds, between them, or above both. Each class has its own letters for its
    chance, for E‖s‖² and for the products of mean scores.
    """
    most, classes = 4, ((0, 0), (1, 0), (1, 1))
    chances = sympy.symbols("P0:3", positive=True)
    squares = sympy.symbols("S0:3", positive=True)
    products = [[sympy.Symbol(f"M{c}{e}") for e in range(3)] for c in range(3)]

    def groups(size: int) -> Iterator[tuple[tuple[int, int, int], int]]:
        for below in range(size + 1):
            for between in range(size + 1 - below):
                ways = comb(size, below) * comb(size - below, between)
                yield (below, between, size - below - between), ways

    def likelihood(numbers: Sequence[int]) -> Any:
        return sympy.prod(p ** max(n, 0) for p, n in zip(chances, numbers, strict=True))

    def without(numbers: Sequence[int], *aside: int) -> Any:
        return likelihood([n - aside.count(c) for c, n in enumerate(numbers)])

    def derived(table: Table) -> Any:
        """E⟨ĝ, ĝ'⟩ from the definition: given the classes, scores are independent."""
        size, other, total = table.group_size, Table(table.group_size, "b"), sympy.Integer(0)
        for numbers, ways in groups(size):
            one, two = numbers[1] + numbers[2], numbers[2]
            a = [(table.successes if y else table.failures)[one] for y, _ in classes]
            b = [(other.successes if y else other.failures)[two] for _, y in classes]
            for c, n in enumerate(numbers):
                total += ways * n * a[c] * b[c] * squares[c] * without(numbers, c)
                for e, m in enumerate(numbers):
                    pairs = n * (m - (c == e))
                    total += ways * pairs * a[c] * b[e] * products[c][e] * without(numbers, c, e)
        return total / sympy.Integer(size) ** 2

    def formula(table: Table, *known: Any) -> Any:
        def mean(aside: int, values: Any, others: Any) -> Any:
            return sum(
                ways * likelihood(numbers) * values[numbers[1] + numbers[2]] * others[numbers[2]]
                for numbers, ways in groups(table.group_size - aside)
            )

        return formulas.nested_moment(table, Table(table.group_size, "b"), mean, *known)

    def right(table: Table) -> Any:
        return formula(table, squares, products)

    def skipped(table: Table) -> Any:
        return formula(table, (squares[0], 0, squares[2]), products)

    equal = at_each_size(right, most)
    yield Statement(
        "E⟨ĝ, ĝ'⟩ of two tables at two thresholds of a graded reward",
        at_each_size(derived, most),
        equal,
        {"an output between the thresholds adds nothing": wrong(equal, skipped, right)},
        f"G to {most}, every two tables, every two thresholds and every law",
    )
    k, c, square, reward, cross, along, fisher, rest, slope = sympy.symbols("k c A B C D F E N")
    noise = formulas.best_of_noise(
        k, square - 2 * c * reward + c**2 * fisher, cross - c * along, rest, slope
    )
    best = formulas.best_of_baseline(k, reward, along, fisher)
    yield Statement(
        "the slope in c of the limit of the best of k is 0 at c* alone",
        sympy.diff(noise, c),
        2 * k**2 * fisher * (c - best),
        {"E‖s‖²ψ/E‖s‖²": 2 * k**2 * fisher * (c - reward / fisher)},
        "every k and every law",
    )


def beyond_2() -> Iterator[Statement]:
    """The best table solves the equations where its error has no slope; the best amount of shrinkage."""
    most = 6

    def slopes(table: Table) -> Any:
        """The slopes of G/2 E‖ĝ‖² in each a₀, where a₁ = a₀ + δ, as coefficients of powers of a letter."""
        gains = dict(zip(table.successes[1:], _gains(table) + table.failures[:-1], strict=True))
        noise = sympy.expand(square(table).subs(gains)) * table.group_size / 2
        return _by_power(sympy.diff(noise, a0) for a0 in table.failures[:-1])

    def equations(table: Table, gain: int = 1) -> Any:
        size = table.group_size
        law = np.array([comb(size - 1, m) * chance(m, size - 1 - m) for m in range(size)])
        two = np.array([comb(size - 2, m) * chance(m, size - 2 - m) for m in range(size - 1)])
        pairs = (size - 1) * g2 * two
        known = gain * _gains(table), F * law, R * law, pairs
        diagonal, right = formulas.normal_equations(*known)
        a0 = table.failures[:-1]
        off = np.array([0, *(-pairs * a0[:-1])]) + np.array([*(-pairs * a0[1:]), 0])
        return _by_power(diagonal * a0 + off - right)

    equal = at_each_size(equations, most)
    yield Statement(
        "equations of the best table with any mean",
        at_each_size(slopes, most),
        equal,
        {"the mean is forgotten": wrong(equal, lambda t: equations(t, 0), equations)},
        f"G to {most}, every mean, every pass rate and law of scores",
    )
    amount, off = sympy.symbols("λ δ", real=True)
    # Shrunk towards μ = V + δ: the baseline is (1-λ) times the others' mean plus λ μ.
    shrunk = distinct(SIZE, "s z") / SIZE - amount * (V + off) * distinct(SIZE, "s") / SIZE
    shrunk -= (1 - amount) * distinct(SIZE, "s", "z") / (SIZE * (SIZE - 1))
    yield Statement("without shrinkage it is grpo", error(shrunk.subs(amount, 0)), error(GRPO))
    others, cross = pair() / (SIZE - 1), LAW.moment("s s z") - V * LAW.moment("s s")
    best = formulas.best_amount(others, off * cross, off**2 * LAW.moment("s s"))
    curvature = 2 * (others + off**2 * LAW.moment("s s")) / SIZE
    yield Statement(
        "the slope of the error in λ is 0 at λ* alone",
        sympy.diff(error(shrunk), amount),
        curvature * (amount - best),
        {"without E‖s‖²a": curvature * (amount - best.subs(off, 0))},
        "every G, every μ and every law",
    )


def _gains(table: Table) -> Any:
    return np.array(sympy.symbols(f"δ(:{table.group_size})"), dtype=object)


def _by_power(values: Any) -> Any:
    """Several values as one sum, each times a letter to the power of its place."""
    y = sympy.Symbol("y")
    return sum(y**k * value for k, value in enumerate(values))
