"""The practical form of the best leave-one-out baseline: a table that is learned during training."""

from __future__ import annotations

import numpy as np
from array_api_compat import device
from numpy.typing import NDArray

from ..validation import InputError, finite_array, integer, number
from .arrays import Array, norms_of, rewards_of
from .shaped import loo_table


class RunningTable:
    """A leave-one-out table b(0), ..., b(G-1) learned from the groups of earlier steps (best_baseline).

    An output with k successes among the other G-1 of its group has Aᵢ = zᵢ - b(kᵢ), where

        b(k) = ( m (k + α) + Σ w z ) / ( m (G-1 + α + β) + Σ w )

    with sums over earlier outputs with k successes among their others. w = ‖s‖² is an output's squared score
    norm (1 if norms are not given), and m is the mean w of all earlier outputs, so a common factor of the
    norms has no effect.

    At the start this is Bayes leave-one-out for a Beta(α, β) law of pass rates. It tends to E[w z | k] / E[w
    | k], the table with the least error if ‖g‖² is small (:func:`ustat_pg.predictions.best_table`). It is
    unbiased, because it never contains the group that it is used on: call :meth:`advantages` once for each
    group.

    Arguments:
        group_size: G.
        prior: α and β, both positive.
        keep: share of a sum that remains after each update, in (0, 1]; below 1 the table forgets, for a
            changing policy.

    >>> import numpy as np
    >>> running = RunningTable(group_size=2)
    >>> running.advantages(np.array([[1.0, 0.0], [1.0, 1.0]])).round(4)
    array([[ 0.6667, -0.6667],
           [ 0.3333,  0.3333]])
    >>> running.table.round(4)
    array([0.5   , 0.6667])
    """

    def __init__(
        self, group_size: int, *, prior: tuple[float, float] = (1.0, 1.0), keep: float = 1.0
    ) -> None:
        self._size = integer("group size", group_size)
        pair = finite_array("prior", prior, 1)
        if len(pair) != 2 or pair.min() <= 0:
            raise InputError(f"prior is {prior!r}: it must be two positive numbers")
        self._prior = float(pair[0]), float(pair[1])
        self._keep = number("keep", keep, above=0.0, maximum=1.0)
        # Σ w z, Σ w, and the number of outputs, by the successes among the others.
        self._sums = np.zeros((3, self._size))
        self._by_norms: bool | None = None

    @property
    def table(self) -> NDArray[np.float64]:
        """The current table b(0), ..., b(G-1), (G,)."""
        won, weight, outputs = self._sums
        unit = weight.sum() / outputs.sum() if weight.any() else 1.0
        a, b = self._prior
        others = np.arange(self._size)
        table: NDArray[np.float64] = (unit * (others + a) + won) / (
            unit * (self._size - 1 + a + b) + weight
        )
        return table

    def advantages(self, rewards: Array, squared_norms: Array | None = None) -> Array:
        """The advantages by the current table, which then learns from these groups.

        Arguments:
            rewards: (..., G), each 0 or 1.
            squared_norms: ‖sᵢ‖², (..., G); give them at every step or at no step.
        """
        table = self.table
        self.update(rewards, squared_norms)
        return loo_table(rewards, values=table.tolist())

    def update(self, rewards: Array, squared_norms: Array | None = None) -> None:
        """Learn from groups that need no advantages; arguments and errors are those of :meth:`advantages`."""
        xp, rewards = rewards_of(rewards, "loo-table")
        if rewards.shape[-1] != self._size:
            raise InputError(
                f"this group has {rewards.shape[-1]} rewards: the running table is for groups of {self._size}"
            )
        if not bool(xp.all((rewards == 0) | (rewards == 1))):
            raise InputError("a running table needs rewards that are 0 or 1")
        by_norms = squared_norms is not None
        if self._by_norms not in (None, by_norms):
            raise InputError("give squared norms at every step or at no step")
        weights = xp.ones_like(rewards)
        if by_norms:
            weights = norms_of(squared_norms, rewards, xp)
        # Half precision would lose the additions of one step.
        wide = xp.result_type(rewards.dtype, weights.dtype, xp.float32)
        rewards, weights = xp.astype(rewards, wide), xp.astype(weights, wide)
        others = xp.expand_dims(xp.sum(rewards, axis=-1, keepdims=True) - rewards, axis=-1)
        counts = xp.arange(self._size, dtype=wide, device=device(rewards))
        beside = xp.reshape(xp.astype(others == counts, wide), (-1, self._size))
        sums = [
            xp.sum(beside * xp.reshape(part, (-1, 1)), axis=0)
            for part in (weights * rewards, weights, xp.ones_like(weights))
        ]
        self._sums *= self._keep
        self._sums += [[float(part[k]) for k in range(self._size)] for part in sums]
        self._by_norms = by_norms
