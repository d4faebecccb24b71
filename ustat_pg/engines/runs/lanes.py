"""The compiled body of trajectories: LANES replications side by side, one to a vector lane.

Arrays are flat, with LANES numbers to a row, and their shapes below are those of rows: a loop over
lanes is then one of vector instructions. No lane's arithmetic reads another's, so a replication's
path is the same bits in any company.

A group is read from how often each of its outcomes (arm k, value m) occurred. With c such counts,
A the advantages of a lane's outcomes and pₖ = Σₘ cₖₘ Aₖₘ, a group's sum is

    Σᵢ Aᵢ sᵢ = Σₖ (pₖ - πₖ Σⱼ pⱼ) fₖ,

so that what follows the draws costs as much for a large group as for a small one. The part with π
is 0 for grpo and the group mean.

Where φ(x, k) = a(x) + gₖ δ(x), as in every location policy, logits need the one number h = ⟨δ, θ⟩ of
each lane, and the sum is δ(x) Σₖ (pₖ - …) gₖ. Where gₖ are equally spaced besides, weights are cₖ ρᵏ
with ρ = exp(h): one exponential for all arms.

The exponential is written out because a call to the C library's would keep the loop from becoming
vectors.
"""

from __future__ import annotations

from math import sqrt
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...compiled import body, fma
from ...rng import CONTEXT_SLOT, MOST_PROMPTS
from ..draws import MASK, swap, words_at

__all__ = ["Plan", "Rows", "exponential", "run"]

PROMPT_ONLY, GRPO, GROUP_MEAN, NORM_WEIGHTED, VALUE, MINIMUM_VARIANCE, BY_COUNT = range(7)
IID, EPOCHS = 0, 1
FREE, BALL, BOX = 0, 1, 2
FULL, BENT, SHARED, SPACED = range(4)
"""Features of each context and arm; those less ψθ; gₖ δ(x); and with gₖ = k."""

LANES = 128
LINE = 8
"""Numbers in a cache line."""
FEW_CONTEXTS = 4
"""So many contexts at most are told apart by choices; tables are filled up to as many columns."""

COMPARED_CONTEXTS = 16
"""So many contexts at most are searched by comparison with all of them."""

LEVEL, LEVEL_2, EDGE, EDGE_2 = (row * LANES for row in range(4))
BASE, SLOPE, WEIGHT, SHIFT, NORM = (row * LANES for row in range(5))
"""Rows of room for numbers of each lane; in one array, so that no loop asks whether two overlap."""

ONE, TWO = np.uint64(1), np.uint64(2)
UNIT = 2.0**-32
BITS_OF_ONE = np.int64(0x3FF0000000000000)

LEAST_EXPONENT = -708.0
"""Below it the exponential is 0."""
LOG2_E = 1.4426950408889634
LN2_HIGH, LN2_LOW = 6.93147180369123816490e-01, 1.90821492927058770002e-10
"""ln 2 in two parts; the first has trailing zeros, so that its small multiples are exact."""

ROUNDS = 1.5 * 2.0**52
"""A number that large is whole: what is added to it is rounded, and stands in its last bits."""

FAR = 300.0
"""Logits of equally spaced arms that lie further apart are not made of powers, which might overflow."""


class Plan(NamedTuple):
    """A trajectory as the bodies read it.

    Arguments:
        contexts: thresholds of ρ, (X,).
        features: φ(x, k), (K, d, X); offset: (K, X).
        law: thresholds of the rewards but the last, (M - 1, X K): column x K + k; rewards: (M, X K).
        mean_rewards: E[z | x, k], (K, X).
        kind: kind of baseline; constant: number that PROMPT_ONLY subtracts; by_count: advantages of a
            failure and of a success by the number of successes, (2, G+1), for BY_COUNT.
        design: IID or EPOCHS.
        rates: (T,); snapshots: (S,).
        theta_set: FREE, BALL or BOX; low, high: of a box, (d,); centre (d,), basis (d, r) and
            radius of a ball.
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
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    centre: NDArray[np.float64]
    basis: NDArray[np.float64]
    radius: float


class Rows(NamedTuple):
    """What the lanes read of a lane's context: a table with a row for each number.

    Arguments:
        table: (rows, X), X filled up to FEW_CONTEXTS at least. In this order: features (K e),
            offset (K), for SPACED e to its power less the greatest; 1 + 2⁻³² law ((M - 1) K), values
            of rewards (M K), their means (K), and δ (d) or bends (K d) where the form has them.
        varies: whether a row's entries differ and are read, (rows,).
        form: FULL, BENT, SHARED or SPACED.
        width: e, the number of features: d, or 1 for those that are shared.
        counted: whether outcomes are counted, which is for few; else outputs are kept one by one.
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
def power(y):
    """eʸ for |y| <= 708.

    y = n ln 2 + r with |r| <= ½ ln 2, and 2ⁿ is made of its bits; eʳ is a polynomial that
    interpolates it at Chebyshev's places, off by less than 2e-17.
    """
    whole = fma(y, LOG2_E, ROUNDS)
    n = whole - ROUNDS
    r = fma(-n, LN2_LOW, fma(-n, LN2_HIGH, y))
    p = fma(2.510038549551032e-08, r, 2.7620088445409746e-07)
    p = fma(p, r, 2.7557268459997064e-06)
    p = fma(p, r, 2.4801521295954376e-05)
    p = fma(p, r, 1.9841269863053618e-04)
    p = fma(p, r, 1.3888888917213717e-03)
    p = fma(p, r, 8.333333333330062e-03)
    p = fma(p, r, 4.166666666662413e-02)
    p = fma(p, r, 1.6666666666666669e-01)
    p = fma(p, r, 0.5000000000000001)
    # 1 + (r + r² p): the large term last, for its rounding is the result's.
    e = 1.0 + fma(r * r, p, r)
    scale = np.int64((np.float64(whole).view(np.int64) << np.int64(52)) + BITS_OF_ONE).view(
        np.float64
    )
    return e * scale


@body(inline=True)
def exponential(x):
    """eˣ for x <= 0 to two units in the last place; 0 below -708."""
    y = x if x > LEAST_EXPONENT else LEAST_EXPONENT
    return power(y) if x >= LEAST_EXPONENT else 0.0


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
def _uniforms(first, slot, block, key, out):
    """The words of one block of all lanes as numbers from 1 to 2, (4 LANES,)."""
    for lane in range(LANES):
        w0, w1, w2, w3 = words_at(block, slot, first + lane, key)
        out[lane] = _from_one(w0)
        out[LANES + lane] = _from_one(w1)
        out[2 * LANES + lane] = _from_one(w2)
        out[3 * LANES + lane] = _from_one(w3)


@body(apart=True)
def _iid(words, ends, xs):
    """The contexts that words choose."""
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
def _shuffled(words, place, order, xs):
    """Place ``place`` of each lane's epoch; ``order`` (X, LANES) is shuffled up to it."""
    total = len(order)
    if place == 0:
        for x in range(total):
            order[x, :] = np.uint64(x)
    for lane in range(LANES):
        swap(order[:, lane], place, words[lane])
        xs[lane] = order[place, lane]


@body(inline=True)
def _row(number):
    """Where a row begins. The mask tells the compiler that it is not negative."""
    return (number * LANES) & MASK


@body(apart=True)
def _empty(rows):
    """Rows that begin where a cache line does."""
    whole = np.empty(rows * LANES + LINE)
    skipped = -(whole.ctypes.data // 8) % LINE
    return whole[skipped : skipped + rows * LANES]


@body(apart=True)
def _load(table, varies, contexts, xs, own):
    """The rows that differ from context to context, of each lane's own, (rows,)."""
    for row in range(len(table)):
        if not varies[row]:
            continue
        to = _row(row)
        if contexts <= 2:
            f0, f1 = table[row, 0], table[row, 1]
            for lane in range(LANES):
                own[to + lane] = f1 if xs[lane] & ONE else f0
        elif contexts <= FEW_CONTEXTS:
            f0, f1, f2, f3 = table[row, 0], table[row, 1], table[row, 2], table[row, 3]
            for lane in range(LANES):
                x = xs[lane]
                low, high = f1 if x & ONE else f0, f3 if x & ONE else f2
                own[to + lane] = high if x & TWO else low
        else:
            for lane in range(LANES):
                own[to + lane] = table[row, xs[lane]]


@body(apart=True)
def _along(d, ways, theta, out):
    """⟨δ, θ⟩, (1,)."""
    for lane in range(LANES):
        out[lane] = ways[lane] * theta[lane]
    for j in range(1, d):
        row = _row(j)
        for lane in range(LANES):
            out[lane] = fma(ways[row + lane], theta[row + lane], out[lane])


@body(apart=True)
def _logits(arms, e, features, offset, along, out):
    """Logits, (K,)."""
    for k in range(arms):
        to, row = _row(k), _row(k * e)
        for lane in range(LANES):
            out[to + lane] = fma(features[row + lane], along[lane], offset[to + lane])
        for j in range(1, e):
            row, by = _row(k * e + j), _row(j)
            for lane in range(LANES):
                out[to + lane] = fma(features[row + lane], along[by + lane], out[to + lane])


@body(apart=True)
def _bend(arms, d, features, bends, theta, logits, bent):
    """½ Σⱼ ψⱼ θⱼ² off the logits (K,), and the features φ - ψθ, (K d,)."""
    for k in range(arms):
        for j in range(d):
            to, row, by = _row(k), _row(k * d + j), _row(j)
            for lane in range(LANES):
                off = bends[row + lane] * theta[by + lane]
                logits[to + lane] = fma(-0.5 * off, theta[by + lane], logits[to + lane])
            for lane in range(LANES):
                bent[row + lane] = features[row + lane] - bends[row + lane] * theta[by + lane]


@body(apart=True)
def _softmax(arms, weights, room):
    """Logits to exp(logit - max), in place, (K,)."""
    for lane in range(LANES):
        room[lane] = weights[lane]
    for k in range(1, arms):
        row = _row(k)
        for lane in range(LANES):
            logit, most = weights[row + lane], room[lane]
            room[lane] = logit if logit > most else most
    for k in range(arms):
        row = _row(k)
        for lane in range(LANES):
            weights[row + lane] = exponential(weights[row + lane] - room[lane])


@body(apart=True)
def _powers(arms, offset, xs, shares, along, weights, room):
    """Weights cₖ ρᵏ of equally spaced arms, (K,), by one exponential where none overflows."""
    limit = FAR / max(arms - 1, 1)
    far = np.int64(0)
    for lane in range(LANES):
        near = abs(along[lane]) <= limit
        far += np.int64(0 if near else 1)
        # ρ and its powers.
        room[lane] = power(along[lane] if near else 0.0)
        room[LANES + lane] = 1.0
    for k in range(arms):
        row = _row(k)
        for lane in range(LANES):
            weights[row + lane] = shares[row + lane] * room[LANES + lane]
        for lane in range(LANES):
            room[LANES + lane] *= room[lane]
    if far > 0:
        for lane in range(LANES):
            h, x = along[lane], xs[lane]
            if not abs(h) <= limit:
                most = -np.inf
                for k in range(arms):
                    most = max(most, fma(h, float(k), offset[k, x]))
                for k in range(arms):
                    row = _row(k)
                    weights[row + lane] = exponential(fma(h, float(k), offset[k, x]) - most)


@body(apart=True)
def _sums(arms, weights, ends):
    """The sums of weights up to each arm, (K,)."""
    for lane in range(LANES):
        ends[lane] = weights[lane]
    for k in range(arms - 1):
        row = _row(k)
        for lane in range(LANES):
            ends[row + LANES + lane] = ends[row + lane] + weights[row + LANES + lane]


@body(apart=True)
def _levels(used, arms, uniforms, ends, room):
    """Where two outputs of each lane fall among the sums; -1, below all of them, for one not used."""
    last = _row(arms - 1)
    for lane in range(LANES):
        room[LEVEL + lane] = (uniforms[lane] - 1.0) * ends[last + lane]
    for lane in range(LANES):
        level = (uniforms[2 * LANES + lane] - 1.0) * ends[last + lane]
        room[LEVEL_2 + lane] = level if used > 1 else -1.0


@body(apart=True)
def _tally(arms, to, ends, counts, room):
    """The two outputs added to the counts of arms from each on."""
    for k in range(arms - 1):
        row, arm = _row(k), _row(to + k + 1)
        for lane in range(LANES):
            end = ends[row + lane]
            first = 1.0 if room[LEVEL + lane] >= end else 0.0
            second = 1.0 if room[LEVEL_2 + lane] >= end else 0.0
            counts[arm + lane] += first + second


@body(apart=True)
def _count(used, arms, values, uniforms, ends, law, counts, room):
    """One or two outputs of each lane, added to ``counts`` (M K,).

    Entry m K + k of them is how many outputs have an arm from k on and a value from m on.
    """
    _levels(used, arms, uniforms, ends, room)
    _tally(arms, 0, ends, counts, room)
    for m in range(values - 1):
        first, to = _row(m * arms), _row((m + 1) * arms)
        for lane in range(LANES):
            room[EDGE + lane] = room[EDGE_2 + lane] = law[first + lane]
        for k in range(arms - 1):
            row, arm = _row(k), _row(m * arms + k + 1)
            for lane in range(LANES):
                edge, end, before = law[arm + lane], ends[row + lane], room[EDGE + lane]
                before_2 = room[EDGE_2 + lane]
                room[EDGE + lane] = edge if room[LEVEL + lane] >= end else before
                room[EDGE_2 + lane] = edge if room[LEVEL_2 + lane] >= end else before_2
        for lane in range(LANES):
            hit = uniforms[LANES + lane] >= room[EDGE + lane]
            hit_2 = uniforms[3 * LANES + lane] >= room[EDGE_2 + lane]
            level, level_2 = room[LEVEL + lane], room[LEVEL_2 + lane]
            room[LEVEL + lane] = level if hit else -1.0
            room[LEVEL_2 + lane] = level_2 if hit_2 else -1.0
        for lane in range(LANES):
            first_counts = 1.0 if room[LEVEL + lane] >= 0.0 else 0.0
            second_counts = 1.0 if room[LEVEL_2 + lane] >= 0.0 else 0.0
            counts[to + lane] += first_counts + second_counts
        _tally(arms, (m + 1) * arms, ends, counts, room)


@body(apart=True)
def _draw(arms, plain, uniforms, place, ends, law, rewards, xs, at, reward, room):
    """One output of each lane: its arm and its reward."""
    word, last = _row(2 * place), _row(arms - 1)
    for lane in range(LANES):
        room[LEVEL + lane] = (uniforms[word + lane] - 1.0) * ends[last + lane]
        at[lane] = 0
    whole = (arms - 1) // 4 * 4
    for k in range(0, whole, 4):
        row = _row(k)
        for lane in range(LANES):
            level = room[LEVEL + lane]
            at[lane] += (
                np.uint64(level >= ends[row + lane])
                + np.uint64(level >= ends[row + LANES + lane])
                + np.uint64(level >= ends[row + 2 * LANES + lane])
                + np.uint64(level >= ends[row + 3 * LANES + lane])
            )
    for k in range(whole, arms - 1):
        row = _row(k)
        for lane in range(LANES):
            at[lane] += np.uint64(room[LEVEL + lane] >= ends[row + lane])
    if plain:
        reward[:] = rewards[0, 0]
    else:
        for lane in range(LANES):
            reward[lane] = rewards[0, xs[lane] * np.uint64(arms) + at[lane]]
    for m in range(len(law)):
        if plain:
            value = rewards[m + 1, 0]
            for lane in range(LANES):
                edge, before = law[m, xs[lane] * np.uint64(arms) + at[lane]], reward[lane]
                reward[lane] = value if uniforms[word + LANES + lane] >= edge else before
        else:
            for lane in range(LANES):
                column, before = xs[lane] * np.uint64(arms) + at[lane], reward[lane]
                value = rewards[m + 1, column]
                reward[lane] = value if uniforms[word + LANES + lane] >= law[m, column] else before


@body(apart=True)
def _push_drawn(group, at, rewards, room, out):
    """Σᵢ Aᵢ of the outputs of each arm, (K,), with A = BASE + SLOPE z."""
    out[:] = 0.0
    for i in range(group):
        row = _row(i)
        for lane in range(LANES):
            advantage = fma(room[SLOPE + lane], rewards[row + lane], room[BASE + lane])
            out[at[row + lane] * np.uint64(LANES) + np.uint64(lane)] += advantage


@body(apart=True)
def _by_outcome(arms, values, group, counts):
    """Counts of arms and values from each on to counts of each, in place, (M K,)."""
    for lane in range(LANES):
        counts[lane] = group
    for m in range(values):
        for k in range(arms - 1):
            row = _row(m * arms + k)
            for lane in range(LANES):
                counts[row + lane] -= counts[row + LANES + lane]
    for n in range((values - 1) * arms):
        row, next_value = _row(n), _row(n + arms)
        for lane in range(LANES):
            counts[row + lane] -= counts[next_value + lane]


@body(apart=True)
def _centre(arms, e, features, weights, total, out):
    """f̄ of each lane, (e,)."""
    for j in range(e):
        to = _row(j)
        for lane in range(LANES):
            out[to + lane] = 0.0
        for k in range(arms):
            row, by = _row(k * e + j), _row(k)
            for lane in range(LANES):
                out[to + lane] = fma(weights[by + lane], features[row + lane], out[to + lane])
        for lane in range(LANES):
            out[to + lane] /= total[lane]


@body(apart=True)
def _norm(e, features, centre, room):
    """‖s‖² of an arm with features (e,), but for the factor ‖δ‖² of shared ones."""
    for lane in range(LANES):
        room[NORM + lane] = 0.0
    for j in range(e):
        row = _row(j)
        for lane in range(LANES):
            off = features[row + lane] - centre[row + lane]
            room[NORM + lane] = fma(off, off, room[NORM + lane])


@body(apart=True)
def _value(kind, arms, e, features, means, weights, total, centre, room):
    """V(x), or the minimum-variance baseline, of each lane, to BASE."""
    for lane in range(LANES):
        room[BASE + lane] = 0.0
    for k in range(arms):
        row = _row(k)
        for lane in range(LANES):
            room[BASE + lane] = fma(weights[row + lane], means[row + lane], room[BASE + lane])
    for lane in range(LANES):
        room[BASE + lane] /= total[lane]
    if kind != MINIMUM_VARIANCE:
        return
    for lane in range(LANES):
        room[WEIGHT + lane] = room[SHIFT + lane] = 0.0
    for k in range(arms):
        row = _row(k)
        _norm(e, features[row * e :], centre, room)
        for lane in range(LANES):
            part = weights[row + lane] * room[NORM + lane]
            off = means[row + lane] - room[BASE + lane]
            room[WEIGHT + lane] += part
            room[SHIFT + lane] = fma(part, off, room[SHIFT + lane])
    for lane in range(LANES):
        if room[WEIGHT + lane] > 0.0:
            room[BASE + lane] += room[SHIFT + lane] / room[WEIGHT + lane]


@body(apart=True)
def _whole(counted, counts, values, room):
    """Σ z of each lane's group, to SHIFT: of all outcomes, or of all outputs."""
    for lane in range(LANES):
        room[SHIFT + lane] = 0.0
    for n in range(len(values) // LANES):
        row = _row(n)
        if counted:
            for lane in range(LANES):
                room[SHIFT + lane] = fma(counts[row + lane], values[row + lane], room[SHIFT + lane])
        else:
            for lane in range(LANES):
                room[SHIFT + lane] += values[row + lane]


@body(apart=True)
def _linear(kind, constant, by_count, group, room):
    """Advantages as BASE + SLOPE z: all kinds but the norm-weighted.

    V or b* comes in BASE, Σ z in SHIFT.
    """
    if kind in (VALUE, MINIMUM_VARIANCE, PROMPT_ONLY):
        for lane in range(LANES):
            room[BASE + lane] = -constant if kind == PROMPT_ONLY else -room[BASE + lane]
            room[SLOPE + lane] = 1.0
    elif kind == BY_COUNT:
        for lane in range(LANES):
            wins = int(room[SHIFT + lane])
            room[BASE + lane] = by_count[0, wins]
            room[SLOPE + lane] = by_count[1, wins] - by_count[0, wins]
    else:
        share = 1.0 / (group - 1) if kind == GRPO else 1.0 / group
        slope = 1.0 + share if kind == GRPO else 1.0
        for lane in range(LANES):
            room[BASE + lane] = -room[SHIFT + lane] * share
            room[SLOPE + lane] = slope


@body(apart=True)
def _push(arms, counts, values, room, out):
    """Σₘ cₖₘ Aₖₘ, (K,), with A = BASE + SLOPE z."""
    for k in range(arms):
        row = _row(k)
        for lane in range(LANES):
            out[row + lane] = 0.0
        for m in range(len(values) // (arms * LANES)):
            at = _row(m * arms + k)
            for lane in range(LANES):
                advantage = fma(room[SLOPE + lane], values[at + lane], room[BASE + lane])
                out[row + lane] = fma(counts[at + lane], advantage, out[row + lane])


@body(apart=True)
def _push_weighted(arms, e, features, centre, counts, values, before, room, out):
    """The same with the norm-weighted mean of the other outputs' rewards subtracted.

    The others' sums are those of outcomes before one, those after it, and all but one of its own:
    no difference loses digits. ``before`` is room, (2 M K,).
    """
    outcomes = len(values) // LANES
    for lane in range(LANES):
        room[WEIGHT + lane] = room[SHIFT + lane] = 0.0
    for k in range(arms):
        row = _row(k)
        _norm(e, features[row * e :], centre, room)
        for m in range(outcomes // arms):
            at, shifts = _row(m * arms + k), _row(outcomes + m * arms + k)
            for lane in range(LANES):
                before[at + lane] = room[WEIGHT + lane]
                before[shifts + lane] = room[SHIFT + lane]
            for lane in range(LANES):
                part = counts[at + lane] * room[NORM + lane]
                room[WEIGHT + lane] += part
                room[SHIFT + lane] = fma(part, values[at + lane], room[SHIFT + lane])
    for lane in range(LANES):
        room[WEIGHT + lane] = room[SHIFT + lane] = 0.0
    for k in range(arms - 1, -1, -1):
        row = _row(k)
        _norm(e, features[row * e :], centre, room)
        for lane in range(LANES):
            out[row + lane] = 0.0
        for m in range(outcomes // arms - 1, -1, -1):
            at, shifts = _row(m * arms + k), _row(outcomes + m * arms + k)
            for lane in range(LANES):
                count, z = counts[at + lane], values[at + lane]
                more = (count - 1.0) * room[NORM + lane] if count > 0.0 else 0.0
                others = room[WEIGHT + lane] + before[at + lane] + more
                shift = fma(more, z, room[SHIFT + lane] + before[shifts + lane])
                advantage = z - shift / others if others > 0.0 else z
                out[row + lane] = fma(count, advantage, out[row + lane])
            for lane in range(LANES):
                part = counts[at + lane] * room[NORM + lane]
                room[WEIGHT + lane] += part
                room[SHIFT + lane] = fma(part, values[at + lane], room[SHIFT + lane])


@body(apart=True)
def _less_centre(arms, weights, total, push, room):
    """pₖ - πₖ Σⱼ pⱼ in place of pₖ, (K,)."""
    for lane in range(LANES):
        room[lane] = 0.0
    for k in range(arms):
        row = _row(k)
        for lane in range(LANES):
            room[lane] += push[row + lane]
    for lane in range(LANES):
        room[lane] /= total[lane]
    for k in range(arms):
        row = _row(k)
        for lane in range(LANES):
            push[row + lane] = fma(-room[lane], weights[row + lane], push[row + lane])


@body(apart=True)
def _add(arms, e, features, push, out):
    """Σₖ pₖ fₖ added to (e,)."""
    for j in range(e):
        to = _row(j)
        for k in range(arms):
            row, by = _row(k * e + j), _row(k)
            for lane in range(LANES):
                out[to + lane] = fma(push[by + lane], features[row + lane], out[to + lane])


@body(apart=True)
def _spread(d, ways, along, out):
    """A multiple of δ added to (d,)."""
    for j in range(d):
        row = _row(j)
        for lane in range(LANES):
            out[row + lane] = fma(ways[row + lane], along[lane], out[row + lane])


@body(apart=True)
def _project(plan, theta, room):
    """θ of each lane to the nearest point of Θ, (d,)."""
    d = len(theta) // LANES
    if plan.theta_set == BOX:
        for j in range(d):
            for lane in range(LANES):
                inside = min(max(theta[j * LANES + lane], plan.low[j]), plan.high[j])
                theta[j * LANES + lane] = inside
        return
    r = plan.basis.shape[1]
    for lane in range(LANES):
        square = 0.0
        for v in range(r):
            along = 0.0
            for j in range(d):
                along += (theta[j * LANES + lane] - plan.centre[j]) * plan.basis[j, v]
            room[v] = along
            square += along * along
        norm = sqrt(square)
        if norm > plan.radius:
            excess = 1.0 - plan.radius / norm
            for j in range(d):
                back = 0.0
                for v in range(r):
                    back += room[v] * plan.basis[j, v]
                theta[j * LANES + lane] -= excess * back


@body
def run(first, key, group, batch, plan, rows, begin, out):
    """Replications ``first`` onwards from θ₀ (R, d): θ at the snapshots, (R, S, d)."""
    # Taken out once: a tuple of arrays handed on costs as much as many lanes' arithmetic.
    kind, constant, by_count = plan.kind, plan.constant, plan.by_count
    chances, rates, design, free = plan.contexts, plan.rates, plan.design, plan.theta_set == FREE
    table, varies, form, offset, e = rows.table, rows.varies, rows.form, rows.offset, rows.width
    arms, d, _ = plan.features.shape
    outcomes = len(plan.rewards)
    contexts = len(chances)
    replications, kept = len(begin), len(plan.snapshots)
    prompts, uniforms = np.empty(4 * LANES, np.int64), _empty(4)
    order = np.zeros((contexts if design == EPOCHS else 1, LANES), np.uint64)
    xs = np.zeros(LANES, np.uint64)
    own = _empty(len(table))
    for row in range(len(table)):
        own[row * LANES : (row + 1) * LANES] = table[row, 0]
    cells = outcomes * arms
    rows_at = LANES * np.cumsum(np.array([0, arms * e, arms, cells - arms, cells, arms]))
    features, shares, law = (
        own[: rows_at[1]],
        own[rows_at[1] : rows_at[2]],
        own[rows_at[2] : rows_at[3]],
    )
    values, means = own[rows_at[3] : rows_at[4]], own[rows_at[4] : rows_at[5]]
    # δ of shared features; ψ of bent ones.
    ways = own[rows_at[5] :]
    shared, bent = form in (SHARED, SPACED), form == BENT
    curved = _empty(arms * d) if bent else features
    weights, ends, push = _empty(arms), _empty(arms), _empty(arms)
    counted, edges = rows.counted, rows.edges
    counts, room = _empty(cells if counted else 0), _empty(5)
    at, rewards = (
        np.empty((0 if counted else group) * LANES, np.uint64),
        _empty(0 if counted else group),
    )
    before = _empty(2 * cells if kind == NORM_WEIGHTED else 0)
    theta, total, centre = _empty(d), _empty(d), _empty(e)
    along, way_total = theta, total
    if shared:
        along, way_total = _empty(1), _empty(1)
    coordinates = np.empty(max(d, 1))
    last = ends[(arms - 1) * LANES :]
    for start in range(0, replications, LANES):
        used = min(LANES, replications - start)
        rep = first + start
        for lane in range(LANES):
            for j in range(d):
                theta[j * LANES + lane] = begin[start + min(lane, used - 1), j]
        place = 0
        if plan.snapshots[0] == 0:
            for lane in range(used):
                for j in range(d):
                    out[start + lane, 0, j] = theta[j * LANES + lane]
            place = 1
        for t in range(1, len(rates) + 1):
            total[:] = 0.0
            for b in range(batch):
                if contexts > 1:
                    n = (t - 1) * batch + b
                    if n % 4 == 0:
                        block_words(rep, CONTEXT_SLOT, n // 4, key, prompts)
                    if design == IID:
                        _iid(prompts[n % 4 * LANES : (n % 4 + 1) * LANES], chances, xs)
                    else:
                        _shuffled(
                            prompts[n % 4 * LANES : (n % 4 + 1) * LANES], n % contexts, order, xs
                        )
                    _load(table, varies, contexts, xs, own)
                if shared:
                    _along(d, ways, theta, along)
                if form == SPACED:
                    _powers(arms, offset, xs, shares, along, weights, room)
                else:
                    _logits(arms, e, features, shares, along, weights)
                    if bent:
                        _bend(arms, d, features, ways, theta, weights, curved)
                    _softmax(arms, weights, room)
                _sums(arms, weights, ends)
                slot = t * MOST_PROMPTS + b
                counts[:] = 0.0
                for i in range(0, group, 2):
                    used_words = min(2, group - i)
                    _uniforms(rep, slot, i // 2, key, uniforms)
                    if counted:
                        _count(used_words, arms, outcomes, uniforms, ends, law, counts, room)
                        continue
                    for j in range(used_words):
                        low, high = (i + j) * LANES, (i + j + 1) * LANES
                        to, reward = at[low:high], rewards[low:high]
                        _draw(
                            arms,
                            rows.plain,
                            uniforms,
                            j,
                            ends,
                            edges,
                            plan.rewards,
                            xs,
                            to,
                            reward,
                            room,
                        )
                if counted:
                    _by_outcome(arms, outcomes, group, counts)
                if kind in (MINIMUM_VARIANCE, NORM_WEIGHTED):
                    _centre(arms, e, curved, weights, last, centre)
                if kind in (VALUE, MINIMUM_VARIANCE):
                    _value(kind, arms, e, curved, means, weights, last, centre, room)
                if kind == NORM_WEIGHTED:
                    _push_weighted(arms, e, curved, centre, counts, values, before, room, push)
                else:
                    _whole(counted, counts, values if counted else rewards, room)
                    _linear(kind, constant, by_count, group, room)
                    if counted:
                        _push(arms, counts, values, room, push)
                    else:
                        _push_drawn(group, at, rewards, room, push)
                if kind not in (GRPO, GROUP_MEAN):
                    _less_centre(arms, weights, last, push, room)
                if shared:
                    way_total[:] = 0.0
                _add(arms, e, curved, push, way_total)
                if shared:
                    _spread(d, ways, way_total, total)
            step = rates[t - 1] / (group * batch)
            for n in range(d * LANES):
                theta[n] = fma(step, total[n], theta[n])
            if not free:
                _project(plan, theta, coordinates)
            if place < kept and plan.snapshots[place] == t:
                for lane in range(used):
                    for j in range(d):
                        out[start + lane, place, j] = theta[j * LANES + lane]
                place += 1
