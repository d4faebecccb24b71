"""The lanes of the cpu engine: one replication per vector lane.

:func:`one_prompt_block` serves most claims: one prompt per replication, scores in kron form,
squared errors and distances of estimators that are combinations of P and Q (see
:mod:`ustat_pg.engines.gradients.scalar`). It reads a group as the counts of its outcomes.
"""

from __future__ import annotations

import numpy as np

from ...execution.compiled import body, fma
from ...sampling.rng import CONTEXT_SLOT
from ..aligned import empty_lines
from ..draws import other_place, words_at
from ..kinds import BY_COUNT, PROMPT_ONLY
from .scalar import (
    DISTANCE,
    IID,
    LARGEST_WORD,
    LINEAR,
    PROB,
    REWARD,
    WITHOUT_REPLACEMENT,
    coefficients,
    pick,
    pick_at,
)

LANES = 64
"""Replications per vector. It is constant, and flat arrays have rows of it, so that loops vectorise."""

(SUM, AT_P, AT_Q, LIN_P, LIN_Q, PP, PQ, QQ, SCALE, PROBS_SQ) = (row * LANES for row in range(10))
STATS = 10 * LANES
COMPARED_OUTCOMES = 20
"""The most outcomes that are counted by comparing each word with each threshold; more use a search."""
LARGEST_COUNT = 0xFFFF
COLUMNS = np.uint64(4)
"""Numbers in an outcome's row. It is unsigned, like all parts of an index, to avoid sign checks."""
AT_REWARD, AT_PROB, AT_LINEAR = np.uint64(REWARD), np.uint64(PROB), np.uint64(LINEAR)


@body
def one_prompt_block(first, replications, key, group, design, tables, quantities, total, products):
    """Fill means and products as ``block`` does, for one prompt and quantities of only P and Q.

    ``stats`` holds, for each of LANES replications, in units of G: Σz (SUM), the parts of P and Q
    along π (AT) and g (LIN), their inner products before centring (PP, PQ, QQ), ‖φ(x)‖² (SCALE)
    and ‖π(x)‖² of its prompt.
    """
    # Unpacked once, because passing a tuple of arrays costs as much as the arithmetic of many lanes.
    prompts, search, distinct, target_sq = (
        tables.contexts,
        tables.outcomes,
        tables.distinct,
        tables.target_sq,
    )
    ends, guide, cells, shift = search.ends, search.guide, search.cells, search.shift
    contexts, outcomes = ends.shape
    only, only_guide, only_cells = ends[0], guide[0], cells[0]
    row, arm = tables.row.reshape(-1), tables.arm.reshape(-1)
    kinds, baselines = quantities.kinds, quantities.baselines
    by_count, centres = quantities.by_count, quantities.centre
    dense = contexts == 1 and distinct and outcomes <= 2 * group <= 2 * LARGEST_COUNT
    moving = _moving(kinds)
    count, estimators = len(quantities.quantity), len(kinds)
    quads, fours = (group + 3) // 4, (outcomes + 3) // 4 if dense else 1
    words = empty_lines(quads * 2 * LANES).view(np.uint32)
    by_quad = words.reshape((quads, 4 * LANES))
    prompt_words = np.empty((1, 4 * LANES), np.uint32)
    # Counts use small integers, so that all of them fit in the nearest cache.
    counts = empty_lines(fours * LANES).view(np.uint16)
    by_four, by_outcome = counts.reshape((fours, 4 * LANES)), counts.reshape((4 * fours, LANES))
    rows = np.zeros((fours, 4, tables.row.shape[2]))
    if dense:
        rows.reshape((4 * fours, -1))[:outcomes] = tables.row[0]
    often = np.ones(outcomes)
    mass = np.zeros((tables.probs.shape[1], 2))
    xs = np.zeros(LANES, np.int64)
    stats = empty_lines(STATS)
    # The unused lanes of a short block are computed too, and tables are read at their sums.
    stats[:] = 0.0
    # Only the sums are used, because no estimator here divides by the deviation.
    sums = stats[: 2 * LANES].reshape((2, LANES))
    stats[SCALE : SCALE + LANES] = tables.features_sq[0]
    stats[PROBS_SQ : PROBS_SQ + LANES] = tables.probs_sq[0]
    coef = empty_lines(estimators * 2 * LANES).reshape((estimators, 2, LANES))
    value = empty_lines(count * LANES).reshape((count, LANES))
    base = np.zeros(count)
    added = np.zeros((count, LANES))
    multiplied = np.zeros((count, count, LANES))
    for start in range(0, replications, LANES):
        used = min(LANES, replications - start)
        if contexts > 1:
            word_rows(first + start, CONTEXT_SLOT, key, prompt_words)
            _choose_prompts(design, prompt_words[0], prompts, xs)
            for lane in range(LANES):
                stats[SCALE + lane] = tables.features_sq[xs[lane]]
                stats[PROBS_SQ + lane] = tables.probs_sq[xs[lane]]
        word_rows(first + start, 0, key, by_quad)
        if dense:
            if outcomes <= COMPARED_OUTCOMES:
                _count_by_comparison(group, only, by_quad, by_outcome)
            else:
                _count_by_search(group, only, only_guide, only_cells, shift, words, counts)
            _sum_counts(by_four, rows, moving, stats)
        else:
            # All searches come first and overwrite the words, so that the cache needs fewer tables at a time.
            if contexts == 1:
                _choose(group, only, only_guide, only_cells, shift, words)
            else:
                _choose_of_each(group, xs, ends, guide, cells, shift, words)
            if distinct:
                _sum_outcomes(used, group, moving, outcomes, row, xs, words, often, stats)
            else:
                _sum_arms(used, group, moving, outcomes, row, arm, xs, words, mass, stats)
        coefficients(kinds, baselines, by_count, centres, group, xs, sums, coef)
        for q in range(count):
            one, other = quantities.first[q], quantities.second[q]
            less = 1.0 if quantities.quantity[q] == DISTANCE else 0.0
            _squared(q, one, other, less, group, target_sq, coef, stats, value)
            # As in ``block``, sums are about the first replication's values.
            if start == 0:
                base[q] = value[q, 0]
            for lane in range(LANES):
                value[q, lane] -= base[q]
            for lane in range(used, LANES):
                value[q, lane] = 0.0
        _add(value, added, multiplied)
    for q in range(count):
        total[q] = base[q] + added[q].sum() / replications
        for p in range(q + 1):
            s = added[q].sum() * added[p].sum() / replications
            products[q, p] = multiplied[q, p].sum() - s
            products[p, q] = products[q, p]


@body
def _moving(kinds):
    """Whether some estimator's weights do not sum to 0, so that its norm depends on π."""
    return (kinds == PROMPT_ONLY).any() or (kinds == BY_COUNT).any()


@body(apart=True)
def word_rows(first, slot, key, out):
    """The words of LANES consecutive replications at one slot, (⌈G/4⌉, 4 LANES)."""
    for quad in range(len(out)):
        for lane in range(LANES):
            w0, w1, w2, w3 = words_at(quad, slot, first + lane, key)
            out[quad, lane] = w0
            out[quad, LANES + lane] = w1
            out[quad, 2 * LANES + lane] = w2
            out[quad, 3 * LANES + lane] = w3


@body
def _choose_prompts(design, words, search, xs):
    """The only prompt of each lane, which its word selects; the first prompt if the design is FIXED."""
    for lane in range(LANES):
        if design == IID:
            xs[lane] = pick(words[lane], search.ends, search.guide, search.cells, search.shift)
        elif design == WITHOUT_REPLACEMENT:
            xs[lane] = other_place(np.int64(words[lane]), 0, len(search.ends))


@body(apart=True)
def _count_by_comparison(group, ends, words, counts):
    """How often each outcome of a problem's only prompt was drawn, (4 ⌈M/4⌉, LANES).

    The number of words below an outcome's upper end counts the draws of this and earlier outcomes.
    """
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
                        np.uint16(words[quad, lane] < end)
                        + np.uint16(words[quad, LANES + lane] < end)
                        + np.uint16(words[quad, 2 * LANES + lane] < end)
                        + np.uint16(words[quad, 3 * LANES + lane] < end)
                    )
    for j in range(len(ends) - 1, 0, -1):
        for lane in range(LANES):
            counts[j, lane] -= counts[j - 1, lane]


@body(apart=True)
def _count_by_search(group, ends, guide, cells, shift, words, counts):
    """The same counts (4 ⌈M/4⌉ LANES,), from one search per word (4 ⌈G/4⌉ LANES,)."""
    counts[:] = 0
    for i in range(group):
        for lane in range(LANES):
            j = pick(words[i * LANES + lane], ends, guide, cells, shift)
            counts[j * np.uint64(LANES) + np.uint64(lane)] += np.uint16(1)


@body(apart=True)
def _sum_counts(counts, rows, moving, stats):
    """The stats of all lanes from counts of outcomes, one outcome per arm, four at a time."""
    stats[: QQ + LANES] = 0.0
    for i in range(len(counts)):
        z0, z1, z2, z3 = (
            rows[i, 0, REWARD],
            rows[i, 1, REWARD],
            rows[i, 2, REWARD],
            rows[i, 3, REWARD],
        )
        l0, l1, l2, l3 = (
            rows[i, 0, LINEAR],
            rows[i, 1, LINEAR],
            rows[i, 2, LINEAR],
            rows[i, 3, LINEAR],
        )
        p0, p1, p2, p3 = rows[i, 0, PROB], rows[i, 1, PROB], rows[i, 2, PROB], rows[i, 3, PROB]
        for lane in range(LANES):
            a = np.float64(np.int32(counts[i, lane]))
            b = np.float64(np.int32(counts[i, LANES + lane]))
            c = np.float64(np.int32(counts[i, 2 * LANES + lane]))
            d = np.float64(np.int32(counts[i, 3 * LANES + lane]))
            az, bz, cz, dz = a * z0, b * z1, c * z2, d * z3
            stats[SUM + lane] += (az + bz) + (cz + dz)
            stats[LIN_P + lane] += fma(az, l0, fma(bz, l1, fma(cz, l2, dz * l3)))
            stats[LIN_Q + lane] += fma(a, l0, fma(b, l1, fma(c, l2, d * l3)))
            if moving:
                stats[AT_P + lane] += fma(az, p0, fma(bz, p1, fma(cz, p2, dz * p3)))
                stats[AT_Q + lane] += fma(a, p0, fma(b, p1, fma(c, p2, d * p3)))
            stats[PP + lane] += fma(az, az, fma(bz, bz, fma(cz, cz, dz * dz)))
            stats[PQ + lane] += fma(az, a, fma(bz, b, fma(cz, c, dz * d)))
            stats[QQ + lane] += fma(a, a, fma(b, b, fma(c, c, d * d)))


@body(apart=True)
def _choose(group, ends, guide, cells, shift, words):
    """Replace words by outcomes (4 ⌈G/4⌉ LANES,), all of one prompt."""
    for at in range(group * LANES):
        words[at] = pick(words[at], ends, guide, cells, shift)


@body(apart=True)
def _choose_of_each(group, xs, ends, guide, cells, shift, words):
    """Replace words by outcomes (4 ⌈G/4⌉ LANES,), of each lane's own prompt."""
    for i in range(group):
        for lane in range(LANES):
            at = i * LANES + lane
            words[at] = pick_at(words[at], xs[lane], ends, guide, cells, shift)


# The next two do not declare distinct arrays: vectorised writes at random places are slow.


@body
def _sum_outcomes(used, group, moving, outcomes, row, xs, words, often, stats):
    """The stats of the used lanes from outcomes, one per arm; ``often`` is 1 before and after.

    An output raises the square n² of its outcome's count by 2n + 1. That is the number that
    ``often`` stores.
    """
    for lane in range(used):
        whole = at_p = at_q = lin_p = lin_q = pp = pq = qq = 0.0
        first = np.uint64(xs[lane] * outcomes)
        for i in range(group):
            j = np.uint64(words[np.uint64(i * LANES + lane)])
            here = COLUMNS * (first + j)
            z, along = row[here + AT_REWARD], row[here + AT_LINEAR]
            n = often[j]
            often[j] = n + 2.0
            nz = n * z
            whole += z
            lin_p = fma(z, along, lin_p)
            lin_q += along
            pp = fma(nz, z, pp)
            pq += nz
            qq += n
            if moving:
                at_p = fma(z, row[here + AT_PROB], at_p)
                at_q += row[here + AT_PROB]
        for i in range(group):
            often[np.uint64(words[np.uint64(i * LANES + lane)])] = 1.0
        _keep(lane, whole, at_p, at_q, lin_p, lin_q, pp, pq, qq, stats)


@body
def _sum_arms(used, group, moving, outcomes, row, arm, xs, words, mass, stats):
    """The same stats if several outcomes have one arm; ``mass`` (K, 2) is 0 before and after."""
    for lane in range(used):
        whole = at_p = at_q = lin_p = lin_q = pp = pq = qq = 0.0
        first = np.uint64(xs[lane] * outcomes)
        for i in range(group):
            j = first + np.uint64(words[np.uint64(i * LANES + lane)])
            here, k = COLUMNS * j, np.uint64(arm[j])
            z, along = row[here + AT_REWARD], row[here + AT_LINEAR]
            m, n = mass[k, 0], mass[k, 1]
            mass[k, 0] = m + z
            mass[k, 1] = n + 1.0
            whole += z
            lin_p = fma(z, along, lin_p)
            lin_q += along
            pp = fma(z, 2.0 * m + z, pp)
            pq += fma(n, z, m + z)
            qq += 2.0 * n + 1.0
            if moving:
                at_p = fma(z, row[here + AT_PROB], at_p)
                at_q += row[here + AT_PROB]
        for i in range(group):
            k = np.uint64(arm[first + np.uint64(words[np.uint64(i * LANES + lane)])])
            mass[k, 0] = mass[k, 1] = 0.0
        _keep(lane, whole, at_p, at_q, lin_p, lin_q, pp, pq, qq, stats)


@body(inline=True)
def _keep(lane, whole, at_p, at_q, lin_p, lin_q, pp, pq, qq, stats):
    """A lane's stats."""
    stats[SUM + lane] = whole
    stats[AT_P + lane] = at_p
    stats[AT_Q + lane] = at_q
    stats[LIN_P + lane] = lin_p
    stats[LIN_Q + lane] = lin_q
    stats[PP + lane] = pp
    stats[PQ + lane] = pq
    stats[QQ + lane] = qq


@body(apart=True)
def _squared(q, one, other, less, group, target_sq, coef, stats, value):
    """Quantity q of each lane: a square as in own_gram, minus 2⟨·, g⟩ - ‖g‖² for an error.

    It is for one estimator; if ``less`` is 1, it is for the difference of two, which is a distance.
    """
    error, share = 1.0 - less, 1.0 / group
    for lane in range(LANES):
        u = share * (coef[one, 0, lane] - less * coef[other, 0, lane])
        v = share * (coef[one, 1, lane] - less * coef[other, 1, lane])
        both = u * u * stats[PP + lane] + 2.0 * u * v * stats[PQ + lane] + v * v * stats[QQ + lane]
        whole = u * stats[SUM + lane] + v * group
        at = u * stats[AT_P + lane] + v * stats[AT_Q + lane]
        along = u * stats[LIN_P + lane] + v * stats[LIN_Q + lane]
        value[q, lane] = stats[SCALE + lane] * (
            both - 2.0 * whole * at + whole * whole * stats[PROBS_SQ + lane]
        ) + error * (target_sq - 2.0 * along)


@body(apart=True)
def _add(value, added, multiplied):
    """Add the quantities (Q, LANES) to their sums and products, lane by lane."""
    for q in range(len(value)):
        for lane in range(LANES):
            added[q, lane] += value[q, lane]
        for p in range(q + 1):
            for lane in range(LANES):
                multiplied[q, p, lane] += value[q, lane] * value[p, lane]
