"""The region on which a training run's parameters are projected."""

from __future__ import annotations

import numpy as np

from ustat_pg.rounding import GIVEN
from ustat_pg.validation import Array, InputError, field, finite_array, positive, record


@record()
class Ball:
    """Θ = {θ : ‖Uᵀ(θ - centre)‖ <= radius}: all of θ, or the part in the span of U.

    Arguments:
        centre: (d,).
        radius: number above 0.
        basis: U with orthonormal columns, (d, r); directions outside its span stay free.
    """

    centre: Array = field(finite_array, ndim=1)
    radius: float = field(positive)
    basis: Array | None = field(finite_array, ndim=2, default=None)

    def __attrs_post_init__(self) -> None:
        if self.basis is None:
            return
        products = self.basis.T @ self.basis
        if not np.allclose(products, np.eye(len(products)), rtol=0, atol=GIVEN):
            raise InputError("basis must have orthonormal columns (to 1e-9)")

    @property
    def d(self) -> int:
        """The number of parameters."""
        return len(self.centre)

    @property
    def label(self) -> str:
        """The definition in words."""
        within = "" if self.basis is None else f",basis={self.basis.tolist()}"
        return f"ball({self.centre.tolist()},{self.radius!r}{within})"

    def project(self, theta: Array) -> Array:
        """The nearest points of Θ to parameters (..., d)."""
        basis = np.eye(self.d) if self.basis is None else self.basis
        off = theta - self.centre
        # Sums of products use a fixed order, because a matrix product's order depends on its size.
        along = (off[..., :, None] * basis).cumsum(axis=-2)[..., -1, :]
        norm = np.sqrt((along**2).cumsum(axis=-1)[..., -1])
        outside = norm > self.radius
        excess = np.where(outside, 1.0 - self.radius / np.where(outside, norm, 1.0), 0.0)
        back = (along[..., None, :] * basis).cumsum(axis=-1)[..., -1]
        return np.where(outside[..., None], theta - excess[..., None] * back, theta)
