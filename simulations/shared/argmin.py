"""Functionals for the place where a curve is least, at measured group sizes or between them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import inf, sqrt
from typing import Any

import numpy as np
from scipy.optimize import brentq

from ..evidence import Evidence, Interval, Linear
from ..evidence.functionals import OfPoints, Sums
from ..evidence.planning import MOST


@dataclass(frozen=True)
class _OverSizes(OfPoints):
    """A number of a curve over increasing group sizes: the functionals, and their predicted values,
    from which replications are planned.
    """

    sizes: tuple[int, ...]
    points: tuple[Linear, ...]
    predicted: tuple[float, ...]

    @property
    def rounding(self) -> float:
        return 1e-9

    @abstractmethod
    def between(self, low: np.ndarray, high: np.ndarray) -> Interval:
        """The range of the number if each value lies between these bounds."""

    def reach(self, parts: Sequence[Evidence]) -> tuple[float, float, float]:
        low, high = np.array([(part.interval.low, part.interval.high) for part in parts]).T
        between = self.between(low, high)
        return between.low, between.high, (between.high - between.low) / 8

    def needed(self, sums: Sums, margin: float, alpha: float, prediction: float) -> int:
        """The replications for the widest relative intervals that keep the number within the margin."""
        values, share = np.array(self.predicted), 0.5
        while share > 1e-5:
            interval = self.between(values * (1 - share), values * (1 + share))
            if interval.high - interval.low <= 1.8 * margin:
                return max(
                    point.needed(sums, 0.7 * share * value, alpha / len(self.points), value)
                    for point, value in zip(self.points, self.predicted, strict=True)
                )
            share *= 0.8
        return MOST


@dataclass(frozen=True)
class Best(_OverSizes):
    """The group size with the least value; among equal ones the largest."""

    def of(self, values: np.ndarray) -> float:
        least = values <= values.min() * (1 + 1e-9)
        return float(max(size for size, one in zip(self.sizes, least, strict=True) if one))

    def between(self, low: np.ndarray, high: np.ndarray) -> Interval:
        able = [size for size, value in zip(self.sizes, low, strict=True) if value <= high.min()]
        return Interval(float(min(able)), float(max(able)))


@dataclass(frozen=True)
class Excess(_OverSizes):
    """The value at a group size divided by the least of all."""

    size: int = 0

    def of(self, values: np.ndarray) -> float:
        return float(values[self.sizes.index(self.size)] / values.min())

    def between(self, low: np.ndarray, high: np.ndarray) -> Interval:
        place = self.sizes.index(self.size)
        others = np.delete(low, place), np.delete(high, place)
        bottom, top = (float(least.min()) for least in others)
        if not bottom > 0:
            return Interval(1.0, inf)
        return Interval(max(float(low[place]) / top, 1.0), max(float(high[place]) / bottom, 1.0))


@dataclass(frozen=True)
class Flat(_OverSizes):
    """The furthest group size, up or down, with a value of at most ``times`` the least of those that are
    feasible.

    Arguments:
        feasible: the group sizes over which the least value is taken.
        times: a number above 1.
        up: whether to return the largest such group size, or the smallest.
    """

    feasible: tuple[int, ...] = ()
    times: float = 1.05
    up: bool = True

    def _end(self, close: np.ndarray) -> float:
        sizes = [size for size, one in zip(self.sizes, close, strict=True) if one]
        return float((max if self.up else min)(sizes)) if sizes else float("nan")

    def _least(self, values: np.ndarray) -> float:
        inside = [v for size, v in zip(self.sizes, values, strict=True) if size in self.feasible]
        return float(min(inside))

    def of(self, values: np.ndarray) -> float:
        return self._end(values <= self.times * self._least(values))

    def between(self, low: np.ndarray, high: np.ndarray) -> Interval:
        able = self._end(low <= self.times * self._least(high))
        sure = self._end(high <= self.times * self._least(low))
        if np.isnan(sure):
            return Interval(float(min(self.sizes)), float(max(self.sizes)))
        return Interval(min(able, sure), max(able, sure))


@dataclass(frozen=True)
class Lowest(_OverSizes):
    """The place where the curve a G + b + c/(G-1) through three points is least, or its value there.

    Arguments:
        cost: q of a prompt in addition to its outputs, in outputs; this minimises (1 + q/G) times the
            curve.
        least_size: the least possible G.
        value: whether to return the value.
    """

    cost: float = 0.0
    least_size: float = 1.0
    value: bool = False

    @property
    def _inverse(self) -> np.ndarray:
        sizes = np.array(self.sizes, dtype=float)
        return np.linalg.inv(np.stack([sizes, np.ones(3), 1 / (sizes - 1)], axis=1))

    def of(self, values: np.ndarray) -> float:
        return self._lowest(*(self._inverse @ values).tolist())

    def _lowest(self, rise: float, level: float, fall: float) -> float:
        if not (rise > 0 and fall > 0):
            return inf if fall > 0 else self.least_size
        where = 1 + sqrt(fall / rise)

        def curve(size: float) -> float:
            return (1 + self.cost / size) * (rise * size + level + fall / (size - 1))

        if self.cost:
            where = min(self._stationary(rise, level, fall), key=curve)
        where = max(where, self.least_size)
        return curve(where) if self.value else where

    def _stationary(self, rise: float, level: float, fall: float) -> list[float]:
        """The group sizes above 1 where the curve times 1 + q/G is level, roots of a quartic: of
        s = G - 1, a s² (s+1)² = c (1+q) (s+1)² + q (b-c) s².
        """
        square, line = np.array([1.0, 2.0, 1.0]), np.array([1.0, 0.0, 0.0])
        quartic = np.polymul(rise * line, square)
        quartic = np.polysub(quartic, (1 + self.cost) * fall * square)
        quartic = np.polysub(quartic, self.cost * (level - fall) * line)
        roots = np.roots(quartic)
        # At least one root is positive: the quartic rises from below 0 at s = 0.
        real = roots.real[(np.abs(roots.imag) <= 1e-7 * np.abs(roots)) & (roots.real > 0)]
        return [1 + float(root) for root in real]

    def between(self, low: np.ndarray, high: np.ndarray) -> Interval:
        """Interval arithmetic on the curve's three coefficients."""
        inverse = self._inverse
        up, down = np.maximum(inverse, 0), np.minimum(inverse, 0)
        ends = np.stack([up @ low + down @ high, up @ high + down @ low], axis=1)
        if ends[0, 0] <= 0:
            return Interval(-inf if self.value else 1.0, inf)
        corners = [
            self._lowest(rise, max(level, 0.0), max(fall, 1e-12 * rise))
            for rise, level, fall in product(*ends.tolist())
        ]
        return Interval(min(corners), max(corners))


@dataclass(frozen=True)
class Gained(_OverSizes):
    """The place where Σⱼ gⱼ²/√(gⱼ² + noiseⱼ/K) is largest, or the sum there; each noise is a curve
    a G + b + c/(G-1) through three points, and those of one parameter follow each other.

    Arguments:
        signals: gⱼ².
        budget: K, also the largest G.
        value: whether to return the sum.
    """

    signals: tuple[float, ...] = ()
    budget: float = 1.0
    value: bool = False

    @cached_property
    def _tried(self) -> np.ndarray:
        return 1 + np.geomspace(0.05, self.budget - 1, 2000)

    def _rows(self, at: np.ndarray, slope: bool = False) -> np.ndarray:
        """Factors of the three points in the curve, or in its slope, at some group sizes, (n, 3)."""
        sizes, left = np.array(self.sizes, dtype=float), at - 1
        inverse = np.linalg.inv(np.stack([sizes, np.ones(3), 1 / (sizes - 1)], axis=1))
        level, fall = (np.zeros_like(at), -1 / left**2) if slope else (np.ones_like(at), 1 / left)
        rise = np.ones_like(at) if slope else at
        return np.asarray(np.stack([rise, level, fall], axis=1) @ inverse)

    def _squares(self, at: np.ndarray, values: np.ndarray) -> np.ndarray:
        """vⱼ, (n, d), for values (3 d,)."""
        noise = self._rows(at) @ values.reshape(-1, 3).T
        return np.asarray(np.array(self.signals) + np.maximum(noise, 0.0) / self.budget)

    def _gains(self, at: np.ndarray, values: np.ndarray) -> np.ndarray:
        return np.asarray((np.array(self.signals) / np.sqrt(self._squares(at, values))).sum(axis=1))

    def _slope(self, size: float, values: np.ndarray) -> float:
        """The slope of the sum, times -2K."""
        at = np.array([size])
        pull = np.array(self.signals) * self._squares(at, values) ** -1.5
        return float((pull * (self._rows(at, slope=True) @ values.reshape(-1, 3).T)).sum())

    def of(self, values: np.ndarray) -> float:
        gains = self._gains(self._tried, values)
        place = int(gains.argmax())
        best = self._tried[place]
        low, high = self._tried[max(place - 1, 0)], self._tried[min(place + 1, len(gains) - 1)]
        if self._slope(low, values) < 0 < self._slope(high, values):
            best = brentq(self._slope, low, high, (values,), xtol=1e-13)
        return float(self._gains(np.array([best]), values)[0] if self.value else best)

    def between(self, low: np.ndarray, high: np.ndarray) -> Interval:
        """Interval arithmetic on the sum, or on its slope: the place lies after all group sizes up to which
        it surely rises, and before those from which it surely falls.
        """
        ends = [self._between(rows, low, high) for rows in (False, True)]
        (least, most), (steep, steepest) = ends
        signals = np.array(self.signals)
        small, large = (signals + np.maximum(noise, 0.0) / self.budget for noise in (least, most))
        if self.value:
            sums = [(signals / np.sqrt(square)).sum(axis=1).max() for square in (large, small)]
            return Interval(float(sums[0]), float(sums[1]))
        weights = signals * large**-1.5, signals * small**-1.5
        bottom = np.where(steep < 0, weights[1], weights[0]) * steep
        top = np.where(steepest > 0, weights[1], weights[0]) * steepest
        rises, falls = top.sum(axis=1) < 0, bottom.sum(axis=1) > 0
        last = len(falls) - 1
        first = int(np.argmin(rises)) if not rises.all() else last
        final = last - int(np.argmin(falls[::-1])) if not falls.all() else 0
        tried = self._tried
        return Interval(float(tried[max(first - 1, 0)]), float(tried[min(final + 1, last)]))

    def _between(self, slope: bool, low: np.ndarray, high: np.ndarray) -> tuple[Any, Any]:
        """The ends of each parameter's curve, or of its slope, at all tried group sizes, (n, d) each."""
        rows = self._rows(self._tried, slope)
        up, down = np.maximum(rows, 0), np.minimum(rows, 0)
        ends = low.reshape(-1, 3).T, high.reshape(-1, 3).T
        return up @ ends[0] + down @ ends[1], up @ ends[1] + down @ ends[0]
