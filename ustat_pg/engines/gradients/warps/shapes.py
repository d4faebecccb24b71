"""The shape that a kernel is compiled for, the tables on the device, and where a team keeps its numbers."""

from __future__ import annotations

from typing import Any, NamedTuple

from ...device import device_function

REWARD, PROB, LINEAR, NORM = 0, 1, 2, 3
"""The columns of an outcome's row: its reward about the prompt's centre, π, ⟨s, g⟩ and ‖s‖²."""

CENTRE, PROBS_SQ, FEATURES_SQ = 0, 1, 2
"""The columns of a prompt's row."""

WHOLE, SCALE, NORMS, WEIGHTED, AT_P, AT_Q, AT_W, WHOLE_W = range(8)
"""The sums kept of a group: Σz; one over its deviation, 0 where all are equal; Σ‖s‖² and Σ‖s‖² z; the
parts of P, Q and W along π; W's weights together.
"""

KEPT = 8
MOST_OF_OTHERS = 1e-3
"""The least share of the other outputs' norms that is found by subtraction."""


class Shape(NamedTuple):
    """The shape that a kernel is compiled for.

    Arguments:
        group, batch, contexts, outcomes, arms, width: G, B, X, M, K, and how long features or scores are.
        form, design: numbered as in :mod:`~ustat_pg.engines.gradients.scalar`.
        vectors: 2, or 3 where an estimator is norm-weighted.
        estimators, quantities, products, directions: how many.
        moving, standardised: whether π enters a norm, and whether an estimator divides by the deviation.
        peers, lanes, teams: lanes of a prompt and of a replication, replications of a thread block.
        distinct: whether no two outcomes of a prompt have one arm.
        counted: whether outcomes are counted, or compared with each other.
        counts, words: the counts in a word, and the words of a prompt's counts.
        shift, context_shift: bits of a word that the guide tables leave out.
        draws, rows: whether tables are copied to shared memory.
        roomy: whether teams' memory is the device's, since too little is shared.
        sharers: the teams of a warp that have their sums in one place.
        integers, doubles: a team's in shared memory; in front of them lie the thread block's own.
        first_product, first_double, first_integer: where sums begin, and the teams' own.
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
        context_ends, context_guide: thresholds of ρ and where a search begins.
        ends, guide: those of each prompt's outcomes.
        last: the outcome that no threshold ends, of prompts' draw and then of each prompt's.
        span: the first outcome of each prompt's arm, and the one behind its last.
        arm: that of each outcome.
        row, prompt: the rows of each outcome, and of each prompt.
        probs, features, dense: π, φ and s of each prompt.
        along: ⟨s, u⟩ of each direction and outcome.
        baselines, by_count: of each estimator, by prompt and by the number of successes.
        added: what each quantity ends with.
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
    """The quantities measured, in arrays or in tuples that are built in.

    Arguments:
        kinds: of estimators.
        quantity, first, second: kind and two numbers of each quantity.
        left, right: the quantities whose product is added up; right is -1 where it is one alone.
    """

    kinds: Any
    quantity: Any
    first: Any
    second: Any
    left: Any
    right: Any


class Place(NamedTuple):
    """Where a thread stands: its team's first integer and double, its number in the team and among its peers,
    its peers' number.
    """

    integers: int
    doubles: int
    lane: int
    peer: int
    part: int


@device_function
def turns(items, lanes):
    """How often lanes take one item each until all are taken."""
    return (items + lanes - 1) // lanes


@device_function
def within(i, items, lanes):
    """Whether there is such an item; known beforehand where all lanes have as many."""
    return items % lanes == 0 or i < items


# A team's integers: prompts, outcomes, counts, and what a shuffle has moved.


@device_function
def chosen_at(n, at, b):
    return at.integers + n.batch + b * n.group


@device_function
def counts_at(n, at, b):
    return at.integers + n.batch * (1 + n.group) + b * n.words


@device_function
def moved_at(n, at):
    return at.integers + n.batch * (1 + n.group + n.words)


# Its doubles: what is kept of groups, coefficients, quantities by parts, and room for those of a coordinate.


@device_function
def kept_at(n, at, b):
    return at.doubles + b * KEPT


@device_function
def coefficients_at(n, at, b, e):
    return at.doubles + n.batch * KEPT + (b * n.estimators + e) * n.vectors


@device_function
def values_at(n, at, part):
    return at.doubles + n.batch * (KEPT + n.estimators * n.vectors) + part * n.quantities
