"""Sums of squares of normal deviates, as quantities of a cell, for comparison with laws of the gap.

Instead of enumeration there is quadrature over one or two deviates, which has no formula in common with
:class:`~ustat_pg.distributions.WeightedChi2`; the draws are inverse normal cdfs of addressed words.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import erf, ndtri

from ustat_pg.engines import Cell, MomentSums, Quantity
from ustat_pg.engines.base import Replications
from ustat_pg.sampling import rng
from ustat_pg.validation import Array

_NODES = 128
_FAR = 12.0
"""The standard deviations at which a normal deviate is cut off."""
_BLOCK = 65_536
_LARGEST_RANK = 3


@dataclass(frozen=True)
class _OfWeights:
    """A quantity of Σ wₖ zₖ².

    Arguments:
        weights: w, positive, (r,), r at most 3.
        at: number above 0.
    """

    weights: tuple[float, ...]
    at: float

    @property
    def label(self) -> str:
        """The name in blocks and stored results."""
        return f"{type(self).__name__}[{list(self.weights)!r},{self.at!r}]"

    def sums(self, squares: Array) -> Array:
        """Σ wₖ zₖ² of squares (n, 3), (n,)."""
        return np.asarray(squares[:, : len(self.weights)] @ np.array(self.weights))


@dataclass(frozen=True)
class Below(_OfWeights):
    """Whether Σ wₖ zₖ² <= x: its mean is the cdf at x."""

    def of(self, squares: Array) -> Array:
        return np.asarray(self.sums(squares) <= self.at, dtype=np.float64)

    def exact(self) -> float:
        """The cdf by quadrature."""
        return float(_below(self.weights, np.array([self.at]))[0])


@dataclass(frozen=True)
class TransformOf(_OfWeights):
    """exp(-rate Σ wₖ zₖ²): its mean is the Laplace transform at the rate."""

    def of(self, squares: Array) -> Array:
        return np.exp(-self.at * self.sums(squares))

    def exact(self) -> float:
        """The transform by quadrature, one deviate at a time."""
        z = np.linspace(-_FAR, _FAR, 10 * _NODES + 1)
        spacing = z[1] - z[0]
        parts = [
            spacing * np.exp(-(z**2) * (0.5 + self.at * weight)).sum() / np.sqrt(2 * np.pi)
            for weight in self.weights
        ]
        return float(np.prod(parts))


def _below(weights: Sequence[float], x: Array) -> Array:
    """P(Σ wₖ zₖ² <= x), x (n,) not negative.

    Two deviates in polar coordinates: given the angle, the sum is an exponential variable. A third
    one is integrated over, as √(x/w) sin of an angle.
    """
    if len(weights) == 1:
        return np.asarray(erf(np.sqrt(x / (2 * weights[0]))))
    if len(weights) == 2:
        angle = 2 * np.pi * np.arange(_NODES) / _NODES
        mean = 2 * (weights[0] * np.cos(angle) ** 2 + weights[1] * np.sin(angle) ** 2)
        return np.asarray(-np.expm1(-x[:, None] / mean).mean(axis=1))
    nodes, shares = np.polynomial.legendre.leggauss(_NODES)
    angle = nodes * np.pi / 2
    most = np.sqrt(x[:, None] / weights[2])
    z = most * np.sin(angle)
    density = np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi) * most * np.cos(angle) * np.pi / 2
    rest = (x[:, None] * np.cos(angle) ** 2).ravel()
    return np.asarray((_below(weights[:2], rest).reshape(z.shape) * density) @ shares)


@dataclass(frozen=True)
class ChiSquares(Cell):
    """A cell of independent squares of normal deviates, three a replication.

    Arguments:
        number: part of the address of its draws.

    >>> cell, below = ChiSquares(), Below((1.0, 1.0), 2.0)
    >>> cell.measure("exact", [below]).mean.round(6)    # 1 - exp(-1)
    array([0.632121])
    """

    number: int = 0
    group_size = batch_size = steps = 1
    block = _BLOCK
    engines = ("exact", "reference")
    measures = (Below, TransformOf)

    @property
    def name(self) -> str:
        return f"chi-squares/{self.number}"

    def range(self, quantity: Quantity) -> tuple[float, float]:
        return 0.0, 1.0

    def rounding(self, quantity: Quantity) -> float:
        """The quadrature's own error."""
        return 1e-12

    def require_exact(self, quantities: Sequence[Quantity]) -> None:
        self.require_quantities(quantities)

    def _measure(
        self, engine: str, quantities: Sequence[Below | TransformOf], block: Replications
    ) -> MomentSums:
        if engine == "exact":
            return MomentSums.exact(np.array([quantity.exact() for quantity in quantities]))
        key, numbers = rng.cell_key(block.seed, self.name), block.first + np.arange(block.count)
        words = rng.words(key, numbers, 0, _LARGEST_RANK)
        squares = ndtri((words + 0.5) * 2.0**-32) ** 2
        return MomentSums.of(np.stack([quantity.of(squares) for quantity in quantities], axis=-1))
