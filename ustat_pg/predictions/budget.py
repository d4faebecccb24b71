"""The budget that is needed, and the group size with the best worst case over errors of the constants.

At a budget K = BG of outputs K · MSE = c1 G + c2 + c3/(G-1) (Theorem 7, group_size). All results here need
only c1, c2 and c3. Estimates of these have intervals, and a decision that is good for every value in them is
better than the best one for their middle.
"""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ..validation import Array, InputError, finite_array, integer, positive
from .closed_forms import budget_noise
from .group_size import MseConstants

_FLAT = 1.05
"""How far above the least noise a noise may be and still count as equally good."""
_TRIED = 10_000
"""The number of group sizes that are tried: among so many, one nearly divides any budget."""


def critical_budget(constants: MseConstants, gradient_sq: float) -> float:
    """K_crit = (c1 + c2 + 2 √(c1 c3))/‖g‖², at which grpo's least MSE equals the squared gradient [exact].

    Far below K_crit a step is mostly noise, and twice the outputs save nearly half of the steps; far above it
    more outputs gain little. It is the noise scale of McCandlish et al. (2018), arXiv 1812.06162, at the best
    group size.

    Arguments:
        constants: constants of the problem.
        gradient_sq: ‖g‖² > 0, the squared norm of the mean over prompts.

    >>> critical_budget(MseConstants(c1=0.01, c2=0.5, c3=1.0), gradient_sq=0.1)
    7.1
    """
    return constants.least_mse(1.0) / positive("gradient_sq", gradient_sq)


def near_budget(constants: MseConstants, budget: int) -> tuple[int, int]:
    """The budget nearest to K that some G with noise within 5% of the least divides, and that G [exact].

    It may be K itself. These G have c1 G + c2 + c3/(G-1) <= 1.05 (c1 + c2 + 2 √(c1 c3)); if several budgets
    are equally near, the one with the least noise is taken.

    Arguments:
        constants: constants of the problem.
        budget: K >= 2, outputs of a step.

    >>> near_budget(MseConstants(c1=0.1, c2=0.5, c3=1.0), 1031)
    (1032, 4)
    """
    outputs = integer("budget", budget, 2)

    def noise(size: Any) -> Any:
        return budget_noise(size, constants.c1, 0.0, constants.c3)

    best = 1 + math.sqrt(constants.c3 / constants.c1) if constants.c1 else math.inf
    least = noise(min(max(best, 2.0), float(outputs)))
    # K · MSE = noise + c2.
    bound = _FLAT * (least + constants.c2) - constants.c2
    # The set is never empty: the better of two neighbouring whole G >= 2 is at most 1.045 times the least
    # between them. The allowed G lie between the roots of c1 (G-1)² - (bound - c1) (G-1) + c3.
    half = (bound - constants.c1) / 2
    root = math.sqrt(max(half**2 - constants.c1 * constants.c3, 0.0))
    low = 1 + (constants.c3 / (half + root) if constants.c3 else 0.0)
    sizes = np.append(max(math.ceil(low), 2) + np.arange(_TRIED), outputs)
    sizes = sizes[(sizes <= outputs) & (noise(sizes) <= bound)]
    nearest = np.maximum(np.rint(outputs / sizes), 1).astype(np.int64) * sizes
    chosen = np.lexsort((noise(sizes), np.abs(nearest - outputs)))[0]
    return int(nearest[chosen]), int(sizes[chosen])


def robust_group_size(
    constants: MseConstants,
    c1: ArrayLike,
    c3: ArrayLike,
    group_sizes: ArrayLike,
    batch_sizes: ArrayLike,
    *,
    c2: ArrayLike | None = None,
    population: int | None = None,
) -> tuple[int, Array]:
    """The G with the smallest worst-case ratio of its MSE to the least, over constants within intervals
    [exact].

        min_G  max_{c1, c2, c3}  MSE(G; c1, c2, c3) / min_G' MSE(G'; c1, c2, c3)

    For given G and G' this is a ratio of two linear functions of the constants. It is greatest at a corner of
    the intervals, or in the limit of a constant without upper end, so only these are evaluated.

    Arguments:
        constants: constants; their c2 counts as known if no ``c2`` is given.
        c1, c3: least and greatest value, (2,), infinite if an end is not known; negative values count as 0.
        c2: least and greatest value, likewise.
        group_sizes, batch_sizes: the designs to choose from, G >= 2 and B, (D,).
        population: N, if prompts are drawn without replacement.

    Returns:
        the group size (the largest of equal ones), and the worst ratio of each design, (D,), at least 1.

    >>> found = MseConstants(c1=0.1, c2=0.5, c3=1.0)
    >>> size, worst = robust_group_size(found, (0.0, 0.2), (0.9, 1.1), [2, 4, 8, 16], [8, 4, 2, 1])
    >>> size, worst.round(2).tolist()
    (8, [2.79, 1.51, 1.39, 2.35])

    If c1 may have any value, twice the prompts give at least half of the error:

    >>> size, worst = robust_group_size(found, (0.0, np.inf), (0.9, 1.1), [2, 4, 8, 16], [8, 4, 2, 1])
    >>> size, worst.round(2).tolist()
    (4, [2.79, 2.0, 4.0, 8.0])
    """
    ends, alone = [], []
    given = (constants.c2,) * 2 if c2 is None else c2
    for axis, (name, interval) in enumerate((("c1", c1), ("c2", given), ("c3", c3))):
        both = np.array(interval) if np.ndim(interval) == 1 else np.zeros(0)
        sound = both.dtype.kind in "iuf" and both.shape == (2,)
        if not sound or not both[0] <= both[1] or both[0] == np.inf:
            raise InputError(f"{name} is {interval!r}: it must be its least and its greatest value")
        both = np.maximum(both.astype(float), 0.0)
        ends.append(both[np.isfinite(both)])
        if len(ends[-1]) < 2:
            alone.append(np.eye(3)[axis])
    sizes = finite_array("group_sizes", group_sizes, 1)
    worst = np.ones(len(sizes))
    for corner in (*product(*ends), *alone):
        errors = MseConstants(*map(float, corner)).mse(sizes, batch_sizes, population=population)
        if (least := errors.min()) > 0:
            worst = np.maximum(worst, errors / least)
        else:
            worst[errors > 0] = np.inf
    return int(sizes[len(sizes) - 1 - int(worst[::-1].argmin())]), worst
