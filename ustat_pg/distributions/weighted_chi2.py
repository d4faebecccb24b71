"""The law of a weighted sum of chi-square variables, to nearly full double precision.

The tail on the point's own side of the mean is an integral along a hyperbola through its saddle
point, by the trapezoidal rule; the other tail is one minus it. The first tail has a small *relative* error
even if it is tiny, which a sum along the real axis (Imhof, Davies) cannot have. Ruben's mixture of chi-square
laws is shorter, but needs some 50 terms times the ratio of the greatest weight to the
least: at a ratio of 1,000 it takes seconds for what takes half a millisecond here, and at 1e6 it
does not settle in 60,000 terms.
"""

from __future__ import annotations

import functools
import itertools
import math
import warnings
from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..display.shown import Shown
from ..validation import InputError, finite_array, frozen, integer

FloatArray: TypeAlias = NDArray[np.float64]
Seed: TypeAlias = int | np.random.Generator | np.random.RandomState | None

PANEL_POINTS = 16
"""The number of points from which on a panel is interpolated; its 24 values share one path."""

DEEPEST = 6
"""The number of halvings of a panel before its points are computed one by one."""

BATCH = 2**20
"""The number of chi-square draws in memory at once."""


@functools.cache
def _bodies() -> ModuleType:
    """The compiled bodies, at their first use: numba takes a while to import."""
    from . import bodies

    return bodies


def _numbers(name: str, value: ArrayLike) -> FloatArray:
    array = np.asarray(value)
    if array.dtype.kind not in "iufb":
        raise InputError(f"{name} is not an array of numbers (its type is {array.dtype})")
    return np.asarray(array, dtype=np.float64)


def _shaped(result: FloatArray) -> Any:
    """A scalar for a scalar, as in SciPy."""
    return result[()]


class _Way(NamedTuple):
    """What is found at points together: one by one or in a panel, and how many lie before a point."""

    direct: Callable[[FloatArray], FloatArray]
    fill: Callable[..., None]
    before: Callable[[FloatArray, float], int]


class WeightedChi2(Shown):
    """The law of Q = Σₖ wₖ χ²₁, independent terms, positive weights; used like a SciPy law.

    E exp(s Q) = Πₖ (1 - 2 wₖ s)^{-1/2}

    Source: Theorem 8 (limit_law), for the law of T gap_T. The method is a saddle point contour as in
    Rice (1980), "Distribution of quadratic forms in normal random variables - evaluation by
    numerical integration", with Weideman and Trefethen's (2007) hyperbola.

    Measured against 40-digit arithmetic on random weights (``benchmarks/weighted_chi2.md``), the
    absolute error of ``cdf`` and ``sf`` stays below 1e-12 and the relative error of the smaller
    tail below 1e-12 down to 1e-300; ``logcdf`` and ``logsf`` go on where those underflow. Weights count as
    exact numbers: far in the upper tail the law itself is sensitive to them, dsf/sf = x/(2 w_max) dw/w.

    Large arrays are interpolated, panel by panel, where points are dense (16 or more in a panel).
    This adds a relative error of at most about 5e-13 to a tail above 1e-300 and to the density, and the
    tail at a quantile is off by as much; the values depend on no earlier call. The order of neighbouring
    points may be wrong by the same amount.

    Arguments:
        weights: (n,), positive and finite; their order does not matter and equal ones cost one.
            Below x = 2e-300 w_max ``cdf`` is continued as the power x^{n/2}, which is its limit
            where no weight is below about 1e-280 w_max.

    >>> law = WeightedChi2([3.0, 1.0, 0.5])
    >>> f"{law.cdf(2.0):.12f} {law.sf(60.0):.6e} {law.ppf(0.5):.12f}"
    '0.339921637001 1.056682e-05 3.097588591833'
    >>> print(law)
    WeightedChi2([3. , 1. , 0.5]): mean 4.5, variance 20.5
    """

    def __init__(self, weights: ArrayLike) -> None:
        array = finite_array("weights", weights, 1)
        if (array <= 0).any():
            where = int(np.argmax(array <= 0))
            raise InputError(f"weights[{where}] is {array[where]}: weights must be positive")
        self._weights = array
        values, count = np.unique(array, return_counts=True)
        values = values[::-1]
        self._top = float(values[0])
        with np.errstate(over="ignore", under="ignore", divide="ignore"):
            mu = values / self._top
            inverse = self._top / values
        gap = (self._top - values) / self._top
        self._count = frozen(count[::-1].astype(np.float64))
        self._groups = frozen(values.copy())
        self._scaled_mean = 0.5 * math.fsum(self._count * mu)
        self._parameters = (mu, inverse, gap, self._count)
        self._panels: dict[tuple[bool, int, int, int], FloatArray | None] = {}

    def __repr__(self) -> str:
        text = np.array2string(self._weights, threshold=8, separator=", ")
        return f"WeightedChi2({text})"

    def to_dict(self) -> dict[str, Any]:
        """The law as a dict for JSON."""
        return {"weights": self._weights.tolist(), "mean": self.mean(), "var": self.var()}

    def __str__(self) -> str:
        return f"{self!r}: mean {self.mean():.6g}, variance {self.var():.6g}"

    def __eq__(self, other: object) -> bool:
        """Whether the weights are the same in any order."""
        if not isinstance(other, WeightedChi2):
            return NotImplemented
        return np.array_equal(self._groups, other._groups) and np.array_equal(
            self._count, other._count
        )

    def __hash__(self) -> int:
        return hash((self._groups.tobytes(), self._count.tobytes()))

    @property
    def weights(self) -> FloatArray:
        """The weights as given, (n,), read-only."""
        return self._weights

    def _power_sum(self, order: int) -> float:
        """Σ (wₖ / w_max)ᵐ."""
        with np.errstate(under="ignore"):
            return math.fsum(self._count * self._parameters[0] ** order)

    # -- values -----------------------------------------------------------------------------------

    def _direct(self, x: FloatArray) -> FloatArray:
        out = np.empty((3, len(x)))
        bodies = _bodies()
        error = bodies.log_tails(x, self._top, self._scaled_mean, *self._parameters, out)
        if not error <= bodies.AGREE:
            warnings.warn(
                f"WeightedChi2: the contour integral settled to {error:.1e} only at a point",
                RuntimeWarning,
                stacklevel=4,
            )
        return out

    @functools.cached_property
    def _grid(self) -> tuple[float, float, float]:
        """The mean, the width of the first panel above it, and the panels' width in log x below it."""
        mean = 2 * self._top * self._scaled_mean
        spread = self.std()
        return mean, 4 * spread, -math.log(max(1 / 3, 1 - 4 * spread / mean))

    def _panel(self, upper: bool, index: int, depth: int, part: int) -> tuple[float, float]:
        mean, width, ratio = self._grid
        if upper:
            low = mean + width * (2.0**index - 1)
            size = width * 2.0**index
        else:
            low = math.log(mean) - (index + 1) * ratio
            size = ratio
        return low + size * part / 2**depth, low + size * (part + 1) / 2**depth

    def _dense(
        self, way: _Way, at: FloatArray, out: FloatArray, upper: bool, index: int,
        depth: int = 0, part: int = 0,
    ) -> None:  # fmt: skip
        """Fill ``out`` (..., n) at what is given of the points of one panel, which rise."""
        from . import panels

        if len(at) < PANEL_POINTS:
            if len(at):
                out[...] = way.direct(at)
            return
        key = (upper, index, depth, part)
        low, high = self._panel(*key)
        if key not in self._panels:
            made, good = panels.panel(low, high, upper, self._top, *self._parameters)
            self._panels[key] = made if good else None
        coefficients = self._panels[key]
        if coefficients is not None:
            way.fill(at, low, high, upper, coefficients, out)
        elif depth == DEEPEST:
            out[...] = way.direct(at)
        else:
            middle = 0.5 * (low + high)
            cut = way.before(at, middle if upper else math.exp(middle))
            self._dense(way, at[:cut], out[..., :cut], upper, index, depth + 1, 2 * part)
            self._dense(way, at[cut:], out[..., cut:], upper, index, depth + 1, 2 * part + 1)

    def _values(self, x: FloatArray) -> FloatArray:
        """Log of the smaller tail, log of x f over it, 1.0 where it is sf: (3, n), 0 < x < inf."""
        if len(x) < PANEL_POINTS:
            return self._direct(x)
        mean, width, ratio = self._grid
        if not (0 < mean < math.inf and width < math.inf):
            return self._direct(x)
        from . import panels

        way = _Way(
            self._direct, panels.interpolate, lambda x, middle: int(np.searchsorted(x, middle))
        )
        order = np.argsort(x)
        x = x[order]
        values = np.empty((3, len(x)))
        # Rounding may put a point of an edge into the panel beside it, where it is as good.
        split = int(np.searchsorted(x, mean, side="right"))
        with np.errstate(over="ignore"):
            index = np.empty(len(x))
            index[:split] = np.floor((math.log(mean) - np.log(x[:split])) / ratio)
            index[split:] = np.floor(np.log2((x[split:] - mean) / width + 1))
        # Half the largest double is no number to interpolate up to.
        cuts = [0, *np.flatnonzero(np.diff(index)) + 1, len(x)]
        cuts = sorted({*cuts, split})
        for start, stop in itertools.pairwise(cuts):
            upper = start >= split
            part, into = x[start:stop], values[:, start:stop]
            place = int(min(index[start], 1000))
            if (upper and place >= 60) or (not upper and part[0] < 1e-290 * self._top):
                into[...] = self._direct(part)
            else:
                self._dense(way, part, into, upper, max(place, 0))
        out = np.empty_like(values)
        out[:, order] = values
        return out

    def _apply(self, name: str, x: ArrayLike, left: float, right: float, function: Any) -> Any:
        """``function(log tail, log ratio, upper, x)`` inside, the limits outside, NaN for NaN."""
        if isinstance(x, float) and 0 < x < math.inf:
            log, ratio, upper = self._direct(np.array([x]))
            with np.errstate(all="ignore"):
                return function(log, ratio, upper > 0, x)[0]
        points = _numbers(name, x)
        flat = points.ravel()
        out = np.where(np.isnan(flat), np.nan, np.where(flat > 0, right, left))
        inside = (flat > 0) & (flat < np.inf)
        if inside.any():
            chosen = np.ascontiguousarray(flat[inside])
            log, ratio, upper = self._values(chosen)
            # exp and its kin underflow where a tail does.
            with np.errstate(under="ignore", over="ignore", divide="ignore"):
                out[inside] = function(log, ratio, upper > 0, chosen)
        return _shaped(out.reshape(points.shape))

    def cdf(self, x: ArrayLike) -> Any:
        """P(Q ≤ x), of the shape of x.

        >>> float(WeightedChi2([1.0, 1.0]).cdf(0.0))
        0.0
        """
        return self._apply(
            "x", x, 0.0, 1.0, lambda log, _, up, x: np.where(up, -np.expm1(log), np.exp(log))
        )

    def sf(self, x: ArrayLike) -> Any:
        """P(Q > x), of the shape of x, with small relative error in the upper tail."""
        return self._apply(
            "x", x, 1.0, 0.0, lambda log, _, up, x: np.where(up, np.exp(log), -np.expm1(log))
        )

    def logcdf(self, x: ArrayLike) -> Any:
        """log P(Q ≤ x), of the shape of x, finite where ``cdf`` underflows."""
        return self._apply(
            "x", x, -np.inf, 0.0, lambda log, _, up, x: np.where(up, np.log1p(-np.exp(log)), log)
        )

    def logsf(self, x: ArrayLike) -> Any:
        """log P(Q > x), of the shape of x, finite where ``sf`` underflows."""
        return self._apply(
            "x", x, 0.0, -np.inf, lambda log, _, up, x: np.where(up, log, np.log1p(-np.exp(log)))
        )

    def _log_density_at_0(self) -> float:
        """The limit at 0 from above: a density of one term is infinite, of three or more 0."""
        n = len(self._weights)
        if n == 2:
            return -math.log(2) - 0.5 * float(np.log(self._weights).sum())
        return math.inf if n == 1 else -math.inf

    def logpdf(self, x: ArrayLike) -> Any:
        """The density's logarithm, of the shape of x."""
        points = _numbers("x", x)
        out = self._apply(
            "x", points, -np.inf, -np.inf, lambda log, ratio, _, x: log + ratio - np.log(x)
        )
        return _shaped(np.where(points == 0, self._log_density_at_0(), out))

    def pdf(self, x: ArrayLike) -> Any:
        """The density, of the shape of x; at 0 its limit from above, as SciPy has it.

        Its relative error is small everywhere, in both tails and between.
        """
        with np.errstate(under="ignore", over="ignore"):
            return _shaped(np.exp(np.asarray(self.logpdf(x))))

    # -- quantiles --------------------------------------------------------------------------------

    @functools.cached_property
    def _at_mean(self) -> float:
        """P(Q ≤ mean)."""
        out = np.empty((3, 1))
        middle = np.array([2 * self._scaled_mean])
        _bodies().log_tails(middle, 1.0, self._scaled_mean, *self._parameters, out)
        return float(np.exp(out[0, 0]))

    def _quantile(self, q: ArrayLike, lower: bool) -> Any:
        levels = _numbers("q", q)
        flat = levels.ravel()
        ends = (0.0, np.inf) if lower else (np.inf, 0.0)
        out = np.where(flat == 0, ends[0], np.where(flat == 1, ends[1], np.nan))
        inside = (flat > 0) & (flat < 1)
        if inside.any():
            chosen = flat[inside]
            near = chosen <= (self._at_mean if lower else 1 - self._at_mean)
            target = np.where(near, np.log(chosen), np.log1p(-chosen))
            quantiles = np.empty(len(chosen))
            for upper in (False, True):
                places = np.flatnonzero((near != lower) == upper)
                # This makes quantiles increase.
                places = places[np.argsort(-target[places] if upper else target[places])]
                quantiles[places] = self._inverse(target[places], upper)
            out[inside] = quantiles
        return _shaped(out.reshape(levels.shape))

    def _newton(self, target: FloatArray, upper: bool) -> FloatArray:
        """The x whose tail on one side of the mean has these logarithms, one by one."""
        out = np.empty(len(target))
        sides = np.full(len(target), upper)
        law = self._top, self._scaled_mean, *self._parameters
        _bodies().quantiles(target, sides, *law, out)
        return out

    def _inverse(self, target: FloatArray, upper: bool) -> FloatArray:
        """The same by panels where they are dense; the x rise."""
        mean, width, ratio = self._grid
        if len(target) < PANEL_POINTS or not (0 < mean < math.inf and width < math.inf):
            return self._newton(target, upper)
        from . import panels

        sign = -1.0 if upper else 1.0

        def before(target: FloatArray, middle: float) -> int:
            log = self._direct(np.array([middle]))[0, 0]
            return int(np.searchsorted(sign * target, sign * log))

        # Panels from the mean to the furthest quantile, and the tails at their far ends.
        (furthest,) = self._newton(target[-1:] if upper else target[:1], upper)
        if upper:
            count = math.floor(math.log2((furthest - mean) / width + 1)) + 1
        else:
            count = math.ceil(math.log(mean / max(furthest, 1e-290 * self._top)) / ratio)
        ends = [self._panel(upper, index, 0, 0)[int(upper)] for index in range(count)]
        logs = self._direct(np.array(ends) if upper else np.exp(ends))[0]
        index = np.searchsorted(-logs, -target)
        out = np.empty(len(target))
        way = _Way(functools.partial(self._newton, upper=upper), panels.invert, before)
        cuts = [0, *np.flatnonzero(np.diff(index)) + 1, len(target)]
        for start, stop in itertools.pairwise(cuts):
            part, into, place = target[start:stop], out[start:stop], int(index[start])
            if place < count:
                self._dense(way, part, into, upper, place)
            else:
                into[...] = self._newton(part, upper)
        return out

    def ppf(self, q: ArrayLike) -> Any:
        """The x with P(Q ≤ x) = q, of the shape of q; NaN outside [0, 1]."""
        return self._quantile(q, lower=True)

    def isf(self, q: ArrayLike) -> Any:
        """The x with P(Q > x) = q, of the shape of q; NaN outside [0, 1]."""
        return self._quantile(q, lower=False)

    # -- moments ----------------------------------------------------------------------------------

    def cumulant(self, order: int) -> float:
        """κ_m = 2^{m-1} (m-1)! Σₖ wₖᵐ.

        >>> WeightedChi2([2.0, 1.0]).cumulant(3)
        72.0
        """
        m = integer("order", order)
        with np.errstate(over="ignore", under="ignore"):
            scale = np.float64(2 * self._top) ** m / 2
            return float(scale * math.factorial(m - 1) * self._power_sum(m))

    def mean(self) -> float:
        """E Q = Σ wₖ."""
        return self.cumulant(1)

    def var(self) -> float:
        """Var Q = 2 Σ wₖ²."""
        return self.cumulant(2)

    def std(self) -> float:
        """The standard deviation; it is computed without the variance, which may overflow."""
        return self._top * math.sqrt(2 * self._power_sum(2))

    # -- draws ------------------------------------------------------------------------------------

    def rvs(self, size: int | tuple[int, ...] | None = None, random_state: Seed = None) -> Any:
        """Independent draws, an array of shape ``size``, or one number.

        >>> WeightedChi2([1.0, 0.5]).rvs((2, 3), random_state=1).shape
        (2, 3)
        """
        generator: Any = random_state
        if not isinstance(random_state, np.random.Generator | np.random.RandomState):
            seed = None if random_state is None else integer("random_state", random_state, 0)
            generator = np.random.default_rng(seed)
        lengths = size if isinstance(size, tuple) else () if size is None else (size,)
        shape = tuple(integer("size", length, 0) for length in lengths)
        total = math.prod(shape)
        out = np.empty(total)
        rows = max(1, BATCH // len(self._groups))
        for start in range(0, total, rows):
            part = out[start : start + rows]
            part[:] = generator.chisquare(self._count, (len(part), len(self._count))) @ self._groups
        return _shaped(out.reshape(shape))
