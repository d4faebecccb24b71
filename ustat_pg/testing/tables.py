"""Conversion of advantage functions of rewards 0 and 1 to tables by the number of successes, and their
names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product

import numpy as np

from ..catalogue import catalogue
from ..predictions import CountTable, count_table
from ..validation import InputError
from .function import Array, UnderTest, Violation

MOST = 4096
"""The largest number of groups of one size that are all tried; above it, each number of successes is tried in
some orders.
"""
_ORDERS = 8
_ALIKE = 2e-3
"""The allowed distance of tables relative to the largest entry; an ε of 1e-4 changes the table of G = 64 by
8e-4.
"""
_RATES = (0.1, 0.5, 0.9)
"""The pass rates at which w is printed."""


@dataclass(frozen=True)
class Namesake:
    """An estimator of the catalogue of which a table is a multiple.

    Attributes:
        name: name as for :func:`ustat_pg.registry.parse`.
        factor: its multiple.
        whole: whether all advantages are this multiple; if not, only the weight w is, and the noise differs.
        apart: distance from that multiple, relative to the largest entry.
    """

    name: str
    factor: float
    whole: bool
    apart: float

    def __str__(self) -> str:
        times = "" if f"{self.factor:.4g}" == "1" else f" times {self.factor:.4g}"
        near = "" if self.apart < 1e-6 else f" (to {self.apart:.2g})"
        return f"{self.name}{times}{near}"


def groups(values: tuple[float, ...], size: int) -> Array:
    """The groups of these values, (n, G): all, or if there are too many, every count in several orders."""
    if len(values) ** size <= MOST:
        return np.array(list(product(values, repeat=size)))
    low, high = values
    first = np.where(np.tri(size + 1, size, -1) > 0, high, low)
    rng = np.random.default_rng(0)
    orders = [np.arange(size), np.arange(size)[::-1]]
    orders += [rng.permutation(size) for _ in range(_ORDERS - len(orders))]
    return np.concatenate([first[:, order] for order in orders])


def table_of(under: UnderTest, size: int) -> tuple[CountTable, float]:
    """The mean advantages by the number of successes, and the largest distance of the function's from them.

    The mean over orders has the same weight w as the function, even if the function depends on the order:
    w(p) = (1/G) Σᵢ E[Aᵢ | zᵢ = 1] - E[Aᵢ | zᵢ = 0].
    """
    rewards = groups((0.0, 1.0), size)
    count = len(rewards)
    advantages = under(rewards[:, None], np.zeros((count, 1, size)), np.zeros((count, 1)))[:, 0]
    successes = rewards.sum(axis=1).astype(int)
    rows = []
    for value in (1.0, 0.0):
        those = rewards == value
        sums = np.bincount(successes, (advantages * those).sum(axis=1), size + 1)
        rows.append(sums / np.maximum(np.bincount(successes, those.sum(axis=1), size + 1), 1))
    won, lost = rows
    means = np.where(rewards == 1, won[successes, None], lost[successes, None])
    return CountTable(won, lost), float(np.abs(advantages - means).max())


def table_of_function(function: Callable[..., object], size: int) -> tuple[str, CountTable]:
    """The name of an advantage function of (n, G) rewards, and its table.

    Raises:
        InputError: the result is not an array of finite numbers, or the function mixes groups, is random, or
            depends on the places of outputs in a group.
    """
    under = UnderTest(function, "batched", ("rewards",), None)
    try:
        table, apart = table_of(under, size)
    except Violation as violation:
        raise InputError(str(violation)) from None
    largest = max(np.abs(table.successes).max(), np.abs(table.failures).max())
    if apart > under.same * largest:
        raise InputError(
            f"{under.name} depends on the places of outputs in a group, so it is not a table by "
            f"the number of successes; ustat_pg.testing.assert_unbiased enumerates its mean"
        )
    return under.name, table


def namesake(table: CountTable) -> Namesake | None:
    """The estimator of which a table or its weight is a multiple; of several, that with factor nearest 1."""

    def whole(each: CountTable) -> Array:
        return np.append(each.successes[1:], each.failures[:-1])

    def weight(each: CountTable) -> Array:
        return each.delta

    for entries in (whole, weight):
        mine, found = entries(table), []
        for name, other in _named(table.group_size):
            theirs = entries(other)
            factor = float(mine @ theirs) / max(float(theirs @ theirs), 1e-300)
            apart = np.abs(mine - factor * theirs).max() / max(np.abs(mine).max(), 1e-300)
            if factor > 0 and apart <= _ALIKE:
                found.append(Namesake(name, factor, entries is whole, float(apart)))
        if found:
            return min(found, key=lambda each: round(abs(np.log(each.factor)), 3))
    return None


def _named(size: int) -> Iterator[tuple[str, CountTable]]:
    """The tables of the catalogue that need no numbers, and those of pass@k."""
    for name in (*catalogue().families, *(f"pass-at-k:{k}" for k in range(2, size + 1))):
        try:
            yield name, count_table(name, size)
        except InputError:
            continue


def climbed(under: UnderTest, size: int) -> str:
    """The objective of a function with rewards 0 and 1, in words; empty if it does not accept these."""
    try:
        table, apart = table_of(under, size)
    except Exception:
        # This text is added to a finding, which must not be lost.
        return ""
    if apart and 2**size > MOST:
        return ""
    w = table.weight(_RATES)
    if np.ptp(table.delta) <= _ALIKE * np.abs(table.delta).max():
        times = "" if f"{w[0]:.4g}" == "1" else f" times {w[0]:.4g}"
        return f" (with rewards 0 and 1 it is the gradient{times}, whatever the pass rate)"
    known = namesake(table)
    shown = ", ".join(f"{each:.3g} at p = {p:g}" for p, each in zip(_RATES, w, strict=True))
    named = "" if known is None else f", that of {known}"
    return f" (with rewards 0 and 1 it climbs w(p) times a prompt's gradient: w = {shown}{named})"
