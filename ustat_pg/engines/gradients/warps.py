"""The warps of the cuda engine: a replication to a few lanes of a warp, its sums added up on the device.

A team of lanes takes a replication, some of them, the peers, one of its prompts. Each lane draws four outputs
at a time, counts them in shared memory and adds up its share; shares are added by shuffles in a fixed
order. The quantities follow from inner products of the vectors P, Q and W of
:mod:`ustat_pg.engines.gradients.scalar`, prompt by prompt; of dense scores from their coordinates.

Team t of thread block b takes the replications (round · blocks + b) · teams + t, and a thread block adds up
its teams in order. So no result depends on how many thread blocks a device runs at once.

What a kernel is made for is a :class:`Shape`: numbers that it is given, or that are built in, which
is faster and compiled anew for each (:func:`built_in`).
"""

from __future__ import annotations

from functools import lru_cache
from math import sqrt
from typing import Any, NamedTuple

import numpy as np
from numba import cuda, float64, uint32

from ...rng import CONTEXT_SLOT
from ..device import device_function, index, meet, total
from ..draws import words_of_32
from ..kinds import BY_COUNT, GROUP_MEAN, GRPO, PROMPT_ONLY, STANDARDISED
from .scalar import (
    DENSE,
    DISTANCE,
    FIXED,
    IID,
    MIXED,
    PROJECTION,
    SHARED,
    SQUARED_ERROR,
    SQUARED_PROJECTION,
)

REWARD, PROB, LINEAR, NORM = 0, 1, 2, 3
"""The columns of an outcome's row: its reward about the prompt's centre, π, ⟨s, g⟩ and ‖s‖²."""

CENTRE, PROBS_SQ, FEATURES_SQ = 0, 1, 2
"""The columns of a prompt's row."""

WHOLE, SCALE, NORMS, WEIGHTED, AT_P, AT_Q, AT_W, WHOLE_W = range(8)
"""What is kept of a group: Σz; one over its deviation, 0 where all are equal; Σ‖s‖² and Σ‖s‖² z; the
parts of P, Q and W along π; W's weights together.
"""

KEPT = 8
MOST_OF_OTHERS = 1e-3
"""The least share of the other outputs' norms that is found by subtraction."""


class Shape(NamedTuple):
    """What a kernel is made for.

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
    """What is measured, in arrays or in tuples that are built in.

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


# Draws.


@device_function
def search(word, ends, guide, at, first, shift, last):
    """The outcome that a word chooses, of those from ``first`` on; the last has no threshold."""
    j = np.int64(guide[index(at + (word >> shift))])
    while j < last and word >= ends[index(first + j)]:
        j += 1
    return j


@device_function
def draw_prompts(n, rep, key, t, at, ints):
    """The prompts of a replication."""
    low, high = np.uint32(rep & 0xFFFFFFFF), np.uint32((rep >> 32) & 0xFFFFFFFF)
    if n.contexts == 1 or n.design == FIXED:
        for turn in range(turns(n.batch, n.lanes)):
            b = at.lane + turn * n.lanes
            if within(b, n.batch, n.lanes):
                ints[index(at.integers + b)] = b % n.contexts
    elif n.design == IID:
        for turn in range(turns(n.batch, n.lanes)):
            b = at.lane + turn * n.lanes
            if within(b, n.batch, n.lanes):
                word = words_of_32(b // 4, CONTEXT_SLOT, low, high, key)[b % 4]
                ints[index(at.integers + b)] = search(
                    word, t.context_ends, t.context_guide, 0, 0, n.context_shift, t.last[index(0)]
                )
    elif at.lane == 0:
        # The first steps of a shuffle: of the places only those are written down that moved.
        moved = moved_at(n, at)
        for b in range(n.batch):
            word = words_of_32(b // 4, CONTEXT_SLOT, low, high, key)[b % 4]
            other = b + ((np.int64(word) * (n.contexts - b)) >> 32)
            taken, here = other, b
            for j in range(b):
                if ints[index(moved + 2 * j)] == other:
                    taken = np.int64(ints[index(moved + 2 * j + 1)])
                if ints[index(moved + 2 * j)] == b:
                    here = np.int64(ints[index(moved + 2 * j + 1)])
            ints[index(at.integers + b)] = taken
            ints[index(moved + 2 * b)] = other
            ints[index(moved + 2 * b + 1)] = here


@device_function
def draw_group(n, rep, b, x, key, t, draws, at, ints):
    """A lane's outputs of a prompt's group, written down and counted."""
    low, high = np.uint32(rep & 0xFFFFFFFF), np.uint32((rep >> 32) & 0xFFFFFFFF)
    ends, guide = draws
    places = x << (32 - n.shift)
    chosen, counts = chosen_at(n, at, b), counts_at(n, at, b)
    bits = 32 // n.counts
    for turn in range(turns((n.group + 3) // 4, n.peers)):
        quad = at.peer + turn * n.peers
        if within(quad, (n.group + 3) // 4, n.peers):
            words = words_of_32(quad, b, low, high, key)
            for i in range(4):
                if 4 * quad + i < n.group:
                    o = search(
                        words[i], ends, guide, places, x * n.outcomes, n.shift, t.last[index(1 + x)]
                    )
                    ints[index(chosen + 4 * quad + i)] = o
                    if n.counted:
                        one = np.uint32(1 << (o % n.counts * bits))
                        cuda.atomic.add(ints, index(counts + o // n.counts), one)


@device_function
def count_of(n, at, b, o, ints):
    """How often an outcome was drawn for a prompt."""
    bits = 32 // n.counts
    word = np.int64(ints[index(counts_at(n, at, b) + o // n.counts)])
    return (word >> (o % n.counts * bits)) & ((1 << bits) - 1)


# Weights: z/G of P, 1/G of Q, A/G of W.


@device_function
def norm_weighted(n, at, b, x, o, rows, t, ints, reals):
    """A/G of an outcome of a group, norm-weighted."""
    kept, row = kept_at(n, at, b), 4 * (x * n.outcomes + o)
    whole, weighted = reals[index(kept + NORMS)], reals[index(kept + WEIGHTED)]
    norm, z = rows[index(row + NORM)], rows[index(row + REWARD)]
    others, others_weighted = whole - norm, weighted - norm * z
    if not others > MOST_OF_OTHERS * whole:
        # The own norm dwarfs the others: they are added up, less one of its kind.
        others, others_weighted, own = 0.0, 0.0, True
        for j in range(n.group):
            k = np.int64(ints[index(chosen_at(n, at, b) + j)])
            if k == o and own:
                own = False
            else:
                other = 4 * (x * n.outcomes + k)
                others += rows[index(other + NORM)]
                others_weighted += rows[index(other + NORM)] * rows[index(other + REWARD)]
    # 0/0 is a baseline of 0 by definition, which is minus the centre here.
    baseline = -t.prompt[index(3 * x + CENTRE)]
    if others > 0.0:
        baseline = others_weighted / others
    return (z - baseline) / n.group


@device_function
def successes(n, x, whole, t):
    """The rewards of 1 in a group of rewards 0 and 1, from their sum about the prompt's centre."""
    return np.int64(whole + n.group * t.prompt[index(3 * x + CENTRE)] + 0.5)


# One prompt.


@device_function
def prompt_sums(n, b, x, rows, t, at, ints, reals):
    """What is kept of a group, the same in all its peers; its ends along g."""
    chosen, first = chosen_at(n, at, b), 4 * x * n.outcomes
    share = 1.0 / n.group
    whole = 0.0
    for turn in range(turns(n.group, n.peers)):
        i = at.peer + turn * n.peers
        if within(i, n.group, n.peers):
            whole += rows[index(first + 4 * np.int64(ints[index(chosen + i)]) + REWARD)]
    whole = total(whole, n.peers)
    scale, norms, weighted = 0.0, 0.0, 0.0
    if n.standardised:
        squares, unequal = 0.0, 0.0
        start = rows[index(first + 4 * np.int64(ints[index(chosen)]) + REWARD)]
        for turn in range(turns(n.group, n.peers)):
            i = at.peer + turn * n.peers
            if within(i, n.group, n.peers):
                z = rows[index(first + 4 * np.int64(ints[index(chosen + i)]) + REWARD)]
                squares += (z - whole * share) * (z - whole * share)
                if z != start:
                    unequal += 1.0
        squares, unequal = total(squares, n.peers), total(unequal, n.peers)
        if unequal > 0.0:
            scale = 1.0 / sqrt(squares * share)
    if n.vectors == 3:
        for turn in range(turns(n.group, n.peers)):
            i = at.peer + turn * n.peers
            if within(i, n.group, n.peers):
                row = first + 4 * np.int64(ints[index(chosen + i)])
                norms += rows[index(row + NORM)]
                weighted += rows[index(row + NORM)] * rows[index(row + REWARD)]
        norms, weighted = total(norms, n.peers), total(weighted, n.peers)
    kept = kept_at(n, at, b)
    if at.peer == 0:
        reals[index(kept + WHOLE)] = whole
        reals[index(kept + SCALE)] = scale
        reals[index(kept + NORMS)] = norms
        reals[index(kept + WEIGHTED)] = weighted
    meet(n.peers)


@device_function
def coefficients(n, a, b, x, t, at, reals):
    """The multiples of P, Q and W in each estimator at a prompt; its peers take some each."""
    kept = kept_at(n, at, b)
    whole, scale = reals[index(kept + WHOLE)], reals[index(kept + SCALE)]
    for turn in range(turns(n.estimators, n.peers)):
        e = at.peer + turn * n.peers
        if within(e, n.estimators, n.peers):
            kind, of_p, of_q, of_w = a.kinds[e], 0.0, 0.0, 0.0
            if kind == PROMPT_ONLY:
                of_p, of_q = 1.0, -t.baselines[index(e * n.contexts + x)]
            elif kind == GRPO:
                of_p, of_q = n.group / (n.group - 1.0), -whole / (n.group - 1.0)
            elif kind == GROUP_MEAN:
                of_p, of_q = 1.0, -whole / n.group
            elif kind == STANDARDISED:
                of_p, of_q = scale, -scale * whole / n.group
            elif kind == BY_COUNT:
                place = 2 * e * (n.group + 1) + successes(n, x, whole, t)
                of_p = t.by_count[index(place + n.group + 1)]
                of_q = t.by_count[index(place)] + t.prompt[index(3 * x + CENTRE)] * of_p
            else:
                of_w = 1.0
            place = coefficients_at(n, at, b, e)
            reals[index(place)], reals[index(place + 1)] = of_p, of_q
            if n.vectors == 3:
                reals[index(place + 2)] = of_w
    meet(n.peers)


@device_function
def along(n, b, e, of_p, of_q, of_w, at, reals):
    """Σ_v coefficient · number of an estimator at a prompt."""
    place = coefficients_at(n, at, b, e)
    s = reals[index(place)] * of_p + reals[index(place + 1)] * of_q
    return s + reals[index(place + 2)] * of_w if n.vectors == 3 else s


@device_function
def linear_parts(n, a, b, x, rows, t, at, ints, reals):
    """What quantities have of a prompt alone: along g and other directions, and whether it is mixed."""
    chosen, first = chosen_at(n, at, b), x * n.outcomes
    share, per_prompt = 1.0 / n.group, 1.0 / n.batch
    values = values_at(n, at, at.part)
    at_p, at_q, at_w, whole_w = 0.0, 0.0, 0.0, 0.0
    for j in range(-1, n.directions):
        of_p, of_q, of_w = 0.0, 0.0, 0.0
        for turn in range(turns(n.group, n.peers)):
            i = at.peer + turn * n.peers
            if within(i, n.group, n.peers):
                o = np.int64(ints[index(chosen + i)])
                row = 4 * (first + o)
                slope = rows[index(row + LINEAR)]
                if j >= 0:
                    slope = t.along[index(j * n.contexts * n.outcomes + first + o)]
                z, w = rows[index(row + REWARD)], 0.0
                if n.vectors == 3:
                    w = norm_weighted(n, at, b, x, o, rows, t, ints, reals)
                of_p += z * slope
                of_q += slope
                of_w += w * slope
                if j < 0 and n.moving:
                    at_p += z * rows[index(row + PROB)]
                    at_q += rows[index(row + PROB)]
                    at_w += w * rows[index(row + PROB)]
                    whole_w += w
        of_p, of_q = total(of_p, n.peers) * share, total(of_q, n.peers) * share
        if n.vectors == 3:
            of_w = total(of_w, n.peers)
        for turn in range(turns(n.quantities, n.peers)):
            q = at.peer + turn * n.peers
            if within(q, n.quantities, n.peers):
                kind, one, other = a.quantity[q], a.first[q], a.second[q]
                if j < 0 and kind == SQUARED_ERROR:
                    s = along(n, b, one, of_p, of_q, of_w, at, reals)
                    reals[index(values + q)] -= 2.0 * per_prompt * s
                elif j < 0 and kind == MIXED:
                    if 0 < successes(n, x, reals[index(kept_at(n, at, b) + WHOLE)], t) < n.group:
                        reals[index(values + q)] += per_prompt
                elif j == other and kind in (PROJECTION, SQUARED_PROJECTION):
                    s = along(n, b, one, of_p, of_q, of_w, at, reals)
                    reals[index(values + q)] += per_prompt * s
    if n.moving:
        at_p, at_q = total(at_p, n.peers) * share, total(at_q, n.peers) * share
        if n.vectors == 3:
            at_w, whole_w = total(at_w, n.peers), total(whole_w, n.peers)
        if at.peer == 0:
            kept = kept_at(n, at, b)
            reals[index(kept + AT_P)], reals[index(kept + AT_Q)] = at_p, at_q
            reals[index(kept + AT_W)], reals[index(kept + WHOLE_W)] = at_w, whole_w


# Two prompts, or one twice.


@device_function
def masses(n, c, y, low, high, rows, t, at, ints, reals):
    """The weights of P, Q and W that a prompt's group has put on some outcomes, times G, G and 1."""
    of_p, of_q, of_w = 0.0, 0.0, 0.0
    if n.counted:
        for k in range(low, high):
            often = float(count_of(n, at, c, k, ints))
            if often > 0.0:
                of_p += often * rows[index(4 * (y * n.outcomes + k) + REWARD)]
                of_q += often
                if n.vectors == 3:
                    of_w += often * norm_weighted(n, at, c, y, k, rows, t, ints, reals)
    else:
        for i in range(n.group):
            k = np.int64(ints[index(chosen_at(n, at, c) + i)])
            if low <= k < high:
                of_p += rows[index(4 * (y * n.outcomes + k) + REWARD)]
                of_q += 1.0
                if n.vectors == 3:
                    of_w += norm_weighted(n, at, c, y, k, rows, t, ints, reals)
    return of_p, of_q, of_w


@device_function
def pi_parts(n, b, x, y, rows, t, at, ints, reals):
    """Σ w π_y of a prompt's P, Q and W, along the probabilities of another."""
    of_p, of_q, of_w = 0.0, 0.0, 0.0
    for turn in range(turns(n.group, n.peers)):
        i = at.peer + turn * n.peers
        if within(i, n.group, n.peers):
            o = np.int64(ints[index(chosen_at(n, at, b) + i)])
            prob = t.probs[index(y * n.arms + t.arm[index(x * n.outcomes + o)])]
            of_p += rows[index(4 * (x * n.outcomes + o) + REWARD)] * prob
            of_q += prob
            if n.vectors == 3:
                of_w += norm_weighted(n, at, b, x, o, rows, t, ints, reals) * prob
    share = 1.0 / n.group
    of_p, of_q = total(of_p, n.peers) * share, total(of_q, n.peers) * share
    return of_p, of_q, total(of_w, n.peers) if n.vectors == 3 else of_w


@device_function
def add_products(n, a, b, c, x, y, rows, t, at, ints, reals):
    """Add to each quantity what two prompts' vectors, or one prompt's own, make of it."""
    share = 1.0 / n.group
    pp, pq, qp, qq = 0.0, 0.0, 0.0, 0.0
    pw, qw, wp, wq, ww = 0.0, 0.0, 0.0, 0.0, 0.0
    for turn in range(turns(n.group, n.peers)):
        i = at.peer + turn * n.peers
        if within(i, n.group, n.peers):
            o = np.int64(ints[index(chosen_at(n, at, b) + i)])
            z = rows[index(4 * (x * n.outcomes + o) + REWARD)]
            low, high = o, o + 1
            if not n.distinct or x != y:
                of_arm = 2 * (y * n.arms + t.arm[index(x * n.outcomes + o)])
                low, high = t.span[index(of_arm)], t.span[index(of_arm + 1)]
            of_p, of_q, of_w = masses(n, c, y, low, high, rows, t, at, ints, reals)
            pp += z * of_p
            pq += z * of_q
            qp += of_p
            qq += of_q
            if n.vectors == 3:
                w = norm_weighted(n, at, b, x, o, rows, t, ints, reals)
                pw += z * of_w
                qw += of_w
                wp += w * of_p
                wq += w * of_q
                ww += w * of_w
    pp, pq = total(pp, n.peers) * share * share, total(pq, n.peers) * share * share
    # A prompt's own are alike both ways.
    qp = total(qp, n.peers) * share * share if b != c else pq
    qq = total(qq, n.peers) * share * share
    if n.vectors == 3:
        pw, qw = total(pw, n.peers) * share, total(qw, n.peers) * share
        wp, wq = total(wp, n.peers) * share, total(wq, n.peers) * share
        ww = total(ww, n.peers)
    scale = t.prompt[index(3 * x + FEATURES_SQ)]
    if x != y:
        scale = 0.0
        for turn in range(turns(n.width, n.peers)):
            m = at.peer + turn * n.peers
            if within(m, n.width, n.peers):
                scale += t.features[index(x * n.width + m)] * t.features[index(y * n.width + m)]
        scale = total(scale, n.peers)
    if n.moving:
        one, two = kept_at(n, at, b), kept_at(n, at, c)
        # ⟨w - |w| π, u - |u| π'⟩, |P| = Σz/G and |Q| = 1.
        p, q, w = reals[index(one + WHOLE)] * share, 1.0, reals[index(one + WHOLE_W)]
        p2, q2, w2 = reals[index(two + WHOLE)] * share, 1.0, reals[index(two + WHOLE_W)]
        both = t.prompt[index(3 * x + PROBS_SQ)]
        pi_p, pi_q, pi_w = (
            reals[index(one + AT_P)],
            reals[index(one + AT_Q)],
            reals[index(one + AT_W)],
        )
        pi_p2, pi_q2, pi_w2 = (
            reals[index(two + AT_P)],
            reals[index(two + AT_Q)],
            reals[index(two + AT_W)],
        )
        if x != y:
            pi_p, pi_q, pi_w = pi_parts(n, b, x, y, rows, t, at, ints, reals)
            pi_p2, pi_q2, pi_w2 = pi_parts(n, c, y, x, rows, t, at, ints, reals)
            both = 0.0
            for turn in range(turns(n.arms, n.peers)):
                k = at.peer + turn * n.peers
                if within(k, n.arms, n.peers):
                    both += t.probs[index(x * n.arms + k)] * t.probs[index(y * n.arms + k)]
            both = total(both, n.peers)
        pp += p * p2 * both - p * pi_p2 - p2 * pi_p
        pq += p * q2 * both - p * pi_q2 - q2 * pi_p
        qp += q * p2 * both - q * pi_p2 - p2 * pi_q
        qq += q * q2 * both - q * pi_q2 - q2 * pi_q
        if n.vectors == 3:
            pw += p * w2 * both - p * pi_w2 - w2 * pi_p
            qw += q * w2 * both - q * pi_w2 - w2 * pi_q
            wp += w * p2 * both - w * pi_p2 - p2 * pi_w
            wq += w * q2 * both - w * pi_q2 - q2 * pi_w
            ww += w * w2 * both - w * pi_w2 - w2 * pi_w
    scale *= (1.0 if b == c else 2.0) / (n.batch * n.batch)
    values = values_at(n, at, at.part)
    for turn in range(turns(n.quantities, n.peers)):
        q = at.peer + turn * n.peers
        if within(q, n.quantities, n.peers):
            kind = a.quantity[q]
            if kind in (SQUARED_ERROR, DISTANCE):
                here = coefficients_at(n, at, b, a.first[q])
                there = coefficients_at(n, at, c, a.first[q])
                p, q1, w = reals[index(here)], reals[index(here + 1)], 0.0
                p2, q2, w2 = reals[index(there)], reals[index(there + 1)], 0.0
                if n.vectors == 3:
                    w, w2 = reals[index(here + 2)], reals[index(there + 2)]
                if kind == DISTANCE:
                    here = coefficients_at(n, at, b, a.second[q])
                    there = coefficients_at(n, at, c, a.second[q])
                    p, q1 = p - reals[index(here)], q1 - reals[index(here + 1)]
                    p2, q2 = p2 - reals[index(there)], q2 - reals[index(there + 1)]
                    if n.vectors == 3:
                        w, w2 = w - reals[index(here + 2)], w2 - reals[index(there + 2)]
                s = p * (p2 * pp + q2 * pq) + q1 * (p2 * qp + q2 * qq)
                if n.vectors == 3:
                    s += w2 * (p * pw + q1 * qw) + w * (p2 * wp + q2 * wq + w2 * ww)
                reals[index(values + q)] += scale * s


@device_function
def add_coordinates(n, a, rows, t, at, ints, reals):
    """The same from the coordinates of dense scores, each lane some of them."""
    share, values = 1.0 / n.group, values_at(n, at, at.lane)
    sums = values_at(n, at, n.lanes + at.lane)
    for turn in range(turns(n.width, n.lanes)):
        m = at.lane + turn * n.lanes
        if within(m, n.width, n.lanes):
            for q in range(n.quantities):
                reals[index(sums + q)] = 0.0
            for b in range(n.batch):
                x = np.int64(ints[index(at.integers + b)])
                of_p, of_q, of_w = 0.0, 0.0, 0.0
                for i in range(n.group):
                    o = np.int64(ints[index(chosen_at(n, at, b) + i)])
                    s = t.dense[
                        index((x * n.arms + t.arm[index(x * n.outcomes + o)]) * n.width + m)
                    ]
                    of_p += rows[index(4 * (x * n.outcomes + o) + REWARD)] * s
                    of_q += s
                    if n.vectors == 3:
                        of_w += norm_weighted(n, at, b, x, o, rows, t, ints, reals) * s
                of_p, of_q = of_p * share, of_q * share
                for q in range(n.quantities):
                    kind = a.quantity[q]
                    if kind in (SQUARED_ERROR, DISTANCE):
                        s = along(n, b, a.first[q], of_p, of_q, of_w, at, reals)
                        if kind == DISTANCE:
                            s -= along(n, b, a.second[q], of_p, of_q, of_w, at, reals)
                        reals[index(sums + q)] += s
            for q in range(n.quantities):
                s = reals[index(sums + q)] / n.batch
                reals[index(values + q)] += s * s


# A replication, and a thread block of them.


@device_function
def parts_of(n):
    """The parts in which a team adds up its quantities."""
    return n.lanes if n.form == DENSE else n.lanes // n.peers


@device_function
def replicate(n, a, rep, key, t, draws, rows, at, ints, reals):
    """The quantities of one replication, in the first part of its team's values."""
    together, parts = n.lanes // n.peers, parts_of(n)
    for turn in range(turns(parts * n.quantities, n.lanes)):
        q = at.lane + turn * n.lanes
        if within(q, parts * n.quantities, n.lanes):
            reals[index(values_at(n, at, 0) + q)] = 0.0
    draw_prompts(n, rep, key, t, at, ints)
    meet(n.lanes)
    for turn in range(turns(n.batch, together)):
        b = at.part + turn * together
        if within(b, n.batch, together):
            x = np.int64(ints[index(at.integers + b)])
            draw_group(n, rep, b, x, key, t, draws, at, ints)
            meet(n.peers)
            prompt_sums(n, b, x, rows, t, at, ints, reals)
            coefficients(n, a, b, x, t, at, reals)
            linear_parts(n, a, b, x, rows, t, at, ints, reals)
    meet(n.lanes)
    if n.form == DENSE:
        add_coordinates(n, a, rows, t, at, ints, reals)
    else:
        for turn in range(turns(n.batch, together)):
            b = at.part + turn * together
            if within(b, n.batch, together):
                x = np.int64(ints[index(at.integers + b)])
                add_products(n, a, b, b, x, x, rows, t, at, ints, reals)
                for c in range(b if n.batch > 1 else 0):
                    y = np.int64(ints[index(at.integers + c)])
                    if x == y or n.form == SHARED:
                        add_products(n, a, b, c, x, y, rows, t, at, ints, reals)
    meet(n.lanes)
    values = values_at(n, at, 0)
    for turn in range(turns(n.quantities, n.lanes)):
        q = at.lane + turn * n.lanes
        if within(q, n.quantities, n.lanes):
            s = t.added[index(q)]
            for part in range(parts):
                s += reals[index(values + part * n.quantities + q)]
            reals[index(values + q)] = s * s if a.quantity[q] == SQUARED_PROJECTION else s
    if n.counted:
        for turn in range(turns(n.batch, together)):
            b = at.part + turn * together
            if within(b, n.batch, together):
                for own in range(turns(n.group, n.peers)):
                    i = at.peer + own * n.peers
                    if within(i, n.group, n.peers):
                        o = np.int64(ints[index(chosen_at(n, at, b) + i)])
                        ints[index(counts_at(n, at, b) + o // n.counts)] = 0
    meet(n.lanes)


@device_function
def body(n, a, first, count, key, t, room, out):
    """Fill ``out`` (blocks, Q + products): the first values of a thread block, and sums about them."""
    reals = cuda.shared.array(0, float64)
    ints = cuda.shared.array(0, uint32)
    if n.roomy:
        size = n.first_double + n.teams * n.doubles
        reals = room[0][cuda.blockIdx.x * size : (cuda.blockIdx.x + 1) * size]
        size = n.first_integer + n.teams * n.integers
        ints = room[1][cuda.blockIdx.x * size : (cuda.blockIdx.x + 1) * size]
    thread, threads = cuda.threadIdx.x, cuda.blockDim.x
    team, lane = thread // n.lanes, thread % n.lanes
    at = Place(
        n.first_integer + team * n.integers,
        n.first_double + team * n.doubles,
        lane,
        lane % n.peers,
        lane // n.peers if n.peers < n.lanes else 0,
    )
    # The thread block's own: first values and whether they are there, and tables.
    begun = n.first_integer - 1
    if thread == 0:
        ints[index(begun)] = 0
    rows, ends, guide = t.row, t.ends, t.guide
    if n.rows:
        for i in range(thread, 4 * n.contexts * n.outcomes, threads):
            reals[index(n.quantities + i)] = t.row[index(i)]
        rows = reals[n.quantities : n.quantities + 4 * n.contexts * n.outcomes]
    if n.draws:
        size, places = n.contexts * n.outcomes, n.contexts << (32 - n.shift)
        start = begun - size - places
        for i in range(thread, size, threads):
            ints[index(start + i)] = t.ends[index(i)]
        for i in range(thread, places, threads):
            ints[index(start + size + i)] = t.guide[index(i)]
        ends, guide = ints[start : start + size], ints[start + size : begun]
    for b in range(n.batch):
        for turn in range(turns(n.words, n.lanes)):
            i = lane + turn * n.lanes
            if within(i, n.words, n.lanes):
                ints[index(counts_at(n, at, b) + i)] = 0
    # Some teams of a warp add up together.
    those = n.lanes * n.sharers
    products = n.first_product + thread // those * n.products
    for turn in range(turns(n.products, those)):
        i = thread % those + turn * those
        if within(i, n.products, those):
            reals[index(products + i)] = 0.0
    cuda.syncthreads()
    block, blocks = cuda.blockIdx.x, cuda.gridDim.x
    values = values_at(n, at, 0)
    rounds = (count + blocks * n.teams - 1) // (blocks * n.teams)
    for k in range(rounds):
        rep = (k * blocks + block) * n.teams + team
        if rep < count:
            replicate(n, a, first + rep, key, t, (ends, guide), rows, at, ints, reals)
        if ints[index(begun)] == 0:
            # Not asked by the round: the compiler would make the first one twice.
            cuda.syncthreads()
            if team == 0:
                for turn in range(turns(n.quantities, n.lanes)):
                    q = lane + turn * n.lanes
                    if within(q, n.quantities, n.lanes):
                        reals[index(q)] = reals[index(values + q)]
                ints[index(begun)] = 1
            cuda.syncthreads()
        meet(those)
        for j in range(n.sharers):
            other = team // n.sharers * n.sharers + j - team
            if rep + other < count:
                theirs = values + other * n.doubles
                for turn in range(turns(n.products, those)):
                    i = thread % those + turn * those
                    if within(i, n.products, those):
                        q, p = a.left[i], a.right[i]
                        s = reals[index(theirs + q)] - reals[index(q)]
                        if p >= 0:
                            s *= reals[index(theirs + p)] - reals[index(p)]
                        reals[index(products + i)] += s
        meet(those)
    cuda.syncthreads()
    at_out = block * (n.quantities + n.products)
    for q in range(thread, n.quantities, threads):
        out[at_out + q] = reals[index(q)]
    for i in range(thread, n.products, threads):
        s = 0.0
        for j in range(n.teams // n.sharers):
            s += reals[index(n.first_product + j * n.products + i)]
        out[at_out + n.quantities + i] = s


@cuda.jit
def kernel(n, a, first, count, key, t, room, out):
    body(n, a, first, count, key, t, room, out)


@lru_cache(maxsize=64)
def built_in(n: Shape, a: Asked) -> Any:
    """A kernel of one shape, its numbers built in."""

    @cuda.jit
    def made(first, count, key, t, room, out):
        body(n, a, first, count, key, t, room, out)

    return made
