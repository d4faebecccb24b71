"""The lanes of the cpu engine: replications side by side, one to a vector lane.

:func:`one_prompt_block` takes what most claims ask: one prompt a replication, scores in kron form,
squared errors and distances of estimators made of P and Q (see
:mod:`ustat_pg.engines.gradients.scalar`). It reads a group from how often each outcome occurred.
"""

from __future__ import annotations

import numpy as np

from ...compiled import body
from ..draws import words_at
from ..kinds import BY_COUNT, PROMPT_ONLY
from .scalar import (
    DISTANCE,
    LINEAR,
    PROB,
    REWARD,
    coefficients,
    draw_prompts,
    pick,
    pick_at,
)

LANES = 64
"""Replications side by side; a constant, and rows of it in flat arrays, let loops be vectors."""

(SUM, AT_P, AT_Q, LIN_P, LIN_Q, PP, PQ, QQ, SCALE, PROBS_SQ, COEF_P, COEF_Q) = (
    row * LANES for row in range(12)
)
STATS = 12 * LANES
COMPARED_OUTCOMES = 32
"""Outcomes that are counted by comparing every word with every threshold; more are searched for."""
ACCUMULATORS = 8
"""Sums taken side by side, so that one does not wait for another."""
LARGEST_WORD = 0xFFFFFFFF


@body
def one_prompt_block(first, replications, key, group, design, tables, quantities, total, products):
    """Means and products as ``block`` fills them, for one prompt and quantities of P and Q alone.

    ``stats`` holds, for each of LANES replications, in units of G: Σz (SUM), the parts of P and Q
    along π (AT) and g (LIN), their inner products before centring (PP, PQ, QQ), ‖φ(x)‖² (SCALE)
    and ‖π(x)‖² of its prompt, and room to work in.
    """
    contexts, outcomes = tables.outcomes.ends.shape
    dense = contexts == 1 and tables.distinct and outcomes <= 2 * group
    moving = _moving(quantities.kinds)
    count = len(quantities.quantity)
    words = np.empty(((group + 3) // 4, 4 * LANES), np.uint32)
    rows = words.reshape((4 * len(words), LANES))
    counts = np.empty(((outcomes + 3) // 4 if dense else 1, 4 * LANES), np.uint32)
    by_outcome = counts.reshape((4 * len(counts), LANES))
    weights = np.empty((len(counts), 32))
    if dense:
        _weights(tables.row[0], weights)
    often = np.zeros(outcomes)
    mass = np.zeros((tables.probs.shape[1], 2))
    chosen = np.empty(group, np.uint64)
    order = np.arange(contexts)
    undo = np.empty(1, np.int64)
    xs = np.zeros(LANES, np.int64)
    stats = np.zeros(STATS)
    stats[SCALE : SCALE + LANES] = tables.features_sq[0]
    stats[PROBS_SQ : PROBS_SQ + LANES] = tables.probs_sq[0]
    coef = np.zeros((len(quantities.kinds), LANES, 2))
    value = np.zeros((count, LANES))
    base = np.zeros(count)
    added = np.zeros((count, ACCUMULATORS))
    multiplied = np.zeros((count, count, ACCUMULATORS))
    for start in range(0, replications, LANES):
        used = min(LANES, replications - start)
        word_rows(first + start, 0, key, words)
        if contexts > 1:
            for lane in range(used):
                at = xs[lane : lane + 1]
                draw_prompts(design, first + start + lane, key, tables.contexts, order, undo, at)
                stats[SCALE + lane] = tables.features_sq[xs[lane]]
                stats[PROBS_SQ + lane] = tables.probs_sq[xs[lane]]
        if dense:
            if outcomes <= COMPARED_OUTCOMES:
                _count_by_comparison(group, tables, words, by_outcome)
            else:
                _count_by_search(group, tables, rows, by_outcome)
            _sum_counts(counts, weights, moving, stats)
        else:
            _searched(used, moving, tables, xs, rows, chosen, often, mass, stats)
        # Only the sums are read: no estimator here divides by the deviation.
        coefficients(quantities, group, xs, stats[: 2 * LANES].reshape((2, LANES)), coef)
        for q in range(count):
            _squared(quantities, q, group, tables.target_sq, coef, stats, value)
            # As in block: sums about the first replication's values.
            if start == 0:
                base[q] = value[q, 0]
            for lane in range(LANES):
                value[q, lane] -= base[q]
            for lane in range(used, LANES):
                value[q, lane] = 0.0
        for q in range(count):
            for lane in range(0, LANES, ACCUMULATORS):
                for a in range(ACCUMULATORS):
                    added[q, a] += value[q, lane + a]
            for p in range(q + 1):
                for lane in range(0, LANES, ACCUMULATORS):
                    for a in range(ACCUMULATORS):
                        multiplied[q, p, a] += value[q, lane + a] * value[p, lane + a]
    for q in range(count):
        total[q] = base[q] + added[q].sum() / replications
        for p in range(q + 1):
            s = added[q].sum() * added[p].sum() / replications
            products[q, p] = multiplied[q, p].sum() - s
            products[p, q] = products[q, p]


@body
def _moving(kinds):
    """Whether some estimator's weights do not sum to 0, so that π enters its norm."""
    return (kinds == PROMPT_ONLY).any() or (kinds == BY_COUNT).any()


@body
def word_rows(first, slot, key, out):
    """The words of LANES replications in a row at one slot, (⌈G/4⌉, 4 LANES)."""
    for quad in range(len(out)):
        for lane in range(LANES):
            w0, w1, w2, w3 = words_at(quad, slot, first + lane, key)
            out[quad, lane] = w0
            out[quad, LANES + lane] = w1
            out[quad, 2 * LANES + lane] = w2
            out[quad, 3 * LANES + lane] = w3


@body
def _count_by_comparison(group, tables, words, counts):
    """How often each outcome of a problem's only prompt was drawn, (4 ⌈M/4⌉, LANES).

    The number of words below an outcome's upper end is how often it or one before it was drawn.
    """
    ends = tables.outcomes.ends[0]
    counts[:] = 0
    for j in range(len(ends)):
        if ends[j] > LARGEST_WORD:
            counts[j] = group
    for i in range(group, 4 * len(words)):
        words[i // 4, i % 4 * LANES : (i % 4 + 1) * LANES] = LARGEST_WORD
    for quad in range(len(words)):
        for j in range(len(ends)):
            if ends[j] <= LARGEST_WORD:
                end = np.uint32(ends[j])
                for lane in range(LANES):
                    counts[j, lane] += (
                        np.uint32(words[quad, lane] < end)
                        + np.uint32(words[quad, LANES + lane] < end)
                        + np.uint32(words[quad, 2 * LANES + lane] < end)
                        + np.uint32(words[quad, 3 * LANES + lane] < end)
                    )
    for j in range(len(ends) - 1, 0, -1):
        for lane in range(LANES):
            counts[j, lane] -= counts[j - 1, lane]


@body
def _count_by_search(group, tables, words, counts):
    """The same (4 ⌈M/4⌉, LANES), with one search a word (4 ⌈G/4⌉, LANES)."""
    ends, guide, shift = tables.outcomes.ends[0], tables.outcomes.guide[0], tables.outcomes.shift
    counts[:] = 0
    for i in range(group):
        for lane in range(LANES):
            j = pick(np.int64(words[i, lane]), ends, guide, shift)
            counts[j, lane] += np.uint32(1)


@body
def _weights(row, out):
    """What a count and its square are multiplied by, outcome by outcome, (⌈M/4⌉, 4 x 8)."""
    out[:] = 0.0
    for j in range(len(row)):
        z, at = row[j, REWARD], 8 * (j % 4)
        out[j // 4, at] = z
        out[j // 4, at + 1] = z * row[j, PROB]
        out[j // 4, at + 2] = row[j, PROB]
        out[j // 4, at + 3] = z * row[j, LINEAR]
        out[j // 4, at + 4] = row[j, LINEAR]
        out[j // 4, at + 5] = z * z


@body
def _sum_counts(counts, w, moving, stats):
    """The stats of all lanes from counts of outcomes that are one to an arm, four at a time."""
    stats[: QQ + LANES] = 0.0
    for i in range(len(counts)):
        for lane in range(LANES):
            a = np.float64(np.int32(counts[i, lane]))
            b = np.float64(np.int32(counts[i, LANES + lane]))
            c = np.float64(np.int32(counts[i, 2 * LANES + lane]))
            d = np.float64(np.int32(counts[i, 3 * LANES + lane]))
            stats[SUM + lane] += (a * w[i, 0] + b * w[i, 8]) + (c * w[i, 16] + d * w[i, 24])
            stats[LIN_P + lane] += (a * w[i, 3] + b * w[i, 11]) + (c * w[i, 19] + d * w[i, 27])
            stats[LIN_Q + lane] += (a * w[i, 4] + b * w[i, 12]) + (c * w[i, 20] + d * w[i, 28])
            if moving:
                stats[AT_P + lane] += (a * w[i, 1] + b * w[i, 9]) + (c * w[i, 17] + d * w[i, 25])
                stats[AT_Q + lane] += (a * w[i, 2] + b * w[i, 10]) + (c * w[i, 18] + d * w[i, 26])
            a, b, c, d = a * a, b * b, c * c, d * d
            stats[PP + lane] += (a * w[i, 5] + b * w[i, 13]) + (c * w[i, 21] + d * w[i, 29])
            stats[PQ + lane] += (a * w[i, 0] + b * w[i, 8]) + (c * w[i, 16] + d * w[i, 24])
            stats[QQ + lane] += (a + b) + (c + d)


@body
def _searched(used, moving, tables, xs, words, chosen, often, mass, stats):
    """The stats of the lanes in use, in O(G) each; ``often`` and ``mass`` enter and leave at 0."""
    ends, guide, shift = tables.outcomes.ends, tables.outcomes.guide, tables.outcomes.shift
    row, arm, distinct = tables.row, tables.arm, tables.distinct
    # Searches first, over the outcome numbers' own words: fewer tables at a time in the cache.
    if len(ends) == 1:
        only, its_guide = ends[0], guide[0]
        for i in range(len(chosen)):
            for lane in range(used):
                words[i, lane] = pick(np.int64(words[i, lane]), only, its_guide, shift)
    else:
        for i in range(len(chosen)):
            for lane in range(used):
                words[i, lane] = pick_at(np.int64(words[i, lane]), xs[lane], ends, guide, shift)
    for lane in range(used):
        x = xs[lane]
        for i in range(len(chosen)):
            j = np.uint64(words[i, lane])
            chosen[i] = j
            often[j] += 1.0
        whole = at_p = at_q = lin_p = lin_q = pp = pq = qq = 0.0
        for i in range(len(chosen)):
            j = chosen[i]
            # An outcome met again has nothing left to add.
            n = often[j]
            often[j] = 0.0
            m = n * row[x, j, REWARD]
            whole += m
            if moving:
                at_p += m * row[x, j, PROB]
                at_q += n * row[x, j, PROB]
            lin_p += m * row[x, j, LINEAR]
            lin_q += n * row[x, j, LINEAR]
            if distinct:
                pp += m * m
                pq += m * n
                qq += n * n
            else:
                k = arm[x, j]
                pp += m * (2.0 * mass[k, 0] + m)
                pq += m * mass[k, 1] + n * mass[k, 0] + m * n
                qq += n * (2.0 * mass[k, 1] + n)
                mass[k, 0] += m
                mass[k, 1] += n
        if not distinct:
            for i in range(len(chosen)):
                k = arm[x, chosen[i]]
                mass[k, 0] = mass[k, 1] = 0.0
        stats[SUM + lane] = whole
        stats[AT_P + lane] = at_p
        stats[AT_Q + lane] = at_q
        stats[LIN_P + lane] = lin_p
        stats[LIN_Q + lane] = lin_q
        stats[PP + lane] = pp
        stats[PQ + lane] = pq
        stats[QQ + lane] = qq


@body
def _squared(quantities, q, group, target_sq, coef, stats, value):
    """Quantity q of each lane: a square as in _own_gram; for an error, less 2⟨·, g⟩ - ‖g‖²."""
    of, other = quantities.first[q], quantities.second[q]
    for lane in range(LANES):
        stats[COEF_P + lane] = coef[of, lane, 0]
        stats[COEF_Q + lane] = coef[of, lane, 1]
    error = 1.0
    if quantities.quantity[q] == DISTANCE:
        error = 0.0
        for lane in range(LANES):
            stats[COEF_P + lane] -= coef[other, lane, 0]
            stats[COEF_Q + lane] -= coef[other, lane, 1]
    share = 1.0 / group
    for lane in range(LANES):
        u, v = share * stats[COEF_P + lane], share * stats[COEF_Q + lane]
        both = u * u * stats[PP + lane] + 2.0 * u * v * stats[PQ + lane] + v * v * stats[QQ + lane]
        whole = u * stats[SUM + lane] + v * group
        at = u * stats[AT_P + lane] + v * stats[AT_Q + lane]
        along = u * stats[LIN_P + lane] + v * stats[LIN_Q + lane]
        value[q, lane] = stats[SCALE + lane] * (
            both - 2.0 * whole * at + whole * whole * stats[PROBS_SQ + lane]
        ) + error * (target_sq - 2.0 * along)
