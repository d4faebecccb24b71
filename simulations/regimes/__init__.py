"""Regimes that claims do not choose: each run draws from its seed group sizes to 64, batches to 10,000,
designs, options away from their default and extremes of what is given, and holds what public functions
say there to another way of reckoning: sums over counts, closed sums of other formulas, quadrature, search.

Nothing is drawn of these and no interval is made, so that they cost a moment and no false alarm. A
file here asks of one kind of function; :func:`checks` gives a result those of its stem.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from math import exp, log
from typing import Any
from zlib import crc32

import numpy as np

from ustat_pg.checks import equal
from ustat_pg.checks.verdict import ROUNDING
from ustat_pg.engines import GradientCell
from ustat_pg.experiment import Check
from ustat_pg.experiment.functionals import EverySample

from ..problems import Suite, mse_of, two_valued
from ..problems.entry import Entry

__all__ = ["MODULES", "NEAR", "Drawn", "checks"]

MODULES = ("baselines", "estimators", "gradients", "ground", "laws", "lengths", "sizes")
"""The files, whose tables ``ASKED`` name what is asked of each stem."""

NEAR = 1e-9
"""The relative difference that rounding may make where no docstring states another."""

DRAWS = {"smoke": 1, "quick": 2, "full": 8}
"""Regimes of each kind, by the size of a run."""

_BESIDE = GradientCell(two_valued([0.5, 0.5], [0.8, 0.2]), 2)
"""The cell that a run measures beside a number that needs no measuring; it is not read."""


@dataclass(frozen=True)
class Drawn:
    """One draw of regimes: a generator of its own, and the name of its checks' problem."""

    rng: np.random.Generator
    name: str

    def check(self, what: str, predicted: Any, reckoned: Any, limit: float = NEAR) -> Check:
        """A check that a function's value, a number or an array, is the one reckoned otherwise, up to a limit
        relative to the largest entry reckoned.
        """
        claimed, known = np.asarray(predicted, dtype=float), np.asarray(reckoned, dtype=float)
        if claimed.shape != known.shape:
            raise ArithmeticError(f"{what}: the shapes are {claimed.shape} and {known.shape}")
        size = float(np.abs(known).max(initial=0.0)) or 1.0
        # An array is compared as a sum with unequal weights, so that no two entries stand for one another.
        weights = np.cos(np.arange(known.size)) if known.ndim else np.ones(1)
        one, other = (float(weights @ side.ravel()) for side in (claimed, known))
        functional = EverySample(_BESIDE, ((mse_of("grpo"), 0.0),), other, limit * size)
        statement = equal(one, scale=limit * size / ROUNDING)
        return Entry(self.name, "generated", _BESIDE.problem).check(what, functional, statement)

    def size(self, least: int, most: int) -> int:
        """A whole number, on the scale of logarithms, so that small and large ones come."""
        return round(exp(self.rng.uniform(log(least), log(most))))


Asked = dict[str, tuple[Callable[[Drawn], Iterator[Check]], ...]]
"""The makers of checks, by stem."""


def checks(stem: str, suite: Suite) -> Iterator[Check]:
    """The checks that a result's claim has beside its own."""
    for module in MODULES:
        inputs: Asked = import_module(f".{module}", __name__).ASKED
        for question in inputs.get(stem, ()):
            for number in range(DRAWS[suite.size]):
                seed = [suite.seed, number, crc32(f"{module}.{question.__name__}".encode())]
                rng = np.random.default_rng(seed)
                yield from question(
                    Drawn(rng, f"{question.__name__.strip('_')}#{suite.seed}.{number}")
                )
