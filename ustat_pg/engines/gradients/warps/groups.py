"""Draws of prompts and groups, and the sums of one prompt."""

from __future__ import annotations

from math import sqrt

import numpy as np

from ....sampling.rng import CONTEXT_SLOT
from ...device import add, device_function, index, meet, total
from ...draws import words_of_32
from ...kinds import BY_COUNT, GROUP_MEAN, GRPO, PROMPT_ONLY, STANDARDISED
from ..scalar import FIXED, IID, MIXED, PROJECTION, SQUARED_ERROR, SQUARED_PROJECTION
from .shapes import (
    AT_P,
    AT_Q,
    AT_W,
    CENTRE,
    LINEAR,
    MOST_OF_OTHERS,
    NORM,
    NORMS,
    PROB,
    REWARD,
    SCALE,
    WEIGHTED,
    WHOLE,
    WHOLE_W,
    chosen_at,
    coefficients_at,
    counts_at,
    kept_at,
    moved_at,
    turns,
    values_at,
    within,
)


@device_function
def search(word, ends, guide, at, first, shift, last):
    """The outcome that a word chooses among those from ``first`` on; the last has no threshold."""
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
        # These are the first steps of a shuffle; only the places that moved are stored.
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
    """Store and count a lane's outputs of a prompt's group."""
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
                        add(ints, index(counts + o // n.counts), one)


@device_function
def count_of(n, at, b, o, ints):
    """The number of draws of an outcome for a prompt."""
    bits = 32 // n.counts
    word = np.int64(ints[index(counts_at(n, at, b) + o // n.counts)])
    return (word >> (o % n.counts * bits)) & ((1 << bits) - 1)


# The weights are z/G in P, 1/G in Q and A/G in W.


@device_function
def norm_weighted(n, at, b, x, o, rows, t, ints, reals):
    """A/G for an outcome of a group, with norm-weighted A."""
    kept, row = kept_at(n, at, b), 4 * (x * n.outcomes + o)
    whole, weighted = reals[index(kept + NORMS)], reals[index(kept + WEIGHTED)]
    norm, z = rows[index(row + NORM)], rows[index(row + REWARD)]
    others, others_weighted = whole - norm, weighted - norm * z
    if not others > MOST_OF_OTHERS * whole:
        # The own norm is far larger than the others: add the others, without one of its kind.
        others, others_weighted, own = 0.0, 0.0, True
        for j in range(n.group):
            k = np.int64(ints[index(chosen_at(n, at, b) + j)])
            if k == o and own:
                own = False
            else:
                other = 4 * (x * n.outcomes + k)
                others += rows[index(other + NORM)]
                others_weighted += rows[index(other + NORM)] * rows[index(other + REWARD)]
    # By definition 0/0 is a baseline of 0, which is minus the centre here.
    baseline = -t.prompt[index(3 * x + CENTRE)]
    if others > 0.0:
        baseline = others_weighted / others
    return (z - baseline) / n.group


@device_function
def successes(n, x, whole, t):
    """The number of rewards 1 in a group of rewards 0 and 1, from their sum about the prompt's centre."""
    return np.int64(whole + n.group * t.prompt[index(3 * x + CENTRE)] + 0.5)


# One prompt.


@device_function
def prompt_sums(n, b, x, rows, t, at, ints, reals):
    """Compute the sums of a group and store them; all its peers compute the same sums."""
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
    """The coefficients of P, Q and W in each estimator at a prompt; each peer computes some."""
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
    """Σ_v coefficient · number, for an estimator at a prompt."""
    place = coefficients_at(n, at, b, e)
    s = reals[index(place)] * of_p + reals[index(place + 1)] * of_q
    return s + reals[index(place + 2)] * of_w if n.vectors == 3 else s


@device_function
def linear_parts(n, a, b, x, rows, t, at, ints, reals):
    """Numbers that quantities need from one prompt: along g and other directions, and whether it is mixed."""
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


# For two prompts, or for one prompt twice.
