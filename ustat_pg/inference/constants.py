"""Estimates of c1, c2, c3, the best group size and the critical budget, from means of independent parts.

A pool averages over prompts, and the meter averages over the steps of a training. Both call these functions,
so a quantity has one name, one error and one interval.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..display.shown import Shown
from ..validation import Array
from . import Interval, Means, ratio
from .estimate import Estimate

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Estimates(Shown):
    """A record of estimates."""

    @property
    def estimates(self) -> dict[str, Estimate]:
        """The quantities with an error and an interval, by name."""
        return {name: each for name, each in vars(self).items() if isinstance(each, Estimate)}

    @property
    def not_known(self) -> dict[str, str]:
        """The reasons for unknown ends of intervals, by estimate."""
        return {name: each.reason for name, each in self.estimates.items() if each.reason}

    def to_frame(self) -> pd.DataFrame:
        """A row for each estimate: name, value, se, low, high, and the reason for an unknown end."""
        import pandas as pd

        rows = [{"name": name} | vars(each) for name, each in self.estimates.items()]
        return pd.DataFrame(rows)


def constant_estimates(parts: Means, skewness: float = -math.inf) -> dict[str, Estimate]:
    """c1, c2, c3 and G* by name.

    Arguments:
        parts: means whose first columns are c1, c2 and c3.
        skewness: lower bound of the skewness of c1's parts, as for
            :meth:`~ustat_pg.inference.Means.interval`.
    """
    return {
        "c1": parts.estimate(0, skewness),
        "c2": parts.estimate(1),
        "c3": parts.estimate(2),
        "g_star": best_group_size(parts),
    }


def best_group_size(parts: Means) -> Estimate:
    """G* = 1 + √(c3/c1), infinite if c1 is not positive.

    If the interval of c1 reaches 0, every ratio is possible, and the upper end is infinite.
    """
    found = ratio(parts.apply(lambda columns: columns[..., [2, 0]]))
    size = max(found.value, 0.0) if math.isfinite(found.value) else found.value
    se = found.se / (2 * math.sqrt(size)) if size > 0 else math.nan
    low, high = (1 + math.sqrt(end) for end in found.interval)
    return Estimate(1 + math.sqrt(size), se, low, high)


def least_budget(parts: Means, signal: Interval | None = None) -> Estimate:
    """K_crit at the best group size, (c1 + c2 + 2 √(c1 c3))/‖g‖², infinite if ‖g‖² is not positive.

    Negative constants count as 0 in the estimate; its interval is that of the ratio without this change.

    Arguments:
        parts: means whose first columns are c1, c2 and c3, and the last ‖g‖².
        signal: interval of ‖g‖² (default: that of a mean).
    """

    def noise(columns: Array) -> Array:
        c1, c2, c3 = (columns[..., place] for place in range(3))
        # Negative estimates under the root count as 0.
        root = np.sqrt(np.maximum(c1, 0.0)) * np.sqrt(np.maximum(c3, 0.0))
        return np.asarray(least_noise(c1, c2, root))

    def noise_and_signal(columns: Array) -> Array:
        return np.stack([noise(columns), columns[..., -1]], axis=-1)

    found, strength = ratio(parts.apply(noise_and_signal), signal), float(parts.full[-1])
    value = float(noise(np.maximum(parts.full[:3], 0.0)))
    return replace(found, value=value / strength) if strength > 0 else found


def least_noise(c1: Any, c2: Any, root: Any) -> Any:
    """c1 + c2 + 2 √(c1 c3), the noise of one output at the best group size; of symbols too.

    Arguments:
        c1, c2, root: c1, c2 and √(c1 c3).
    """
    return c1 + c2 + 2 * root
