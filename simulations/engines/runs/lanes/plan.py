"""The input of the lanes: a trajectory as numbers and tables, and the layout of rows of lanes."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ustat_pg.engines.aligned import empty_lines
from ustat_pg.engines.draws import MASK
from ustat_pg.execution.compiled import body

IID, EPOCHS = 0, 1
FREE, BALL = 0, 1
FULL, BENT, SHARED, SPACED = range(4)
"""Forms of features: any for each context and arm; these minus ψθ; gₖ δ(x); and gₖ δ(x) with gₖ = k."""

LANES = 128
FEW_CONTEXTS = 4
"""The most contexts that choices distinguish; tables are padded to as many columns."""

UNIT = 2.0**-32
FAR = 300.0
"""The largest spread of logits of equally spaced arms for which powers are used; larger might overflow."""

BITS_OF_ONE = np.int64(0x3FF0000000000000)


class Plan(NamedTuple):
    """A trajectory as the bodies read it.

    Arguments:
        contexts: thresholds of ρ, (X,).
        features: φ(x, k), (K, d, X); offset: (K, X).
        law: thresholds of the rewards except the last, (M - 1, X K): column x K + k; rewards: (M, X K).
        mean_rewards: E[z | x, k], (K, X).
        kind: the kind of baseline; constant: the number that PROMPT_ONLY subtracts; by_count: advantages of a
            failure and of a success by the number of successes, (2, G+1), for BY_COUNT.
        design: IID or EPOCHS.
        rates: (T,); snapshots: (S,).
        theta_set: FREE or BALL; centre (d,), basis (d, r) and radius of a ball.
    """

    contexts: NDArray[np.int64]
    features: NDArray[np.float64]
    offset: NDArray[np.float64]
    law: NDArray[np.int64]
    rewards: NDArray[np.float64]
    mean_rewards: NDArray[np.float64]
    kind: int
    constant: float
    by_count: NDArray[np.float64]
    design: int
    rates: NDArray[np.float64]
    snapshots: NDArray[np.int64]
    theta_set: int
    centre: NDArray[np.float64]
    basis: NDArray[np.float64]
    radius: float


class Rows(NamedTuple):
    """The table of contexts for the lanes, with a row for each number.

    Arguments:
        table: (rows, X), with X padded to at least FEW_CONTEXTS. In this order: features (K e),
            offset (K), for SPACED e to its power less the greatest; 1 + 2⁻³² law ((M - 1) K), values
            of rewards (M K), their means (K), and δ (d) or bends (K d) where the form has them.
        varies: whether a row's entries differ and are read, (rows,).
        form: FULL, BENT, SHARED or SPACED.
        width: e, the number of features: d, or 1 for those that are shared.
        counted: whether outcomes are counted, if they are few; if not, outputs are kept one by one.
        plain: whether all arms' rewards have the same values.
        edges: 1 + 2⁻³² law, (M - 1, X K); offset: o(x, k) itself, (K, X).
    """

    table: NDArray[np.float64]
    varies: NDArray[np.bool_]
    form: int
    width: int
    counted: bool
    plain: bool
    edges: NDArray[np.float64]
    offset: NDArray[np.float64]


@body(inline=True)
def row_at(number):
    """The place where a row begins. The mask tells the compiler that it is not negative."""
    return (number * LANES) & MASK


@body(apart=True)
def empty_rows(rows):
    """Rows that begin at the start of a cache line."""
    return empty_lines(rows * LANES)
