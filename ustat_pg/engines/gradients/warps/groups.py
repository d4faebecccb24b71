"""Draws of prompts and groups, and the sums of one prompt."""

from __future__ import annotations

from math import sqrt

import numpy as np

from ....sampling.rng import CONTEXT_SLOT
from ...device import add, device_function, meet, short, total
from ...draws import words_of_32
from ...kinds import BY_COUNT, GROUP_MEAN, GRPO, NORM_WEIGHTED, PROMPT_ONLY, STANDARDISED
from ..scalar import FIXED, IID, MIXED, PROJECTION, SQUARED_ERROR, SQUARED_PROJECTION
from .shapes import (
    AT_P,
    AT_Q,
    AT_W,
    CENTRE,
    KEPT,
    LINEAR,
    MOST_OF_OTHERS,
    NORM,
    PROB,
    REWARD,
    SCALE,
    WHOLE,
    WHOLE_W,
    after,
)


@device_function
def search(word, table, ends, o, last):
    """The outcome that a word chooses among those from ``o`` on; the last has no threshold."""
    while o < last and word >= table[short(ends + o)]:
        o += 1
    return o


@device_function
def draw_prompts(n, p, low, high, keys, t, at, ints):
    """The prompts of a replication."""
    drawn = n.contexts > 1 and n.design != FIXED
    quad = np.int32(at.lane)
    while 4 * quad < n.batch:
        words = (low, low, low, low)
        if drawn:
            words = words_of_32(np.uint32(quad), np.uint32(CONTEXT_SLOT), low, high, keys)
        for i in range(4):
            b = 4 * quad + i
            if b < n.batch:
                x = np.uint32(b) if n.contexts > 1 else np.uint32(0)
                if drawn:
                    x = words[i]
                    if n.design == IID:
                        guide = p.context_guide + (x >> np.uint32(n.context_shift))
                        x = np.uint32(
                            search(
                                x,
                                t.words,
                                p.context_ends,
                                t.words[short(guide)],
                                t.words[short(p.context_last)],
                            )
                        )
                ints[short(at.integers + b)] = x
        quad = after(quad, n.lanes)
    meet()
    if drawn and n.design != IID and at.lane == 0:
        # These are the first steps of a shuffle; only the places that moved are stored.
        moved = np.int32(at.integers + n.moved)
        b = np.int32(0)
        while b < n.batch:
            word = ints[short(at.integers + b)]
            other = b + ((np.int64(word) * (n.contexts - b)) >> 32)
            taken, here = other, b
            j = np.int32(0)
            while j < b:
                if ints[short(moved + 2 * j)] == other:
                    taken = np.int64(ints[short(moved + 2 * j + 1)])
                if ints[short(moved + 2 * j)] == b:
                    here = np.int64(ints[short(moved + 2 * j + 1)])
                j = after(j, n.one)
            ints[short(at.integers + b)] = taken
            ints[short(moved + 2 * b)] = other
            ints[short(moved + 2 * b + 1)] = here
            b = after(b, n.one)
    meet()


@device_function
def draw_group(n, p, own, low, high, b, x, keys, t, draws, at_guide, at, ints):
    """Store and count a lane's outputs of a prompt's group, of which ``own`` are to be drawn."""
    chosen = np.int32(at.integers + n.chosen + b * n.group)
    counts = np.int32(at.integers + n.counts + b * n.words)
    guide = np.int32(at_guide + (x << (32 - n.shift)))
    ends = np.int32(at_guide + (p.ends - p.guide) + x * n.outcomes)
    last = t.words[short(p.last + x)]
    quad = np.int32(at.peer)
    while 4 * quad < own:
        words = words_of_32(np.uint32(quad), np.uint32(b), low, high, keys)
        for i in range(4):
            if 4 * quad + i < own:
                start = draws[short(guide + (words[i] >> np.uint32(n.shift)))]
                o = search(words[i], draws, ends, start, last)
                ints[short(chosen + 4 * quad + i)] = o
                if n.counted:
                    count(n, counts, o, ints)
        quad = after(quad, n.peers)


@device_function
def count(n, counts, o, ints):
    """Count an outcome."""
    place = (o & ((1 << n.count_bits) - 1)) << (5 - n.count_bits)
    add(ints, short(counts + (o >> n.count_bits)), np.uint32(np.uint32(1) << np.uint32(place)))


@device_function
def count_of(n, counts, o, ints):
    """The number of draws of an outcome."""
    place = (o & ((1 << n.count_bits) - 1)) << (5 - n.count_bits)
    word = np.uint32(ints[short(counts + (o >> n.count_bits))] >> np.uint32(place))
    return word & np.uint32(np.uint32(0xFFFFFFFF) >> np.uint32(32 - (32 >> n.count_bits)))


# The weights are z/G in P, 1/G in Q and A/G in W.


@device_function
def norm_weighted(n, p, b, x, o, whole, weighted, rows, at_rows, t, at, ints):
    """A/G for an outcome of a group, with norm-weighted A.

    Arguments:
        whole, weighted: Σ‖s‖² and Σ‖s‖² z of the group.
    """
    rewards = np.int32(at_rows + REWARD * n.rows + x * n.outcomes)
    norms = np.int32(at_rows + NORM * n.rows + x * n.outcomes)
    norm, z = rows[short(norms + o)], rows[short(rewards + o)]
    others, others_weighted = whole - norm, weighted - norm * z
    if not others > MOST_OF_OTHERS * whole:
        # The own norm is far larger than the others: add the others, without one of its kind.
        others, others_weighted, own = 0.0, 0.0, True
        j = np.int32(0)
        while j < n.group:
            k = ints[short(at.integers + n.chosen + b * n.group + j)]
            if k == o and own:
                own = False
            else:
                others += rows[short(norms + k)]
                others_weighted += rows[short(norms + k)] * rows[short(rewards + k)]
            j = after(j, n.one)
    # By definition 0/0 is a baseline of 0, which is minus the centre here.
    baseline = -t.reals[short(p.prompt + 3 * x + CENTRE)]
    if others > 0.0:
        baseline = others_weighted / others
    return (z - baseline) * n.share


@device_function
def successes(group, whole, centre):
    """The number of rewards 1 in a group of rewards 0 and 1, from their sum about the prompt's centre."""
    return np.int32(whole + group * centre + 0.5)


# One prompt.


@device_function
def prompt_sums(n, p, own, b, x, rows, at_rows, t, at, ints, reals):
    """Compute the sums of a group and store them."""
    chosen = np.int32(at.integers + n.chosen + b * n.group)
    first = np.int32(x * n.outcomes)
    rewards = np.int32(at_rows + REWARD * n.rows + first)
    norms = np.int32(at_rows + NORM * n.rows + first)
    whole, norm, weighted = 0.0, 0.0, 0.0
    i = np.int32(at.peer)
    while i < own:
        o = ints[short(chosen + i)]
        z = rows[short(rewards + o)]
        whole += z
        if n.vectors == 3:
            norm += rows[short(norms + o)]
            weighted += rows[short(norms + o)] * z
        i = after(i, n.peers)
    whole = total(whole, n.peers)
    scale = 0.0
    if n.standardised:
        squares, unequal = 0.0, 0.0
        i = np.int32(at.peer)
        while i < own:
            z = rows[short(rewards + ints[short(chosen + i)])]
            squares += (z - whole * n.share) * (z - whole * n.share)
            if z != rows[short(rewards + ints[short(chosen)])]:
                unequal += 1.0
            i = after(i, n.peers)
        squares, unequal = total(squares, n.peers), total(unequal, n.peers)
        if unequal > 0.0:
            scale = 1.0 / sqrt(squares * n.share)
    if n.vectors == 3:
        norm, weighted = total(norm, n.peers), total(weighted, n.peers)
        i = np.int32(at.peer)
        while i < own:
            reals[short(at.doubles + n.weights + b * n.group + i)] = norm_weighted(
                n, p, b, x, ints[short(chosen + i)], norm, weighted, rows, at_rows, t, at, ints
            )
            i = after(i, n.peers)
    if at.peer == 0 and own > 0:
        reals[short(at.doubles + b * KEPT + WHOLE)] = whole
        reals[short(at.doubles + b * KEPT + SCALE)] = scale
    meet()


@device_function
def coefficients(n, p, a, own, b, x, t, at, reals):
    """The coefficients of P, Q and W in each estimator at a prompt; each peer computes some."""
    kept = np.int32(at.doubles + b * KEPT)
    e = np.int32(at.peer)
    while e < n.estimators:
        if own > 0:
            whole, scale = reals[short(kept + WHOLE)], reals[short(kept + SCALE)]
            place = np.int32(at.doubles + n.coefficients + (b * n.estimators + e) * n.vectors)
            of_p, of_q = combination(n, p, e, a[short(e)], x, whole, scale, t)
            reals[short(place)], reals[short(place + 1)] = of_p, of_q
            if n.vectors == 3:
                reals[short(place + 2)] = 1.0 if a[short(e)] == NORM_WEIGHTED else 0.0
        e = after(e, n.peers)
    meet()


@device_function
def combination(n, p, e, kind, x, whole, scale, t):
    """The coefficients of P and Q in an estimator, with Σz and 1 / its deviation."""
    of_p, of_q = 0.0, 0.0
    if kind == PROMPT_ONLY:
        of_p, of_q = 1.0, -t.of_reals[short(p.baselines + e * n.contexts + x)]
    elif kind == GRPO:
        of_p, of_q = n.group / (n.group - 1.0), whole * (-1.0 / (n.group - 1.0))
    elif kind == GROUP_MEAN:
        of_p, of_q = 1.0, -whole * n.share
    elif kind == STANDARDISED:
        of_p, of_q = scale, -scale * whole * n.share
    elif kind == BY_COUNT:
        centre = t.reals[short(p.prompt + 3 * x + CENTRE)]
        place = p.by_count + 2 * e * (n.group + 1) + successes(n.group, whole, centre)
        of_p = t.of_reals[short(place + n.group + 1)]
        of_q = t.of_reals[short(place)] + centre * of_p
    return of_p, of_q


@device_function
def along(n, b, e, of_p, of_q, of_w, at, reals):
    """Σ_v coefficient · number, for an estimator at a prompt."""
    place = np.int32(at.doubles + n.coefficients + (b * n.estimators + e) * n.vectors)
    s = reals[short(place)] * of_p + reals[short(place + 1)] * of_q
    return s + reals[short(place + 2)] * of_w if n.vectors == 3 else s


@device_function
def linear_parts(n, p, a, own, b, x, rows, at_rows, t, at, ints, reals):
    """Numbers that quantities need from one prompt: along g and other directions, and whether it is mixed."""
    chosen = np.int32(at.integers + n.chosen + b * n.group)
    first = np.int32(x * n.outcomes)
    per_prompt = 1.0 / n.batch
    values = np.int32(at.doubles + n.values + at.part * n.quantities)
    kept = np.int32(at.doubles + b * KEPT)
    # The last direction is π, if it is needed.
    j = np.int32(-1)
    while j < n.directions + n.moving:
        along_pi = j == n.directions
        of_p, of_q, of_w, whole_w = 0.0, 0.0, 0.0, 0.0
        i = np.int32(at.peer)
        while i < own:
            o = ints[short(chosen + i)]
            if 0 <= j < n.directions:
                slope = t.of_reals[short(p.along + j * n.contexts * n.outcomes + first + o)]
            else:
                which = PROB if along_pi else LINEAR
                slope = rows[short(at_rows + which * n.rows + first + o)]
            of_p += rows[short(at_rows + REWARD * n.rows + first + o)] * slope
            of_q += slope
            if n.vectors == 3:
                w = reals[short(at.doubles + n.weights + b * n.group + i)]
                of_w += w * slope
                whole_w += w
            i = after(i, n.peers)
        of_p, of_q = total(of_p, n.peers) * n.share, total(of_q, n.peers) * n.share
        if n.vectors == 3:
            of_w, whole_w = total(of_w, n.peers), total(whole_w, n.peers)
        if along_pi:
            if at.peer == 0 and own > 0:
                reals[short(kept + AT_P)], reals[short(kept + AT_Q)] = of_p, of_q
                reals[short(kept + AT_W)], reals[short(kept + WHOLE_W)] = of_w, whole_w
        else:
            q = np.int32(at.peer)
            while q < n.quantities:
                if own > 0:
                    kind, one = a[short(n.kind + q)], a[short(n.first + q)]
                    if j < 0 and kind == SQUARED_ERROR:
                        s = -2.0 * along(n, b, one, of_p, of_q, of_w, at, reals)
                        reals[short(values + q)] += per_prompt * s
                    elif j < 0 and kind == MIXED:
                        centre = t.reals[short(p.prompt + 3 * x + CENTRE)]
                        if 0 < successes(n.group, reals[short(kept + WHOLE)], centre) < n.group:
                            reals[short(values + q)] += per_prompt
                    elif j == a[short(n.second + q)] and kind in (PROJECTION, SQUARED_PROJECTION):
                        s = along(n, b, one, of_p, of_q, of_w, at, reals)
                        reals[short(values + q)] += per_prompt * s
                q = after(q, n.peers)
        j = after(j, n.one)
    meet()
