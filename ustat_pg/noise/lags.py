"""Products of the gradients of neighbouring steps, and what they say of the signal.

Let ĝₜ = gₜ + εₜ be the step's gradient and Σ = Cov εₜ. Before ĝₜ₊ₖ is measured the noise εₜ has moved the
parameters by xₜₖ P εₜ, P what the optimizer multiplies by (1 in SGD), so with H the Hessian that is climbed

    E⟨ĝₜ, ĝₜ₊ₖ⟩ = E⟨gₜ, gₜ₊ₖ⟩ + xₜₖ tr(H P Σ) + ...,   xₜₖ = Σ_{j<k} ηₜ₊ⱼ βʲ,

η the rates and β the optimizer's memory (Adam's β₁, SGD's momentum), times (1-β)/(1-βᵗ) in Adam. Without
memory all x are η and no lag is better than another: such pairs tell the signal plus an unknown number. With
memory x begins small and grows with k, so the line of products over x has the signal where x is 0.
"""

from __future__ import annotations

from collections import deque
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from ..inference import Means
from ..validation import Array

LAGS = 10
"""Steps that two gradients are apart at most."""
DRAWN = 64
"""Steps whose sketches are drawn alike: those of two draws have no product."""
_APART = 2.5
"""Standard errors by which pairs within steps and between steps may differ."""
LINE = 1e-9
"""Share of its squares that a regressor must have beside another to be told from it."""


def memory_of(optimizer: Any) -> tuple[float, bool] | None:
    """β of an optimizer, and whether it corrects for its beginning; None where neither is known."""
    import torch

    groups = getattr(optimizer, "param_groups", [])
    if isinstance(optimizer, torch.optim.Adam | torch.optim.AdamW):
        found = {(float(group["betas"][0]), True) for group in groups}
    elif isinstance(optimizer, torch.optim.SGD):
        plain = not any(group["nesterov"] for group in groups)
        found = {(float(group["momentum"]), False) for group in groups} if plain else set()
    else:
        found = set()
    return found.pop() if len(found) == 1 else None


class Lagged(NamedTuple):
    """Pairs of the steps of a window with steps before them.

    Arguments:
        units: by which number pairs know each of the steps, or of two that are measured as one.
        joined: whether it is two, so that its own product is one of two steps.
        pairs: of :meth:`Trail.take`, for each.
    """

    units: tuple[int, ...]
    joined: tuple[bool, ...]
    pairs: tuple[Array, ...]


class Trail:
    """The gradients of the last steps, and their products with the newest.

    Arguments:
        optimizer: torch's Adam, AdamW or SGD; of others nothing is known, and no product is taken.
    """

    def __init__(self, optimizer: Any) -> None:
        self._optimizer, self.memory = optimizer, memory_of(optimizer)
        self._kept: deque[tuple[int, int, int, Array, float]] = deque(maxlen=LAGS)
        self._rates: deque[float] = deque(maxlen=LAGS + 1)
        # Steps that the optimizer was seen to make.
        self.seen = 0

    def next(self) -> None:
        """Note the rate at which a step is about to be made, whether it counts or not."""
        if self.memory is not None:
            self.seen += 1
            rate = float(self._optimizer.param_groups[0]["lr"])
            beta, corrected = self.memory
            made = self._before + self.seen
            self._rates.append(rate / (1 - beta**made) if corrected else rate)

    @cached_property
    def _before(self) -> int:
        """Steps that the optimizer had made when it was first seen, as in a training that is resumed."""
        made = (state["step"] for state in self._optimizer.state.values() if "step" in state)
        return int(next(made, 0))

    def take(self, unit: int, draw: int, gradient: Array, size: float) -> Array:
        """Products of a step with those before.

        Arguments:
            unit: the number of what the window takes it up in.
            draw: of its sketch.
            gradient: n times the step's, as a sketch.
            size: n.

        Returns:
            the unit of the earlier step, the lag k, the weight nₜ nₜ₊ₖ, x and ⟨ĝₜ, ĝₜ₊ₖ⟩, (p, 5).
        """
        if self.memory is None:
            return np.zeros((0, 5))
        beta, rates = self.memory[0], np.array(self._rates)[::-1][1:]
        rows = []
        for before, count, drawn, other, n in self._kept:
            lag = self.seen - count
            if drawn == draw and lag <= LAGS:
                # The rate of the earlier step comes first.
                x = rates[:lag][::-1] @ beta ** np.arange(len(rates[:lag]))
                rows.append([before, lag, size * n, x, gradient @ other / (size * n)])
        self._kept.append((unit, self.seen, draw, gradient, size))
        return np.array(rows, dtype=float).reshape(-1, 5)

    def state_dict(self) -> dict[str, Any]:
        """The last steps, in numbers that JSON takes."""
        kept = [[*known, gradient.tolist(), size] for *known, gradient, size in self._kept]
        before = self._before if self.seen else None
        return {"seen": self.seen, "before": before, "rates": [*self._rates], "kept": kept}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what :meth:`state_dict` gave."""
        self.seen = int(state["seen"])
        if state["before"] is not None:
            # What the optimizer counts now, it has made since.
            self._before = int(state["before"])
        self._rates.clear()
        self._rates.extend(state["rates"])
        self._kept.clear()
        self._kept.extend((*known, np.array(g), size) for *known, g, size in state["kept"])

    def drop(self, unit: int) -> None:
        """Forget a step that the window did not take up."""
        kept = [row for row in self._kept if row[0] != unit]
        self._kept.clear()
        self._kept.extend(kept)


def line_sums(lagged: Lagged) -> tuple[Means, Array]:
    """Sums for a weighted line over pairs, as means over units, and the pairs (weight, x, product).

    A pair is of both its units: without one of them it is not there. x is that of its lag, averaged over
    pairs: within a lag it changes with time, as the signal does.
    """
    units, count = np.array(lagged.units), len(lagged.units)
    whose = np.repeat(units, [len(own) for own in lagged.pairs])
    table = np.column_stack([whose, np.concatenate(lagged.pairs)])
    table = table[np.isin(table[:, 1], units)]
    later, earlier = (np.searchsorted(units, table[:, k]) for k in (0, 1))
    lags, w, y = table[:, 2].astype(int), table[:, 3], table[:, 5]
    times = np.bincount(lags, minlength=1)
    x = (np.bincount(lags, table[:, 4]) / np.maximum(times, 1))[lags]
    columns = np.stack([w, w * x, w * x * x, w * y, w * x * y], axis=1)
    own = np.zeros((count, 5))
    np.add.at(own, later, columns)
    np.add.at(own, earlier, np.where((later != earlier)[:, None], columns, 0.0))
    total = columns.sum(axis=0)
    sums = Means(total / count, (total - own) / max(count - 1, 1), parts="steps")
    return sums, np.stack([w, x, y], axis=1)


def height(sums: Array) -> tuple[Array, Array]:
    """Weight and weighted value of a line's height at x = 0; both 0 where pairs do not tell it."""
    a, ax, axx, ay, axy = np.moveaxis(sums, -1, 0)
    along = np.divide(ax, axx, out=np.zeros_like(ax), where=axx > 0)
    weight = a - along * ax
    known = weight > LINE * a
    return np.where(known, weight, 0.0), np.where(known, ay - along * axy, 0.0)


def combined(within: Means, sums: Means, pairs: Array) -> Means | None:
    """The signal from pairs within steps and between them, (1,); None where these differ, or tell nothing.

    Arguments:
        within: the signal of pairs within steps and its weight, per unit; NaN and 0 where there are none.
        sums: of :func:`line_sums`.
        pairs: of the same.
    """

    def values(first: Array, second: Array) -> Array:
        gamma, own = np.nan_to_num(first[..., 0]), first[..., 1]
        weight, value = height(second)
        with np.errstate(invalid="ignore", divide="ignore"):
            both = (own * gamma + value) / (own + weight)
            return np.stack([both, np.where(own > 0, gamma, np.nan) - value / weight], axis=-1)

    found = Means(values(within.full, sums.full), values(within.without, sums.without))
    weight, _ = height(sums.full)
    differ = abs(found.full[1]) > _APART * found.se[1]
    if not weight or differ or not np.isfinite(found.without[:, 0]).all():
        return None
    # A jackknife counts the noise of a pair twice, once for each of its steps.
    _, ax, axx, _, axy = sums.full
    along, signal = (ax / axx if axx > 0 else 0.0), found.full[0]
    slope = (axy - signal * ax) / axx if axx > 0 else 0.0
    w, x, y = pairs.T
    count = len(sums.without)
    influence = w * (1 - along * x) / (count * (within.full[1] + weight))
    excess = np.square(influence * (y - signal - slope * x)).sum()
    variance = found.covariance[0, 0]
    shrunk = np.sqrt(max(1 - excess / variance, 0.5)) if variance > 0 else 1.0
    without = signal + (found.without[:, :1] - signal) * shrunk
    return Means(found.full[:1], without)
