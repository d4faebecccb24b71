"""Functionals of the law of a gap on whole runs: its distance from a predicted law, or from another.

Runs are counted in the bins of a probability integral transform; there is no exact value.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log, sqrt

import numpy as np

from ustat_pg.engines import Cell, Quantity

from ..engines import Binned, Training
from ..engines.runs.cell import BINS
from .functionals import Functional, Sums
from .intervals import Forecast, Interval
from .pits import Pit
from .planning import MOST, replications_needed
from .verdict import Evidence


@dataclass(frozen=True)
class _Law(Functional):
    """The law of a gap on one cell of whole runs. It has no exact value."""

    cell: Training
    pit: Binned

    @property
    def cells(self) -> tuple[Cell, ...]:
        return (self.cell,)

    @property
    def quantities(self) -> tuple[Quantity, ...]:
        return (self.pit,)

    @property
    def rounding(self) -> float:
        """The rounding of the distance: the cdf's own error."""
        return 1e-9

    def exact(self, sums: Sums) -> float:
        raise NotImplementedError("a distribution is compared by simulation")

    def _counts(self, sums: Sums, pit: Binned) -> tuple[int, np.ndarray]:
        """The number of runs, and how many of them lie in each bin of a transform."""
        block = sums[self.cell.name][1]
        return block.n, block.counts[pit.label]


@dataclass(frozen=True)
class LawDistance(_Law):
    """sup |F - F₀|: the distance of the gap's law F from a predicted one F₀.

    By the probability integral transform it is that of F₀(gap) from the uniform law. The interval is
    that of Dvoretzky, Kiefer and Wolfowitz with Massart's constant, √(ln(2/α)/(2n)), at every n,
    and a bin's width for what lies between the edges of the histogram. It has no exact value.
    """

    def evidence(self, sums: Sums, alpha: float, pilots: Sums) -> Evidence:
        n, counts = self._counts(sums, self.pit)
        off = float(np.abs(np.cumsum(counts) / n - np.arange(1, BINS + 1) / BINS).max())
        band = _band(n, alpha)
        interval = Interval(max(off - band, 0.0), min(off + band + 1 / BINS, 1.0))
        return Evidence(off, interval, 0.5 / sqrt(n), n, alpha)

    def needed(self, sums: Sums, margin: float, alpha: float, prediction: float) -> int:
        return _band_replications(margin - 1 / BINS, alpha)


@dataclass(frozen=True)
class LawExcess(_Law):
    """sup (F₁ - F₂) of two gaps' laws: 0 if the second is everywhere the smaller cdf, that is if the
    first gap is stochastically the smaller one.

    Arguments:
        cell: both estimators run in it.
        pit, second: transforms by one and the same law, which only sets the edges of the bins.
    """

    second: Pit

    @property
    def quantities(self) -> tuple[Quantity, ...]:
        return (self.pit, self.second)

    def evidence(self, sums: Sums, alpha: float, pilots: Sums) -> Evidence:
        """Each law in a band of its own, √(ln(4/α)/(2n)), at half the rate."""
        (n, one), (_, other) = (self._counts(sums, pit) for pit in (self.pit, self.second))
        first, second = np.cumsum(one) / n, np.cumsum(other) / n
        excess = max(float((first - second).max()), 0.0)
        # Within a bin the first law is below its right edge's value, the second above its left's.
        between = max(float((first - np.append(0.0, second[:-1])).max()), 0.0)
        band = 2 * _band(n, alpha / 2)
        interval = Interval(max(excess - band, 0.0), min(between + band, 1.0))
        return Evidence(excess, interval, sqrt(0.5 / n), n, alpha)

    def needed(self, sums: Sums, margin: float, alpha: float, prediction: float) -> int:
        return _band_replications((margin - 2 / BINS) / 2, alpha / 2)


@dataclass(frozen=True)
class LawShare(_Law):
    """P(F₀(gap) <= level): the share of runs below a quantile of the predicted law, for figures.

    Arguments:
        cell: the runs.
        pit: the transform.
        level: probability between 0 and 1; taken to the nearest edge of a bin.
    """

    level: float

    def evidence(self, sums: Sums, alpha: float, pilots: Sums) -> Evidence:
        n, counts = self._counts(sums, self.pit)
        share = float(counts[: round(self.level * BINS)].sum() / n)
        variance = share * (1 - share) * n / max(n - 1, 1)
        interval = self._forecast(self.level).interval(n, share, variance, alpha)
        return Evidence(share, interval, sqrt(variance / n), n, alpha)

    @staticmethod
    def _forecast(share: float) -> Forecast:
        return Forecast(share, share * (1 - share), 0.0, 1.0)

    def needed(self, sums: Sums, margin: float, alpha: float, prediction: float) -> int:
        return replications_needed(margin, self._forecast(prediction), alpha)


def _band(n: int, alpha: float) -> float:
    """Half-width of a two-sided Dvoretzky-Kiefer-Wolfowitz band."""
    return sqrt(log(2 / alpha) / (2 * n))


def _band_replications(margin: float, alpha: float) -> int:
    """The least n whose band is at most that wide on one side."""
    return int(np.ceil(log(2 / alpha) / (2 * margin**2))) if margin > 0 else MOST
