"""The shape that a kernel is compiled for, the tables on the device, and the layout of a team's memory."""

from __future__ import annotations

from typing import Any, NamedTuple

from ...device import device_function

REWARD, PROB, LINEAR, NORM = 0, 1, 2, 3
"""The columns of an outcome's row: its reward about the prompt's centre, π, ⟨s, g⟩ and ‖s‖²."""

CENTRE, PROBS_SQ, FEATURES_SQ = 0, 1, 2
"""The columns of a prompt's row."""

WHOLE, SCALE, NORMS, WEIGHTED, AT_P, AT_Q, AT_W, WHOLE_W = range(8)
"""The stored sums of a group: Σz; 1 / its deviation, or 0 if all are equal; Σ‖s‖² and Σ‖s‖² z; the
parts of P, Q and W along π; the sum of W's weights.
"""

KEPT = 8
MOST_OF_OTHERS = 1e-3
"""The least share of the other outputs' norms that is computed by subtraction."""


class Shape(NamedTuple):
    """The shape that a kernel is compiled for.

    Arguments:
        group, batch, contexts, outcomes, arms, width: G, B, X, M, K, and the length of features or scores.
        form, design: numbered as in :mod:`~ustat_pg.engines.gradients.scalar`.
        vectors: 2, or 3 if an estimator is norm-weighted.
        estimators, quantities, products, directions: their numbers.
        moving, standardised: whether π enters a norm, and whether an estimator divides by the deviation.
        peers, lanes, teams: lanes per prompt and per replication, and replications per thread block.
        distinct: whether no two outcomes of a prompt have one arm.
        counted: whether outcomes are counted, or compared with each other.
        counts, words: the counts in a word, and the words of a prompt's counts.
        shift, context_shift: the bits of a word that the guide tables ignore.
        draws, rows: whether tables are copied to shared memory.
        roomy: whether teams use global memory, because shared memory is too small.
        sharers: the number of teams of a warp that share their sums.
        integers, doubles: a team's numbers in shared memory, after the thread block's own.
        first_product, first_double, first_integer: the places where sums and the teams' numbers begin.
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
    moving: int
    standardised: int
    peers: int
    lanes: int
    teams: int
    distinct: int
    counted: int
    counts: int
    words: int
    shift: int
    context_shift: int
    draws: int
    rows: int
    roomy: int
    sharers: int
    integers: int
    doubles: int
    first_product: int
    first_double: int
    first_integer: int


class There(NamedTuple):
    """Tables on the device, all of them flat.

    Arguments:
        context_ends, context_guide: thresholds of ρ, and the places where a search begins.
        ends, guide: thresholds and starts for each prompt's outcomes.
        last: the outcome without a threshold, first for the draw of prompts, then for each prompt.
        span: the first outcome of each prompt's arm, and the one after its last.
        arm: the arm of each outcome.
        row, prompt: the rows of each outcome, and of each prompt.
        probs, features, dense: π, φ and s for each prompt.
        along: ⟨s, u⟩ of each direction and outcome.
        baselines, by_count: values of each estimator, by prompt and by the number of successes.
        added: the constant that is added to each quantity.
    """

    context_ends: Any
    context_guide: Any
    ends: Any
    guide: Any
    last: Any
    span: Any
    arm: Any
    row: Any
    prompt: Any
    probs: Any
    features: Any
    dense: Any
    along: Any
    baselines: Any
    by_count: Any
    added: Any


class Asked(NamedTuple):
    """The measured quantities, in arrays or in constant tuples.

    Arguments:
        kinds: the kinds of estimators.
        quantity, first, second: the kind and two indices of each quantity.
        left, right: the quantities whose product is summed; right is -1 for a single quantity.
    """

    kinds: Any
    quantity: Any
    first: Any
    second: Any
    left: Any
    right: Any


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
def turns(items, lanes):
    """The number of rounds in which each lane takes one item until all are taken."""
    return (items + lanes - 1) // lanes


@device_function
def within(i, items, lanes):
    """Whether the item exists; known at compile time if all lanes have equally many."""
    return items % lanes == 0 or i < items


# A team's integers: prompts, outcomes, counts, and the places that a shuffle has moved.


@device_function
def chosen_at(n, at, b):
    return at.integers + n.batch + b * n.group


@device_function
def counts_at(n, at, b):
    return at.integers + n.batch * (1 + n.group) + b * n.words


@device_function
def moved_at(n, at):
    return at.integers + n.batch * (1 + n.group + n.words)


# Its doubles: stored sums of groups, coefficients, quantities by parts, and space for a coordinate's.


@device_function
def kept_at(n, at, b):
    return at.doubles + b * KEPT


@device_function
def coefficients_at(n, at, b, e):
    return at.doubles + n.batch * KEPT + (b * n.estimators + e) * n.vectors


@device_function
def values_at(n, at, part):
    return at.doubles + n.batch * (KEPT + n.estimators * n.vectors) + part * n.quantities
