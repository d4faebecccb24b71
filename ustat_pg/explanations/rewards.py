"""The objective that a weighted sum of several 0/1 rewards climbs at a prompt.

Which rewards of an output are 1 puts the output into one of 2ᴷ cells c, with probability π_c. In a group with
counts n of the cells its advantage is A_c(n). For every A,

    E ĝ = Σ_c u_c ∇π_c,    u_c = E A_c(m + e_c),    m ~ Multinomial(G-1, π) of the others.

With P(S) the chance that all rewards of S are 1, π_c is an alternating sum of P(S) over S ⊇ c, so that

    E ĝ = Σ_S w(S) ∇P(S),    w(S) = Σ_{c ⊆ S} (-1)^(|S| - |c|) u_c.

The plain weighted sum has w(S) equal to the weight if S is one reward, and 0 if S has more. If each reward is
divided by its own deviation (GDPO), w of one reward is its weight times the w(p) of a single reward, for any
correlation of rewards. If the sum is divided by its deviation, w of every S depends on all P.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, combinations_with_replacement, product
from math import comb
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import multinomial

from ..catalogue import Meaning, named, resolve
from ..display.numbers import readable
from ..display.shown import Shown
from ..estimators import advantages
from ..files.reading import read_json
from ..rounding import DERIVED
from ..validation import Array, InputError, argument, integer, number
from .effects import group_size_of
from .text import wrapped

_MOST_REWARDS = 8
"""The most rewards of an output, which have 256 cells."""
_MOST_NUMBERS = 2**23
"""The most rewards in all enumerated groups together."""

_WAYS = {
    "sum/deviation": ("std-ddof1", False),
    "each/deviation (GDPO)": ("std-ddof1", True),
    "sum (RLOO)": ("grpo", False),
}
"""The estimators that are always shown, and whether each reward is normalised by itself."""


@dataclass(frozen=True)
class RewardGradients(Shown):
    """The gradients that add up to the mean estimate at a prompt.

    Arguments:
        estimator: its name in the framework, or in this library.
        group_size: G.
        weights: weight of each reward, by name.
        rates: P(S) by the names of S, joined with ``+``.
        independent: whether P(S) is the product of the rates of its rewards.
        multiples: w(S) by S, for each way to combine rewards.
        single: the factors of single rewards if rewards stay independent as the policy changes, because ∇P(S)
            then follows from theirs; None if they are not independent.
        own: the way that the options use; None if it has no closed form.
        passed_over: names that were written and are not options of the catalogue.
    """

    estimator: str
    group_size: int
    weights: dict[str, float]
    rates: dict[str, float]
    independent: bool
    multiples: dict[str, dict[str, float]]
    single: dict[str, dict[str, float]] | None
    own: str | None
    passed_over: tuple[str, ...] = ()

    def __str__(self) -> str:
        weights = ", ".join(f"{name} {weight:g}" for name, weight in self.weights.items())
        how = "independent given the prompt" if self.independent else "with joint rates as given"
        own = "* marks these options" if self.own else "These options have no closed form here"
        ways = [way + "*" * (way == self.own) for way in self.multiples]
        lines = [
            f"{self.estimator}, G = {self.group_size}",
            f"  Rewards are 0 or 1, {how}; weights {weights}.",
            "",
            "The mean estimate of a prompt with these rates is a sum of gradients, each multiplied by",
            self._row("gradient of", "at", ways),
            *self._table(self.multiples),
            "",
        ]
        if self.single is not None:
            lines.append("If rewards stay independent as the policy changes, these add up to")
            lines += [*self._table(self.single), ""]
        lines.append(
            f"{own}. The numbers ignore an ε in the divisor, and one divisor for a whole batch."
        )
        if self.passed_over:
            names = ", ".join(self.passed_over)
            lines.append(f"Ignored, because the catalogue has no such option: {names}.")
        return "\n".join(map(wrapped, lines))

    def _table(self, multiples: Mapping[str, Mapping[str, float]]) -> list[str]:
        columns = [*multiples.values()]
        rows = {label: [readable(each[label], 4) for each in columns] for label in columns[0]}
        return [
            self._row(f"P({label})", readable(self.rates[label], 4), row)
            for label, row in rows.items()
        ]

    def _row(self, label: str, rate: str, cells: Sequence[str]) -> str:
        width = max(map(len, self.rates)) + 3
        columns = (
            f"{cell:>{len(way) + 3}}" for cell, way in zip(cells, self.multiples, strict=True)
        )
        return f"  {label:{max(width, 11)}}{rate:>8}{''.join(columns)}"


def explain_rewards(
    rates: Mapping[str, float] | str,
    estimator: Any,
    *,
    group_size: int | None = None,
    weights: Sequence[float] | str | None = None,
) -> RewardGradients:
    """Explain what several 0/1 rewards climb if they are summed or normalised separately.

    Arguments:
        rates: P(S) at a prompt by the names of S, ``{"format": 0.9, "correct": 0.2}``, as text or a JSON
            file; one rate for each reward, and either no joint rates or all of them, ``"format+correct":
            0.2``.
        estimator, group_size: as for :func:`~ustat_pg.explain`, except that the estimator cannot be a
            function.
        weights: weights of the rewards in this order (default: the weights in the trainer's options, or 1).

    Raises:
        InputError: there are fewer than two rewards, rates contradict each other, the number of weights is
            wrong, the group is too large, or :func:`~ustat_pg.explain` would refuse the estimator.

    >>> found = explain_rewards("format=.9,correct=.2", "trl num_generations=8")
    >>> {s: round(w, 3) for s, w in found.multiples["sum/deviation"].items()}
    {'format': 1.505, 'correct': 1.505, 'format+correct': 0.176}
    >>> {s: round(w, 3) for s, w in found.multiples["each/deviation (GDPO)"].items()}
    {'format': 2.177, 'correct': 1.971, 'format+correct': 0.0}
    """
    name = named(estimator)
    meaning = None if name else resolve(estimator, group_size)
    size = integer("group size", group_size_of(group_size, meaning), 2)
    names, joint, independent = _rates(rates)
    known = _weights(weights, meaning, names)
    bits = _cells(len(names))
    # P(S) is the sum of the cells that contain S, so the cells are P times the transpose of this.
    above: Array = np.ones((1, 1))
    for _ in names:
        above = np.asarray(np.kron(above, [[1.0, 0.0], [-1.0, 1.0]]))
    cells = joint @ above
    if cells.min() < -DERIVED:
        only = _name(names, bits[cells.argmin()]) or "none"
        raise InputError(
            f"these rates contradict each other: the chance of {only} alone would be "
            f"{readable(cells.min(), 4)}"
        )
    own, factor, title = _own(name, meaning)
    ways = dict(_WAYS)
    if own is not None and own not in ways.values():
        ways = {"these options": own, **ways}
    multiples = {}
    for way, (formula, apart) in ways.items():
        gains = _gains(formula, apart, bits, np.maximum(cells, 0), known, size)
        multiples[way] = above @ gains * (factor if (formula, apart) == own else 1.0)
    shown = sorted(range(1, len(bits)), key=lambda i: (bits[i].sum(), [*-bits[i]]))
    labels = {_name(names, bits[i]): i for i in shown}
    # P(S) is then a product of rates; its slope in one rate is the product of the others.
    alone = np.array([joint[labels[name]] for name in names])
    beside = np.where(np.eye(len(names)) == 1, 1.0, alone)
    slopes = np.where(bits, beside[:, None], 1.0).prod(axis=-1) * bits.T

    def by_label(values: Mapping[str, Array], of: Mapping[str, int]) -> dict[str, dict[str, float]]:
        return {
            way: {label: float(each[i].round(12) + 0.0) for label, i in of.items()}
            for way, each in values.items()
        }

    single = {way: slopes @ each for way, each in multiples.items()}
    return RewardGradients(
        estimator=title,
        group_size=size,
        weights=dict(zip(names, known.tolist(), strict=True)),
        rates={label: float(joint[i]) for label, i in labels.items()},
        independent=independent,
        multiples=by_label(multiples, labels),
        single=by_label(single, {name: k for k, name in enumerate(names)}) if independent else None,
        own=next((way for way, each in ways.items() if each == own), None),
        passed_over=() if meaning is None else meaning.passed_over,
    )


def _own(name: str | None, meaning: Meaning | None) -> tuple[tuple[str, bool] | None, float, str]:
    """The estimator of the options, whether it normalises each reward, its factor and its name."""
    if meaning is None:
        assert name is not None
        return (name, False), 1.0, name
    row = meaning.row
    title = f"{meaning.framework.title} {meaning.written}".rstrip() + f": {row.name}"
    if row.each is not None:
        return (row.each, True), 1.0, title
    # A clipped table, or a table by counts, is defined for one 0/1 reward only.
    alone = row.estimator is None or row.binary or meaning.clip or row.dropped
    return (None if alone else (str(meaning.estimator), False)), meaning.factor, title


def _gains(name: str, apart: bool, bits: Array, cells: Array, weights: Array, size: int) -> Array:
    """u of each cell, (cells,): its mean advantage when the others are drawn from the cells."""
    if not apart:
        return _mean_advantages(name, (bits @ weights).round(12), cells, size)
    parts = (_mean_advantages(name, column, cells, size) for column in bits.T)
    return np.asarray(weights @ np.array([*parts]))


def _mean_advantages(name: str, rewards: Array, chances: Array, size: int) -> Array:
    """The mean advantage of an output of each cell, a function of the rewards only, (cells,)."""
    values, places = np.unique(rewards, return_inverse=True)
    groups = comb(size + len(values) - 2, size - 1)
    if groups * size > _MOST_NUMBERS:
        raise InputError(
            f"groups of {size} with {len(values)} different sums of rewards are too many to "
            f"enumerate: take a smaller group"
        )
    drawn = combinations_with_replacement(range(len(values)), size - 1)
    others = np.fromiter(chain.from_iterable(drawn), int, groups * (size - 1)).reshape(groups, -1)
    counts = (others[..., None] == np.arange(len(values))).sum(1, dtype=float)
    shares = np.asarray(np.bincount(places, chances / chances.sum()), dtype=np.float64)
    weights = multinomial.pmf(counts, size - 1, shares)
    beside = values[others]
    means = [
        weights @ advantages(name, np.insert(beside, 0, value, axis=1))[:, 0] for value in values
    ]
    return np.array(means)[places]


def _name(names: Sequence[str], bits: Array) -> str:
    return "+".join(name for name, bit in zip(names, bits, strict=True) if bit)


def _rates(rates: Mapping[str, float] | str) -> tuple[list[str], Array, bool]:
    """The rewards' names, P(S) in the order of the cells, (2ᴷ,), and whether rewards are independent."""
    if isinstance(rates, str):
        if "=" in rates:
            parts = [part.partition("=") for part in rates.split(",")]
            written: dict[str, Any] = {names.strip(): value for names, _, value in parts}
            rates = written
        else:
            rates = read_json(Path(rates))
    if not isinstance(rates, Mapping):
        raise InputError("reward rates must be a rate by each reward's name: format=.9,correct=.2")
    names = [key for key in rates if "+" not in key]
    if not 2 <= len(names) <= _MOST_REWARDS:
        raise InputError(
            f"reward rates name {len(names)} rewards: write from 2 to {_MOST_REWARDS}, "
            f"format=.9,correct=.2; for one reward write {argument('pass_rates', 'RATES')}"
        )
    bits = _cells(len(names))
    labels = [_name(names, each) for each in bits]
    known = {_sorted(key, names): _rate(key, value) for key, value in rates.items()}
    unknown = [key for key in known if key not in labels]
    missing = [label for label in labels[1:] if label not in known]
    if unknown or (missing and len(known) > len(names)):
        raise InputError(
            f"reward rates {'name' if unknown else 'lack'} {[*unknown, *missing][0]!r}: write a rate for "
            "each reward, and for none or all of their sets, format+correct=.2"
        )
    single = [known[name] for name in names]
    alone = np.where(bits, single, 1.0).prod(axis=1)
    joint = alone if missing else np.array([1.0, *map(known.__getitem__, labels[1:])])
    return names, joint, bool(missing)


def _sorted(label: str, names: Sequence[str]) -> str:
    """The label of a set with its rewards in order; other labels are returned unchanged."""
    parts = label.split("+")
    return "+".join(sorted(parts, key=names.index)) if {*parts} <= {*names} else label


def _cells(rewards: int) -> Array:
    """Which rewards are 1 in each cell, (cells, K)."""
    return np.array([*product((0.0, 1.0), repeat=rewards)])


def _rate(name: str, value: Any) -> float:
    try:
        value = float(value)
    except (TypeError, ValueError):
        raise InputError(
            f"the rate of {name} is {value!r}: it must be a number in [0, 1]"
        ) from None
    return number(f"the rate of {name}", value, minimum=0.0, maximum=1.0)


def _weights(
    weights: Sequence[float] | str | None, meaning: Meaning | None, names: Sequence[str]
) -> Array:
    """The weights of the rewards, (K,)."""
    if weights is None and meaning is not None:
        for option in meaning.framework.of_kind("reward"):
            if option.several and meaning.values[option.name] != "none":
                weights = json.loads(meaning.values[option.name])
    if weights is None:
        weights = [1.0] * len(names)
    try:
        parts = weights.split(",") if isinstance(weights, str) else weights
        known = np.array([float(each) for each in parts])
    except (TypeError, ValueError):
        raise InputError(f"weights are {weights!r}: write a number for each reward, 1,.5") from None
    if len(known) != len(names) or not np.isfinite(known).all():
        raise InputError(
            f"weights are {known.tolist()}: write a finite number for each reward: {', '.join(names)}"
        )
    return known
