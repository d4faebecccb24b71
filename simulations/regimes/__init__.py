"""Regimes that claims do not choose: each run draws from its seed group sizes to 64, batches to 10,000,
designs, options away from their default and extremes of what is given, and holds what public functions
say there to another way of reckoning: sums over counts, closed sums of other formulas, search.

Nothing is drawn of these and no interval is made, so that they cost a moment and no false alarm: what is
reckoned comes with its own error, which is made of the terms that were added up and not of their sum, for
terms may cancel. A place where something is least, and the ends of a range, are compared by what is
reached there, or exactly with each place that rounding lets be one. A file here asks of one kind of
function; :func:`checks` gives a result those of its stem.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from math import exp, inf, log
from typing import Any
from zlib import crc32

import numpy as np

from ustat_pg.engines import GradientCell

from ..evidence import Check, equal
from ..evidence.functionals import EverySample
from ..evidence.verdict import ROUNDING
from ..problems import Suite, mse_of, two_valued
from ..problems.entry import Entry

__all__ = ["MODULES", "Drawn", "Known", "checks", "one_of", "ratio", "rounding"]

MODULES = ("baselines", "estimators", "gradients", "ground", "laws", "lengths", "sizes")
"""The files, whose tables ``ASKED`` name what is asked of each stem."""

ROUNDED = 1e-10
"""What rounding makes of a term, relative to it: the chance of a group of 64, by logarithms, has thirteen
digits, a law of the gap twelve; the others are for what is made of them.
"""

Known = tuple[Any, Any]
"""What is reckoned, a number or an array, and how far it may be off."""

_BESIDE = GradientCell(two_valued([0.5, 0.5], [0.8, 0.2]), 2)
"""The cell that a run measures beside a number that needs no measuring; it is not read."""


@dataclass(frozen=True)
class Drawn:
    """One draw of regimes: a generator of its own, and the name of its checks' problem."""

    rng: np.random.Generator
    name: str

    def check(self, what: str, predicted: Any, reckoned: Any, error: Any = 0.0) -> Check:
        """A check that a function's value, a number or an array, is the one reckoned otherwise; of an array
        the entry that is furthest off, in units of its own error.

        Arguments:
            what: what is compared.
            predicted: the function's value.
            reckoned: the same otherwise.
            error: how far that may be off, of its shape or one number for all entries.
        """
        claimed, known = np.asarray(predicted, dtype=float), np.asarray(reckoned, dtype=float)
        if claimed.shape != known.shape:
            raise ArithmeticError(f"{what}: the shapes are {claimed.shape} and {known.shape}")
        limits = np.broadcast_to(np.asarray(error, dtype=float), known.shape)
        off = np.abs(claimed - known)
        # The largest of numbers with NaN among them is NaN.
        times = np.divide(off, limits, out=np.where(off == 0, 0.0, inf), where=limits > 0)
        place = np.unravel_index(times.argmax(), times.shape)
        one, other, limit = (float(side[place]) for side in (claimed, known, limits))
        functional = EverySample(_BESIDE, ((mse_of("grpo"), 0.0),), other, limit)
        statement = equal(one, scale=limit / ROUNDING)
        return Entry(self.name, "generated", _BESIDE.problem).check(what, functional, statement)

    def size(self, least: int, most: int) -> int:
        """A whole number, on the scale of logarithms, so that small and large ones come."""
        return round(exp(self.rng.uniform(log(least), log(most))))


def rounding(*sizes: Any) -> Any:
    """What rounding may make of a sum of terms of these sizes."""
    return ROUNDED * sum(np.abs(size) for size in sizes)


def ratio(top: Known, bottom: Known) -> Known:
    """A quotient, and its error to first order."""
    value = top[0] / bottom[0]
    return value, (top[1] + np.abs(value) * bottom[1]) / np.abs(bottom[0]) + rounding(value)


def one_of(predicted: Sequence[float], known: Iterable[Sequence[float]]) -> Sequence[float]:
    """Of the answers between which rounding decides, the one that is predicted; else the first."""
    answers = [tuple(answer) for answer in known]
    return tuple(predicted) if tuple(predicted) in answers else answers[0]


Asked = dict[str, tuple[Callable[[Drawn], Iterator[Check]], ...]]
"""The makers of checks, by stem."""


def drawn(question: Callable[[Drawn], Iterator[Check]], seed: int, number: int) -> Drawn:
    """The draw of a question's regimes by a run's seed and by its number among them."""
    name = question.__name__
    address = crc32(f"{question.__module__.rpartition('.')[2]}.{name}".encode())
    return Drawn(np.random.default_rng([seed, number, address]), f"{name}#{seed}.{number}")


def checks(stem: str, suite: Suite) -> Iterator[Check]:
    """The checks that a result's claim has beside its own."""
    for module in MODULES:
        inputs: Asked = import_module(f".{module}", __name__).ASKED
        for question in inputs.get(stem, ()):
            for number in range(suite.sized(1, 2, 8)):
                yield from question(drawn(question, suite.seed, number))
