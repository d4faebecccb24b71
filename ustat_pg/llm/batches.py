"""From what one group's gradient is at each prompt to the error of a minibatch, and its noise and signal."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ..validation import InputError, integer, one_of
from .moments import GroupMoments, Means, PromptMoments, beside, gradients, means, pairs
from .scored import ScoredPool

__all__ = ["DESIGNS", "Batches"]

Array = NDArray[np.float64]

DESIGNS = ("prompt", "fixed", "iid")
"""One prompt, the fixed set once each, prompts drawn i.i.d."""


class Batches:
    """Minibatches of the prompts of a pool.

    Arguments:
        pool: P prompts.
        moments: of its prompts; None where no error is asked for.
        design: one of :data:`DESIGNS`.
        batch_size: B, for iid only.

    Raises:
        InputError: an unknown design, a batch size that it does not take, and for iid one prompt only
            or a pool without sketches.
    """

    def __init__(
        self, pool: ScoredPool, moments: PromptMoments | None, design: str, batch_size: int = 1
    ) -> None:
        one_of("design", design, DESIGNS)
        batch = integer("batch size", batch_size)
        if design != "iid" and batch != 1:
            raise InputError(f"batch size is {batch}: the design {design!r} takes none")
        self._pool, self._moments, self._design = pool, moments, design
        self._scale = {"prompt": 1.0, "fixed": 1 / pool.size, "iid": 1 / batch}[design]
        if design == "iid":
            gradients(pool)

    def error(self, found: GroupMoments) -> Means:
        """E‖ĝ - g‖², ĝ and g of a minibatch; for prompt the mean of that given the prompt, one column."""
        if self._design == "iid":
            bias = self._products(found, found.factor - 1)
            return _sum((self._scale, self._within(found)), (1.0, bias))
        assert self._moments is not None
        square = self._moments.gradient_sq
        own = self._means(found.second - 2 * found.cross + square)
        if self._design == "prompt" or not found.biased:
            return _sum((self._scale, own))
        bias = self._products(found, found.factor - 1)
        return _sum((self._scale, own), (1 - self._scale, bias))

    def noise(self, found: GroupMoments) -> Means:
        """tr Cov ĝ and ‖E ĝ‖², two columns; for prompt both given the prompt, their means.

        Raises:
            InputError: for prompt and fixed, a biased table of groups of more than N/2: the squared mean
                at one prompt takes two of them.
        """
        if self._design == "iid":
            return beside(
                _sum((self._scale, self._within(found))), self._products(found, found.factor)
            )
        if np.isnan(found.mean_sq).any():
            raise InputError(
                f"the mean of a biased table at one prompt takes two groups, and this pool has "
                f"{self._pool.rollouts} rollouts a prompt: take groups of at most "
                f"{self._pool.rollouts // 2}, or the design iid"
            )
        noise = _sum((self._scale, self._means(found.second - found.mean_sq)))
        signal = _sum((self._scale, self._means(found.mean_sq)))
        if self._design == "fixed":
            signal = _sum((1.0, signal), (1 - self._scale, self._products(found, found.factor)))
        return beside(noise, signal)

    def _within(self, found: GroupMoments) -> Means:
        """tr Cov of one group's ĝ, its prompt drawn too."""
        return _sum((1.0, self._means(found.second)), (-1.0, self._products(found, found.factor)))

    def _means(self, column: Array) -> Means:
        return means(column[:, None], self._pool.looks)

    def _pairs(self, each: Array) -> Means:
        return pairs(each, self._pool.looks)

    def _products(self, found: GroupMoments, factor: Array) -> Means:
        """‖E ĝ‖² of means that f makes of sketches, from pairs of different prompts."""
        if found.sketches is not None:
            each = np.einsum("pr,prk->pk", factor, found.sketches)
            return self._pairs(each)
        if (factor == 0).all():
            return self._means(np.zeros(self._pool.size))
        if (factor == 1).all():
            return self._unweighted
        return self._pairs(gradients(self._pool) * factor[:, None])

    @cached_property
    def _unweighted(self) -> Means:
        return self._pairs(gradients(self._pool))


def _sum(*parts: tuple[float, Means]) -> Means:
    """A linear combination."""
    return Means(
        np.sum([weight * part.full for weight, part in parts], axis=0),
        np.sum([weight * part.without for weight, part in parts], axis=0),
        parts[0][1].looks,
    )
