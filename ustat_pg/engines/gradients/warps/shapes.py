"""The shape that a kernel is compiled for, the tables on the device, and the layout of a team's memory."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ...device import device_function

REWARD, LINEAR, PROB, NORM = 0, 1, 2, 3
"""The columns of outcomes: the reward about the prompt's centre, ⟨s, g⟩, π and ‖s‖²."""

CENTRE, PROBS_SQ, FEATURES_SQ = 0, 1, 2
"""The columns of a prompt's row."""

WHOLE, SCALE, AT_P, AT_Q, AT_W, WHOLE_W = range(6)
"""The stored sums of a group: Σz; 1 / its deviation, or 0 if all are equal; the parts of P, Q and W along
π; the sum of W's weights.
"""

KEPT = 6
MOST_OF_OTHERS = 1e-3
"""The least share of the other outputs' norms that is computed by subtraction."""


class Shape(NamedTuple):
    """The shape that a kernel is compiled for.

    Arguments:
        group, batch, contexts, outcomes, arms, width: G, B, X, M, K, and the length of features or scores.
        form, design: numbered as in :mod:`~ustat_pg.engines.gradients.scalar`.
        vectors: 2, or 3 if an estimator is norm-weighted.
        estimators, quantities, products, directions: their numbers.
        kind, first, second, left, right: where these begin in the list of what is asked, after the kinds of
            estimators: each quantity's kind, its estimator, and its other estimator or its direction; then
            the quantities whose product is summed, -1 on the right for a single quantity.
        moving, standardised: whether π enters a norm, and whether an estimator divides by the deviation.
        peers, lanes, teams: lanes per prompt and per replication, and replications per thread block.
        peer_bits, lane_bits: binary logarithms of the first two.
        quads: the number of times that a peer draws four outputs.
        distinct: whether no two outcomes of a prompt have one arm.
        counted: whether outcomes are counted, or compared with each other.
        count_bits, words: the binary logarithm of the counts in a word, and the words of a prompt's counts.
        shift, context_shift: the bits of a word that the guide tables ignore.
        columns, draws: the columns of outcomes and the words of the tables of draws that are copied to
            shared memory.
        roomy: whether teams use global memory, because shared memory is too small.
        sharers, sharer_bits: the number of teams of a warp that share their sums, and its binary logarithm.
        integers, doubles: a team's numbers in shared memory, after the thread block's own.
        chosen, counts, moved: where a team's integers begin, after its prompts: outcomes, their counts, and
            the places that a shuffle has moved.
        coefficients, weights, values: where its doubles begin, after the sums of groups: the coefficients of
            estimators, the weights of W, and quantities by parts, with space for a coordinate's.
        rows: the outcomes of all prompts, which is the length of a column.
        first_product, first_double, first_integer: the places where sums and the teams' numbers begin.
        one: 1. Loops add it, so that the compiler unrolls only loops of a shape that is built in.
        share: 1/G.
    """

    group: int
    batch: int
    contexts: int
    outcomes: int
    arms: int
    width: int
    form: int
    design: int
    vectors: int
    estimators: int
    quantities: int
    products: int
    directions: int
    kind: int
    first: int
    second: int
    left: int
    right: int
    moving: int
    standardised: int
    peers: int
    lanes: int
    teams: int
    peer_bits: int
    lane_bits: int
    quads: int
    distinct: int
    counted: int
    count_bits: int
    words: int
    shift: int
    context_shift: int
    columns: int
    draws: int
    roomy: int
    sharers: int
    sharer_bits: int
    integers: int
    doubles: int
    chosen: int
    counts: int
    moved: int
    coefficients: int
    weights: int
    values: int
    rows: int
    first_product: int
    first_double: int
    first_integer: int
    one: int
    share: float


class Places(NamedTuple):
    """The places of tables in the four arrays on the device.

    Arguments:
        cells, guide, ends, last: how words choose a prompt's outcomes, in ``words``: see
            :class:`~ustat_pg.engines.gradients.scalar.Search`; ``last`` is the outcome without a threshold.
        context_guide, context_ends, context_last: how words choose a prompt, in ``words``.
        span, arm: the first outcome of each prompt's arm and the one after its last, and the arm of each
            outcome, in ``words``.
        row, prompt: the columns of outcomes, and the rows of prompts, in ``reals``.
        probs, features, dense: π, φ and s for each prompt, in ``reals``.
        along: ⟨s, u⟩ of each direction and outcome, in ``of_reals``, as are all that follow.
        baselines, by_count: values of each estimator, by prompt and by the number of successes.
        added: the constant that is added to each quantity.
    """

    cells: int
    guide: int
    ends: int
    last: int
    context_guide: int
    context_ends: int
    context_last: int
    span: int
    arm: int
    row: int
    prompt: int
    probs: int
    features: int
    dense: int
    along: int
    baselines: int
    by_count: int
    added: int


class There(NamedTuple):
    """The tables on the device, at their :class:`Places`.

    Arguments:
        words, reals: those of a problem.
        of_reals: those of a cell and its quantities.
    """

    words: Any
    reals: Any
    of_reals: Any


class Place(NamedTuple):
    """A thread's position: its team's first integer and double, its index in the team and among its peers,
    and the index of its peers.
    """

    integers: int
    doubles: int
    lane: int
    peer: int
    part: int


@device_function
def after(i, step):
    """The next place of a loop, in 32 bits."""
    return np.int32(i + step)
