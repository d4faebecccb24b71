"""Products of the gradients of neighbouring steps, and the signal that they show.

Let ĝₜ = gₜ + εₜ be the step's gradient and Σ = Cov εₜ. Before ĝₜ₊ₖ is measured the noise εₜ has moved the
parameters by xₜₖ P εₜ, where P is the optimizer's factor (1 in SGD). So with H the Hessian of the objective

    E⟨ĝₜ, ĝₜ₊ₖ⟩ = E⟨gₜ, gₜ₊ₖ⟩ + xₜₖ tr(H P Σ) + ...,   xₜₖ = Σ_{j<k} ηₜ₊ⱼ βʲ,

where η are the rates and β the optimizer's memory (Adam's β₁, SGD's momentum), times (1-β)/(1-βᵗ) in Adam.
Without memory all x are η and all lags are equivalent: such pairs give the signal plus an unknown number.
With memory x starts small and grows with k, so the line of products over x has the signal at x = 0.
"""

from __future__ import annotations

from collections import deque
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from ..inference import Means
from ..validation import Array

LAGS = 10
"""The largest number of steps between two gradients."""
DRAWN = 64
"""The number of steps with the same draw of sketches; sketches of two draws have no product."""
_APART = 2.5
"""The standard errors by which pairs within steps and between steps may differ."""
LINE = 1e-9
"""The share of its squares that must be independent of another regressor to separate the two."""


def memory_of(optimizer: Any) -> tuple[float, bool] | None:
    """β of an optimizer, and whether it corrects its start; None if these are not known."""
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
    """Pairs of a window's steps with earlier steps.

    Arguments:
        units: number that identifies each step, or two steps that are measured as one, in the pairs.
        joined: whether a unit is two steps, so that its own product is one of two steps.
        pairs: result of :meth:`Trail.take` for each.
    """

    units: tuple[int, ...]
    joined: tuple[bool, ...]
    pairs: tuple[Array, ...]


class Trail:
    """The gradients of the last steps, and their products with the newest.

    Arguments:
        optimizer: torch's Adam, AdamW or SGD; others are not known, so no product is taken.
    """

    def __init__(self, optimizer: Any) -> None:
        self._optimizer, self.memory = optimizer, memory_of(optimizer)
        self._kept: deque[tuple[int, int, int, Array, float]] = deque(maxlen=LAGS)
        self._rates: deque[float] = deque(maxlen=LAGS + 1)
        # The number of observed optimizer steps.
        self.seen = 0

    def next(self) -> None:
        """Record the learning rate of the next step, even if the step does not count."""
        if self.memory is not None:
            self.seen += 1
            rate = float(self._optimizer.param_groups[0]["lr"])
            beta, corrected = self.memory
            made = self._before + self.seen
            self._rates.append(rate / (1 - beta**made) if corrected else rate)

    @cached_property
    def _before(self) -> int:
        """The optimizer's steps before the first observation, for example in a resumed training."""
        made = (state["step"] for state in self._optimizer.state.values() if "step" in state)
        return int(next(made, 0))

    def take(self, unit: int, draw: int, gradient: Array, size: float) -> Array:
        """The products of a step with earlier steps.

        Arguments:
            unit: number of the window's unit that contains the step.
            draw: draw of its sketch.
            gradient: n times the step's gradient, as a sketch.
            size: n.

        Returns:
            rows of the unit of the earlier step, the lag k, the weight nₜ nₜ₊ₖ, x and ⟨ĝₜ, ĝₜ₊ₖ⟩, (p, 5).
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
        """The state of the last steps, for JSON."""
        kept = [[*known, gradient.tolist(), size] for *known, gradient, size in self._kept]
        before = self._before if self.seen else None
        return {"seen": self.seen, "before": before, "rates": [*self._rates], "kept": kept}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state from :meth:`state_dict`."""
        self.seen = int(state["seen"])
        if state["before"] is not None:
            # The optimizer has made the steps that it counts now since then.
            self._before = int(state["before"])
        self._rates.clear()
        self._rates.extend(state["rates"])
        self._kept.clear()
        self._kept.extend((*known, np.array(g), size) for *known, g, size in state["kept"])

    def drop(self, unit: int) -> None:
        """Forget a step that the window did not use."""
        kept = [row for row in self._kept if row[0] != unit]
        self._kept.clear()
        self._kept.extend(kept)


def line_sums(lagged: Lagged) -> tuple[Means, Array]:
    """The sums for a weighted line over pairs, as means over units, and the pairs (weight, x, product).

    A pair belongs to both its units and exists only with both. Its x is the mean over pairs of its lag,
    because within a lag x changes with time, like the signal.
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
    """The weight and weighted value of a line's height at x = 0; both 0 if pairs do not determine it."""
    a, ax, axx, ay, axy = np.moveaxis(sums, -1, 0)
    along = np.divide(ax, axx, out=np.zeros_like(ax), where=axx > 0)
    weight = a - along * ax
    known = weight > LINE * a
    return np.where(known, weight, 0.0), np.where(known, ay - along * axy, 0.0)


def combined(within: Means, sums: Means, pairs: Array) -> Means | None:
    """The signal from pairs within steps and between them, (1,); None if these disagree or have no
    information.

    Arguments:
        within: signal of pairs within steps and its weight, per unit; NaN and 0 if there are no pairs.
        sums: sums of :func:`line_sums`.
        pairs: pairs of :func:`line_sums`.
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
