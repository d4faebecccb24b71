"""Functionals: the number that a check estimates, and the evidence on it from a block's sums.

They are a mean, a combination of means (:class:`Linear`), a ratio, or the slope of logarithms over cells.
Each knows the range of one replication. Functionals of a gap's law are in ``laws``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf, isfinite, isnan, log, nan, sqrt
from typing import ClassVar

import numpy as np
from scipy.optimize import brentq

from ustat_pg.engines import Cell, MomentSums, Quantity
from ustat_pg.rounding import SUM
from ustat_pg.validation import InputError

from .intervals import Forecast, NearlyNormal
from .planning import MOST, replications_needed
from .verdict import Evidence

_RESERVE = 1.25
"""The factor on a pilot's variance in a forecast, because it is itself an estimate."""

Sums = Mapping[str, tuple[Sequence[Quantity], MomentSums]]


class Functional(ABC):
    """A number that a check estimates, computed from the means of quantities on cells."""

    errs: ClassVar[bool] = True
    """Whether random draws can mislead; such a check uses a share of the claim's false alarms."""

    @property
    @abstractmethod
    def cells(self) -> tuple[Cell, ...]:
        """The cells of the measurements."""

    @property
    @abstractmethod
    def quantities(self) -> tuple[Quantity, ...]:
        """The quantities measured on each of them."""

    @property
    def parts(self) -> tuple[Functional, ...]:
        """The parts, each with quantities that are measured on its own cells only."""
        return (self,)

    @property
    @abstractmethod
    def rounding(self) -> float:
        """The rounding error of the value."""

    @abstractmethod
    def exact(self, sums: Sums) -> float:
        """The value, from enumerated means."""

    @abstractmethod
    def evidence(self, sums: Sums, alpha: float, pilots: Sums) -> Evidence:
        """Estimate and interval, from the sums of draws.

        Arguments:
            sums: sums of the draws, by cell.
            alpha: the rate at which the interval may miss.
            pilots: sums of other draws, for which intervals are designed.
        """

    @abstractmethod
    def needed(self, sums: Sums, margin: float, alpha: float, prediction: float) -> int:
        """The replications for an interval of a half-width, from a pilot's sums."""


@dataclass(frozen=True)
class Known(Functional):
    """A number of a problem from sums or a search, without draws; it is the same for both kinds
    of evidence.

    Arguments:
        value: the number.
    """

    value: float
    errs: ClassVar[bool] = False

    @property
    def cells(self) -> tuple[Cell, ...]:
        return ()

    @property
    def quantities(self) -> tuple[Quantity, ...]:
        return ()

    @property
    def rounding(self) -> float:
        return 0.0

    def exact(self, sums: Sums) -> float:
        return self.value

    def evidence(self, sums: Sums, alpha: float, pilots: Sums) -> Evidence:
        return Evidence.between(self.value, self.value, self.value)

    def needed(self, sums: Sums, margin: float, alpha: float, prediction: float) -> int:
        return 0


class OfPoints(Functional):
    """A number computed from several functionals, which may use several cells."""

    points: Sequence[Functional]
    """The functionals."""

    @property
    def cells(self) -> tuple[Cell, ...]:
        return tuple(dict.fromkeys(cell for point in self.points for cell in point.cells))

    @property
    def quantities(self) -> tuple[Quantity, ...]:
        return tuple(quantity for point in self.points for quantity in point.quantities)

    @property
    def parts(self) -> tuple[Functional, ...]:
        # Another point's cell may have fewer steps than a quantity needs.
        return tuple(part for point in self.points for part in point.parts)

    @abstractmethod
    def of(self, values: np.ndarray) -> float:
        """The number for given values (n,) of the functionals."""

    def number(self, values: Sequence[float]) -> float:
        """The number for these values; NaN if one of them is not finite."""
        return float(self.of(np.asarray(values))) if np.isfinite(values).all() else nan

    def exact(self, sums: Sums) -> float:
        return self.number([point.exact(sums) for point in self.points])

    def evidence(self, sums: Sums, alpha: float, pilots: Sums) -> Evidence:
        """The evidence from that on the functionals; all intervals are valid except at the rate alpha."""
        rate = alpha / len(self.points)
        parts = [point.evidence(sums, rate, pilots) for point in self.points]
        estimate = self.number([part.estimate for part in parts])
        if isnan(estimate):
            return Evidence.unknown(self.count(parts), alpha)
        return Evidence.between(estimate, *self.reach(parts), self.count(parts), alpha)

    def count(self, parts: Sequence[Evidence]) -> int:
        """The replications of all functionals."""
        return sum(part.replications for part in parts)

    @abstractmethod
    def reach(self, parts: Sequence[Evidence]) -> tuple[float, float, float]:
        """The ends of the number's interval and its standard error, from the functionals' evidence."""


@dataclass(frozen=True)
class Linear(Functional):
    """constant + Σ weight · E quantity on one cell."""

    cell: Cell
    weights: tuple[tuple[Quantity, float], ...]
    constant: float = 0.0

    @property
    def cells(self) -> tuple[Cell, ...]:
        return (self.cell,)

    @property
    def quantities(self) -> tuple[Quantity, ...]:
        return tuple(quantity for quantity, _ in self.weights)

    @cached_property
    def range(self) -> tuple[float, float]:
        """Ends of the range of one replication."""
        ends = [
            sorted(weight * end for end in self.cell.ends(quantity)) if weight else [0.0, 0.0]
            for quantity, weight in self.weights
        ]
        return self.constant + sum(low for low, _ in ends), self.constant + sum(
            high for _, high in ends
        )

    def times(self, factor: float) -> Linear:
        """A multiple of the combination."""
        weights = tuple((quantity, factor * weight) for quantity, weight in self.weights)
        return Linear(self.cell, weights, factor * self.constant)

    def forecast(self, pilots: Sums) -> Forecast:
        """The forecast of one replication from a pilot."""
        _, mean, variance = self.moments(pilots)
        low, high = self.range
        kind = Forecast if self.cell.bounded else NearlyNormal
        return kind(min(max(mean, low), high), _RESERVE * variance, low, high)

    @property
    def rounding(self) -> float:
        return sum(abs(weight) * self.cell.rounding(quantity) for quantity, weight in self.weights)

    def moments(self, sums: Sums) -> tuple[int, float, float]:
        """Count, mean and variance of one replication."""
        labels, block = sums[self.cell.name]
        place = {quantity: i for i, quantity in enumerate(labels)}
        # Uses only the needed quantities, because other quantities of the block may be NaN.
        places = [place[quantity] for quantity, _ in self.weights]
        vector = np.array([weight for _, weight in self.weights])
        variance = float(vector @ block.covariance[np.ix_(places, places)] @ vector)
        return block.n, self.constant + float(vector @ block.mean[places]), max(variance, 0.0)

    def exact(self, sums: Sums) -> float:
        return self.moments(sums)[1]

    def evidence(self, sums: Sums, alpha: float, pilots: Sums) -> Evidence:
        n, mean, variance = self.moments(sums)
        interval = self.forecast(pilots).interval(n, mean, variance, alpha)
        return Evidence.between(mean, interval.low, interval.high, sqrt(variance / n), n, alpha)

    def needed(self, sums: Sums, margin: float, alpha: float, prediction: float) -> int:
        return replications_needed(margin, self.forecast(sums), alpha)


def mean_of(cell: Cell, quantity: Quantity) -> Linear:
    """The mean of one quantity."""
    return Linear(cell, ((quantity, 1.0),))


@dataclass(frozen=True)
class EverySample(Linear):
    """A mean of squares that is 0 because every sample's square is 0.

    One different sample refutes an identity, and samples never refute a true one, so the
    interval is only the mean.

    Arguments:
        cell, weights, constant: those of a :class:`Linear`.
        limit: the means that count as rounding.
    """

    limit: float = 0.0
    errs: ClassVar[bool] = False

    @property
    def rounding(self) -> float:
        return self.limit

    def evidence(self, sums: Sums, alpha: float, pilots: Sums) -> Evidence:
        n, mean, _ = self.moments(sums)
        return Evidence.between(mean, mean, mean, replications=n, rounding=self.limit)

    def needed(self, sums: Sums, margin: float, alpha: float, prediction: float) -> int:
        return self.cell.block


@dataclass(frozen=True)
class Ratio(Functional):
    """E numerator / E denominator, both combinations on the same cell, with a positive denominator.

    Arguments:
        numerator, denominator: the two sides.
        size: the denominator's predicted value; rounding errors are relative to it.
    """

    numerator: Linear
    denominator: Linear
    size: float = inf

    def __post_init__(self) -> None:
        if self.numerator.cell != self.denominator.cell:
            raise InputError("a ratio's two sides must come from the same cell")

    @property
    def cells(self) -> tuple[Cell, ...]:
        return self.numerator.cells

    @property
    def quantities(self) -> tuple[Quantity, ...]:
        return self.numerator.quantities + self.denominator.quantities

    @property
    def rounding(self) -> float:
        """The rounding of the ratio, which is assumed to be below 10."""
        return SUM + (self.numerator.rounding + 10 * self.denominator.rounding) / self.size

    def _excess(self, ratio: float) -> Linear:
        """Numerator - ratio · denominator, of mean zero at the true ratio."""
        weights = defaultdict[Quantity, float](float)
        for side, factor in ((self.numerator, 1.0), (self.denominator, -ratio)):
            for quantity, weight in side.weights:
                # For a quantity on both sides, the range is that of the sum.
                weights[quantity] += factor * weight
        constant = self.numerator.constant - ratio * self.denominator.constant
        return Linear(self.numerator.cell, tuple(weights.items()), constant)

    def exact(self, sums: Sums) -> float:
        bottom = self.denominator.exact(sums)
        return self.numerator.exact(sums) / bottom if bottom else nan

    def evidence(self, sums: Sums, alpha: float, pilots: Sums) -> Evidence:
        """The ratios that a test of their excess does not reject (Fieller 1954)."""
        bottom, ratio = self.denominator.evidence(sums, alpha, pilots), self.exact(sums)
        n = bottom.replications
        if bottom.interval.low <= 0 or not isfinite(ratio):
            # If the denominator may be 0, the ratio has no bound.
            return Evidence.unknown(n, alpha)

        def beyond(value: float) -> float:
            """The distance of 0 from the interval of the excess; positive if the value is rejected."""
            interval = self._excess(value).evidence(sums, alpha, pilots).interval
            return max(interval.low, -interval.high)

        def end(sign: float) -> float:
            step = max(abs(ratio), 1e-12) * 1e-3
            while beyond(ratio + sign * step) <= 0:
                step *= 2
                if step > 1e12 * max(abs(ratio), 1e-12):
                    return sign * inf
            return float(brentq(beyond, ratio, ratio + sign * step, xtol=1e-14))

        low, high = (ratio, ratio) if beyond(ratio) >= 0 else (end(-1.0), end(1.0))
        error = self._excess(ratio).evidence(sums, alpha, pilots).standard_error
        return Evidence.between(ratio, low, high, error / bottom.estimate, n, alpha)

    def needed(self, sums: Sums, margin: float, alpha: float, prediction: float) -> int:
        bottom = self.denominator.exact(sums)
        if not margin * bottom > 0:
            return MOST  # a pilot whose denominator is rounding noise
        # Both ends of the interval must be within the margin; the reserve covers its asymmetry.
        return self._excess(prediction).needed(sums, 0.9 * margin * bottom, alpha, 0.0)


@dataclass(frozen=True)
class LogSlope(OfPoints):
    """The least-squares slope of log(functional) on given abscissae, with one cell each.

    Arguments:
        abscissae: numbers, at least two.
        points: the functionals.
        predicted: their positive values, from which replications are planned.
    """

    abscissae: tuple[float, ...]
    points: tuple[Point, ...]
    predicted: tuple[float, ...]

    @property
    def rounding(self) -> float:
        """The rounding error of a logarithm's slope."""
        return SUM + sum(
            abs(float(weight)) * point.rounding / value
            for weight, point, value in zip(self._weights, self.points, self.predicted, strict=True)
        )

    @property
    def _weights(self) -> np.ndarray:
        centred = np.array(self.abscissae) - np.mean(self.abscissae)
        return np.asarray(centred / (centred**2).sum())

    def of(self, values: np.ndarray) -> float:
        return float(self._weights @ np.log(values)) if (values > 0).all() else nan

    def reach(self, parts: Sequence[Evidence]) -> tuple[float, float, float]:
        """The interval, by interval arithmetic on the points' intervals."""
        low = high = variance = 0.0
        for weight, part in zip(self._weights, parts, strict=True):
            if weight == 0:
                continue
            bottom = log(part.interval.low) if part.interval.low > 0 else -inf
            top = log(part.interval.high)
            low += weight * (bottom if weight > 0 else top)
            high += weight * (top if weight > 0 else bottom)
            variance += (weight * part.standard_error / part.estimate) ** 2
        return float(low), float(high), sqrt(variance)

    def needed(self, sums: Sums, margin: float, alpha: float, prediction: float) -> int:
        share = margin / float(np.abs(self._weights).sum())
        # A relative half-width ε moves the lower logarithm by -log(1-ε), which is the larger side.
        relative = 0.95 * (1 - float(np.exp(-share)))
        return max(
            point.needed(sums, relative * value, alpha / len(self.points), value)
            for point, value in zip(self.points, self.predicted, strict=True)
        )


@dataclass(frozen=True)
class Extrapolation(OfPoints):
    """Σ weight · point over several cells, for example Richardson's 2 f(2n) - f(n).

    Arguments:
        points: functionals, on one cell each.
        shares: their weights.
    """

    points: tuple[Linear, ...]
    shares: tuple[float, ...]

    @property
    def rounding(self) -> float:
        return sum(abs(s) * p.rounding for s, p in zip(self.shares, self.points, strict=True))

    def of(self, values: np.ndarray) -> float:
        return sum(s * value for s, value in zip(self.shares, values.tolist(), strict=True))

    def reach(self, parts: Sequence[Evidence]) -> tuple[float, float, float]:
        """The interval, by interval arithmetic on the points' intervals."""
        low = high = variance = 0.0
        for share, part in zip(self.shares, parts, strict=True):
            ends = share * part.interval.low, share * part.interval.high
            low, high = low + min(ends), high + max(ends)
            variance += (share * part.standard_error) ** 2
        return low, high, sqrt(variance)

    def needed(self, sums: Sums, margin: float, alpha: float, prediction: float) -> int:
        half_width, rate = margin / sum(map(abs, self.shares)), alpha / len(self.points)
        return max(point.needed(sums, half_width, rate, prediction) for point in self.points)


@dataclass(frozen=True)
class Eigenvalue(OfPoints):
    """Σ sign · (an eigenvalue of a symmetric matrix), the same one of each matrix.

    Arguments:
        matrices: lower triangles of matrices, row by row.
        signs: a number for each matrix.
        place: the index of the eigenvalue in ascending order.
    """

    matrices: tuple[tuple[Linear | Extrapolation, ...], ...]
    signs: tuple[float, ...]
    place: int

    @property
    def points(self) -> Sequence[Linear | Extrapolation]:  # type: ignore[override]
        return tuple(entry for matrix in self.matrices for entry in matrix)

    def _size(self, errors: Sequence[float]) -> float:
        """The largest error of the value if every entry has this error.

        No eigenvalue of a symmetric matrix moves by more than the Frobenius norm of the change (Weyl).
        """
        rows, _ = np.tril_indices(self._rank)
        twice = np.where(rows == np.tril_indices(self._rank)[1], 1.0, 2.0)
        size = np.asarray(errors).reshape(len(self.matrices), -1)
        return float(np.abs(self.signs) @ np.sqrt((twice * size**2).sum(axis=1)))

    @property
    def _rank(self) -> int:
        return int((sqrt(8 * len(self.matrices[0]) + 1) - 1) / 2)

    def of(self, values: np.ndarray) -> float:
        total = 0.0
        for sign, lower in zip(self.signs, values.reshape(len(self.matrices), -1), strict=True):
            matrix = np.zeros((self._rank, self._rank))
            matrix[np.tril_indices(self._rank)] = lower
            total += sign * float(np.linalg.eigvalsh(matrix, UPLO="L")[self.place])
        return total

    @property
    def rounding(self) -> float:
        return self._size([entry.rounding for entry in self.points])

    def count(self, parts: Sequence[Evidence]) -> int:
        # All entries come from the same runs.
        return parts[0].replications

    def reach(self, parts: Sequence[Evidence]) -> tuple[float, float, float]:
        # The error of the matrix of interval midpoints is at most half the intervals' lengths.
        half = self._size([part.interval.half_width for part in parts])
        centre = self.number([(part.interval.low + part.interval.high) / 2 for part in parts])
        estimate = self.number([part.estimate for part in parts])
        error = self._size([part.standard_error for part in parts])
        return min(centre - half, estimate), max(centre + half, estimate), error

    def needed(self, sums: Sums, margin: float, alpha: float, prediction: float) -> int:
        half_width = margin / self._size([1.0] * len(self.points))
        rate = alpha / len(self.points)
        return max(entry.needed(sums, half_width, rate, prediction) for entry in self.points)


Point = Linear | Ratio | Extrapolation
"""Functionals that a slope can use as points."""
