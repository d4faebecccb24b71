"""A second mind's tables: every critic-free estimator with rewards 0 and 1, in exact fractions.

Nothing is imported from the library. Beside the brute force of ``independent.py`` stand

1. the advantages as papers and frameworks define them, of a group's rewards;
2. the same as tables, a₁(n) for a success and a₀(n) for a failure, n the successes of the group;
3. the table of least variance, from a quadratic form that is read off point by point.

A square root is a fraction too: that of the nearest float, the same one wherever it is asked for.
"""

from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import combinations
from math import sqrt
from typing import NamedTuple

import numpy as np

from tests.support import independent as ind
from tests.support.independent import ONE, ZERO, Array, Problem

Advantages = Callable[[Array], Array]  # rewards of a group -> advantages


def root(x: Fraction) -> Fraction:
    return Fraction(sqrt(x))


# --------------------------------------------------------------------------------------------
# Problems: pass rates and norms that differ, a prompt never solved, one always solved
# --------------------------------------------------------------------------------------------

UNEQUAL = ind.tabular(
    "unequal rates",
    "1/2 1/3 1/6",
    ["1/5 4/5", "1/2 1/2", "3/4 1/4"],
    ["1:1/2,0:1/2 0", "1 1:1/3,0:2/3", "1:1/10,0:9/10 1:1/5,0:4/5"],
)
EVEN = ind.tabular(
    "equally probable", "1/3 1/3 1/3", ["1/5 4/5", "1/2 1/2", "9/10 1/10"], ["1 0", "0 1", "0 1"]
)
#: The last two prompts are never and always solved.
CORNERS = ind.tabular(
    "corners", "1/2 1/4 1/4", ["1/3 2/3", "1/4 3/4", "1/2 1/2"], ["1 0", "0 0", "1 1"]
)


# --------------------------------------------------------------------------------------------
# 1. Advantages by definition
# --------------------------------------------------------------------------------------------


def others(z: Array, i: int) -> Array:
    return np.delete(z, i)


def standardised(z: Array, ddof: int) -> Array:
    """(z - mean)/std, 0 in a group of equal rewards."""
    centred = z - z.sum() / Fraction(len(z))
    if not centred.any():
        return centred
    return centred / root((centred**2).sum() / Fraction(len(z) - ddof))


def nemo(z: Array) -> Array:
    """z - mean of the others, over the std (ddof = 1) of the others where that is not 0."""
    result = []
    for i, own in enumerate(z):
        rest = others(z, i)
        mean = rest.sum() / Fraction(len(rest))
        spread = ((rest - mean) ** 2).sum()
        deviation = root(spread / (len(rest) - 1)) if spread else ONE
        result.append((own - mean) / deviation)
    return np.array(result)


def max_rl(z: Array) -> Array:
    """(z - mean)/mean, 0 in a group that fails."""
    mean = z.sum() / Fraction(len(z))
    return (z - mean) / mean if mean else 0 * z


def best_of(z: Sequence[Fraction], k: int) -> Fraction:
    """The mean over k-subsets of the greatest reward."""
    greatest = [max(subset) for subset in combinations(z, k)]
    return sum(greatest, ZERO) / len(greatest)


def pass_at(k: int, without: int | None = None) -> Advantages:
    """k (mean best of k with output i, less that of k, or of fewer, of the others alone)."""

    def advantages(z: Array) -> Array:
        result = []
        for i, own in enumerate(z):
            rest = list(others(z, i))
            subsets = list(combinations(rest, k - 1))
            with_own = sum((max((own, *each)) for each in subsets), ZERO) / len(subsets)
            result.append(k * (with_own - best_of(rest, min(without or k, len(rest)))))
        return np.array(result)

    return advantages


def left_out(baseline: Callable[[Fraction, int], Fraction]) -> Advantages:
    """z less a function of (the sum of the others, their number)."""
    return lambda z: np.array([x - baseline(z.sum() - x, len(z) - 1) for x in z])


DEFINED: dict[str, Advantages] = {
    "vanilla": lambda z: z,
    "grpo": left_out(lambda k, m: k / m),
    "group-mean": lambda z: z - z.sum() / Fraction(len(z)),
    "std": lambda z: standardised(z, 0),
    "std-ddof1": lambda z: standardised(z, 1),
    "others-std": nemo,
    "maxrl": max_rl,
    "pass-at-k:1": pass_at(1),
    "pass-at-k:2": pass_at(2),
    "pass-at-k:3": pass_at(3),
    "gain-at-k:2": pass_at(2, 1),
    "gain-at-k:3": pass_at(3, 2),
    "bayes:1,1": left_out(lambda k, m: (k + 1) / (m + 2)),
    "bayes:0.5,2": left_out(lambda k, m: (k + Fraction(1, 2)) / (m + Fraction(5, 2))),
    "shrinkage:0.25,0.5": left_out(lambda k, m: Fraction(3, 4) * k / m + Fraction(1, 8)),
}
"""By the library's names."""

LEAST = {"grpo": 2, "std-ddof1": 2, "others-std": 2, "shrinkage:0.25,0.5": 2} | {
    f"{name}:{k}": max(k, 2)
    for name, ks in (("pass-at-k", (1, 2, 3)), ("gain-at-k", (2, 3)))
    for k in ks
}
"""The smallest group in which these definitions speak, where it is not 1."""


# --------------------------------------------------------------------------------------------
# 2. Tables
# --------------------------------------------------------------------------------------------


class Table(NamedTuple):
    """a₁(0), ..., a₁(G) and a₀(0), ..., a₀(G); a₁(0) and a₀(G) are never asked for."""

    won: tuple[Fraction, ...]
    lost: tuple[Fraction, ...]

    @property
    def size(self) -> int:
        return len(self.won) - 1

    @property
    def delta(self) -> list[Fraction]:
        return [self.won[m + 1] - self.lost[m] for m in range(self.size)]

    def advantages(self, z: Array) -> Array:
        n = int(z.sum())
        return np.array([self.won[n] if x else self.lost[n] for x in z])


def table_of(advantages: Advantages, size: int) -> Table:
    """What the first success and the last failure get of a group with n successes."""
    groups = [np.array([ONE] * n + [ZERO] * (size - n)) for n in range(size + 1)]
    result = [advantages(z) for z in groups]
    return Table(
        (ZERO, *(a[0] for a in result[1:])),
        (*(a[-1] for a in result[:-1]), ZERO),
    )


# --------------------------------------------------------------------------------------------
# 3. The table of least variance
# --------------------------------------------------------------------------------------------


def subtracted(advantages: Advantages) -> Callable[[ind.Moments, Array, Array], Array]:
    """What an estimator subtracts, whether or not that is a baseline: z - A."""
    return lambda m, z, w: z - advantages(z)


def least_lost(problem: Problem, delta: Sequence[Fraction]) -> np.ndarray:
    """a₀(0), ..., a₀(G-1) of least E|ghat|² at given delta.

    The objective is a quadratic f(a) = a'Qa/2 + c'a + f(0): Q and c come from its values at 0, at
    unit vectors and at their sums.
    """
    G = len(delta)

    def f(lost: Sequence[Fraction]) -> Fraction:
        won = (ZERO, *(d + a for d, a in zip(delta, lost, strict=True)))
        name = subtracted(Table(won, (*lost, ZERO)).advantages)
        law = ind.minibatch_law(problem, name, G, 1, "iid")
        return ind.read_off(law, 0 * ind.gradient(problem)).mse

    unit = [[ONE if i == j else ZERO for j in range(G)] for i in range(G)]
    origin = f([ZERO] * G)
    alone = [f(u) - origin for u in unit]
    matrix = [
        [
            f([a + b for a, b in zip(u, v, strict=True)]) - origin - fu - fv
            for v, fv in zip(unit, alone, strict=True)
        ]
        for u, fu in zip(unit, alone, strict=True)
    ]
    linear = [fu - matrix[i][i] / 2 for i, fu in enumerate(alone)]
    return np.linalg.solve(np.array(matrix, dtype=float), -np.array(linear, dtype=float))
