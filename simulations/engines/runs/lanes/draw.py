"""Draws: prompts, and the outputs of a group, one by one or counted."""

from __future__ import annotations

import numpy as np

from ustat_pg.engines.draws import swap, words_at
from ustat_pg.execution.compiled import body

from .plan import BITS_OF_ONE, FEW_CONTEXTS, LANES, row_at

LEVEL, LEVEL_2, EDGE, EDGE_2 = (row * LANES for row in range(4))
"""Rows of ``levels``: the positions of two outputs among the sums, and the edges of their rewards.

They lie in one array, so that no loop checks whether two overlap.
"""

ONE, TWO = np.uint64(1), np.uint64(2)

COMPARED_CONTEXTS = 16
"""The most contexts for which the search compares with all of them."""


@body
def block_words(first, slot, block, key, out):
    """The words of one block of all lanes, (4 LANES,)."""
    for lane in range(LANES):
        w0, w1, w2, w3 = words_at(block, slot, first + lane, key)
        out[lane] = w0
        out[LANES + lane] = w1
        out[2 * LANES + lane] = w2
        out[3 * LANES + lane] = w3


@body(inline=True)
def _from_one(word):
    """1 + w 2⁻³², of the word's bits."""
    return np.int64((word << np.int64(20)) | BITS_OF_ONE).view(np.float64)


@body(apart=True)
def fill_uniforms(first, slot, block, key, out):
    """The words of one block of all lanes as numbers from 1 to 2, (4 LANES,)."""
    for lane in range(LANES):
        w0, w1, w2, w3 = words_at(block, slot, first + lane, key)
        out[lane] = _from_one(w0)
        out[LANES + lane] = _from_one(w1)
        out[2 * LANES + lane] = _from_one(w2)
        out[3 * LANES + lane] = _from_one(w3)


@body(apart=True)
def choose(words, ends, xs):
    """The contexts chosen by words."""
    total = len(ends)
    if total <= COMPARED_CONTEXTS:
        xs[:] = 0
        for x in range(total - 1):
            end = ends[x]
            for lane in range(LANES):
                xs[lane] += np.uint64(words[lane] >= end)
        return
    for lane in range(LANES):
        word, low, high = words[lane], 0, total - 1
        while low < high:
            middle = (low + high) // 2
            if word >= ends[middle]:
                low = middle + 1
            else:
                high = middle
        xs[lane] = np.uint64(low)


@body(apart=True)
def shuffle(words, place, order, xs):
    """Shuffle ``order`` (X, LANES) up to place ``place`` of each lane's epoch, and read that place."""
    total = len(order)
    if place == 0:
        for x in range(total):
            order[x, :] = np.uint64(x)
    for lane in range(LANES):
        swap(order[:, lane], place, words[lane])
        xs[lane] = order[place, lane]


@body(apart=True)
def load(table, varies, contexts, xs, out):
    """The rows that depend on the context, for each lane's own context, (rows,)."""
    for row in range(len(table)):
        if not varies[row]:
            continue
        to = row_at(row)
        if contexts <= 2:
            f0, f1 = table[row, 0], table[row, 1]
            for lane in range(LANES):
                out[to + lane] = f1 if xs[lane] & ONE else f0
        elif contexts <= FEW_CONTEXTS:
            f0, f1, f2, f3 = table[row, 0], table[row, 1], table[row, 2], table[row, 3]
            for lane in range(LANES):
                x = xs[lane]
                low, high = f1 if x & ONE else f0, f3 if x & ONE else f2
                out[to + lane] = high if x & TWO else low
        else:
            for lane in range(LANES):
                out[to + lane] = table[row, xs[lane]]


@body(apart=True)
def _levels(used, arms, uniforms, ends, levels):
    """The positions of two outputs of each lane among the sums; -1, below all, for an unused one."""
    last = row_at(arms - 1)
    for lane in range(LANES):
        levels[LEVEL + lane] = (uniforms[lane] - 1.0) * ends[last + lane]
    for lane in range(LANES):
        level = (uniforms[2 * LANES + lane] - 1.0) * ends[last + lane]
        levels[LEVEL_2 + lane] = level if used > 1 else -1.0


@body(apart=True)
def _tally(arms, to, ends, counts, levels):
    """Add the two outputs to the counts; entry k counts arms from k on."""
    for k in range(arms - 1):
        row, arm = row_at(k), row_at(to + k + 1)
        for lane in range(LANES):
            end = ends[row + lane]
            first = 1.0 if levels[LEVEL + lane] >= end else 0.0
            second = 1.0 if levels[LEVEL_2 + lane] >= end else 0.0
            counts[arm + lane] += first + second


@body(apart=True)
def count(used, arms, values, uniforms, ends, law, counts, levels):
    """Add one or two outputs of each lane to ``counts`` (M K,).

    Entry m K + k is the number of outputs with an arm >= k and a value index >= m.
    """
    _levels(used, arms, uniforms, ends, levels)
    _tally(arms, 0, ends, counts, levels)
    for m in range(values - 1):
        first, to = row_at(m * arms), row_at((m + 1) * arms)
        for lane in range(LANES):
            levels[EDGE + lane] = levels[EDGE_2 + lane] = law[first + lane]
        for k in range(arms - 1):
            row, arm = row_at(k), row_at(m * arms + k + 1)
            for lane in range(LANES):
                edge, end, before = law[arm + lane], ends[row + lane], levels[EDGE + lane]
                before_2 = levels[EDGE_2 + lane]
                levels[EDGE + lane] = edge if levels[LEVEL + lane] >= end else before
                levels[EDGE_2 + lane] = edge if levels[LEVEL_2 + lane] >= end else before_2
        for lane in range(LANES):
            hit = uniforms[LANES + lane] >= levels[EDGE + lane]
            hit_2 = uniforms[3 * LANES + lane] >= levels[EDGE_2 + lane]
            level, level_2 = levels[LEVEL + lane], levels[LEVEL_2 + lane]
            levels[LEVEL + lane] = level if hit else -1.0
            levels[LEVEL_2 + lane] = level_2 if hit_2 else -1.0
        for lane in range(LANES):
            first_counts = 1.0 if levels[LEVEL + lane] >= 0.0 else 0.0
            second_counts = 1.0 if levels[LEVEL_2 + lane] >= 0.0 else 0.0
            counts[to + lane] += first_counts + second_counts
        _tally(arms, (m + 1) * arms, ends, counts, levels)


@body(apart=True)
def draw_one(i, arms, plain, uniforms, ends, law, rewards, xs, at, reward, levels):
    """Output i of each lane: its arm and its reward, (G,)."""
    word, last, to = row_at(2 * (i % 2)), row_at(arms - 1), row_at(i)
    for lane in range(LANES):
        levels[LEVEL + lane] = (uniforms[word + lane] - 1.0) * ends[last + lane]
        at[to + lane] = 0.0
    whole = (arms - 1) // 4 * 4
    for k in range(0, whole, 4):
        row = row_at(k)
        for lane in range(LANES):
            level, arm = levels[LEVEL + lane], at[to + lane]
            arm = arm + 1.0 if level >= ends[row + lane] else arm
            arm = arm + 1.0 if level >= ends[row + LANES + lane] else arm
            arm = arm + 1.0 if level >= ends[row + 2 * LANES + lane] else arm
            arm = arm + 1.0 if level >= ends[row + 3 * LANES + lane] else arm
            at[to + lane] = arm
    for k in range(whole, arms - 1):
        row = row_at(k)
        for lane in range(LANES):
            arm = at[to + lane]
            at[to + lane] = arm + 1.0 if levels[LEVEL + lane] >= ends[row + lane] else arm
    if plain:
        for lane in range(LANES):
            reward[to + lane] = rewards[0, 0]
    else:
        for lane in range(LANES):
            reward[to + lane] = rewards[
                0, xs[lane] * np.uint64(arms) + np.uint64(np.int64(at[to + lane]))
            ]
    for m in range(len(law)):
        if plain:
            value = rewards[m + 1, 0]
            for lane in range(LANES):
                edge, before = (
                    law[m, xs[lane] * np.uint64(arms) + np.uint64(np.int64(at[to + lane]))],
                    reward[to + lane],
                )
                reward[to + lane] = value if uniforms[word + LANES + lane] >= edge else before
        else:
            for lane in range(LANES):
                column, before = (
                    xs[lane] * np.uint64(arms) + np.uint64(np.int64(at[to + lane])),
                    reward[to + lane],
                )
                value = rewards[m + 1, column]
                reward[to + lane] = (
                    value if uniforms[word + LANES + lane] >= law[m, column] else before
                )


@body(apart=True)
def by_outcome(arms, values, group, counts):
    """Convert these cumulative counts of arms and values to simple counts, in place, (M K,)."""
    for lane in range(LANES):
        counts[lane] = group
    for m in range(values):
        for k in range(arms - 1):
            row = row_at(m * arms + k)
            for lane in range(LANES):
                counts[row + lane] -= counts[row + LANES + lane]
    for n in range((values - 1) * arms):
        row, next_value = row_at(n), row_at(n + arms)
        for lane in range(LANES):
            counts[row + lane] -= counts[next_value + lane]
