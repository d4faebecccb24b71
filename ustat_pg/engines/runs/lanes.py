"""The compiled body of trajectories: LANES replications side by side, one to a vector lane.

Arrays are (rows, LANES), so that a loop over lanes is a loop of vector instructions; no lane's
arithmetic reads another's, so a replication's path is the same bits in any company. With
f̄ = Σₖ πₖ fₖ a group's sum is Σ Aᵢ (f_{kᵢ} - f̄) = Σ Aᵢ f_{kᵢ} - (Σ Aᵢ) f̄, whose second part is 0
for grpo and the group mean.

Logits that bend have features φ - ψθ, of each lane's own θ. They are laid out as if each lane were
a context, so that all the arithmetic behind the logits is the same for both kinds of policy.

The exponential is written out because a call to the C library's would keep the loop from becoming
vectors.
"""

from __future__ import annotations

from math import sqrt
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...compiled import body
from ...rng import CONTEXT_SLOT, MOST_PROMPTS
from ..draws import swap, words_at

__all__ = ["Plan", "exponential", "run"]

PROMPT_ONLY, GRPO, GROUP_MEAN, NORM_WEIGHTED, VALUE, MINIMUM_VARIANCE, BY_COUNT = range(7)
IID, EPOCHS = 0, 1
FREE, BALL, BOX = 0, 1, 2

LANES = 128
FEW_CONTEXTS = 4
"""Features and offsets hold at least so many contexts, the last ones perhaps never drawn."""

COMPARED_CONTEXTS = 16
"""So many contexts at most are searched by comparison with all of them."""

ONE, TWO = np.uint64(1), np.uint64(2)
UNIT = 2.0**-32

LEAST_EXPONENT = -708.0
"""Below it the exponential is 0."""
LOG2_E = 1.4426950408889634
LN2_HIGH, LN2_LOW = 6.93147180369123816490e-01, 1.90821492927058770002e-10
"""ln 2 in two parts; the first has trailing zeros, so that its small multiples are exact."""


class Plan(NamedTuple):
    """A trajectory as the body reads it.

    Arguments:
        contexts: thresholds of ρ, (X,).
        features: φ(x, k), (K, d, X), offset: (K, X), X filled up to FEW_CONTEXTS at least.
        by_arm: φ(x, k) again, (d, X K): column x K + k.
        law: thresholds of the rewards but the last, (M - 1, X K); rewards: (M, X K).
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
    by_arm: NDArray[np.float64]
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


@body(inline=True)
def series(r):
    """eʳ for |r| <= ½ ln 2 by Taylor's series to degree 13, whose remainder is below 5e-18."""
    p = 1.6059043836821613e-10
    p = p * r + 2.08767569878681e-09
    p = p * r + 2.505210838544172e-08
    p = p * r + 2.755731922398589e-07
    p = p * r + 2.7557319223985893e-06
    p = p * r + 2.48015873015873e-05
    p = p * r + 1.984126984126984e-04
    p = p * r + 1.388888888888889e-03
    p = p * r + 8.333333333333333e-03
    p = p * r + 4.1666666666666664e-02
    p = p * r + 1.6666666666666666e-01
    p = p * r + 0.5
    # 1 + (r + r² p): the large term last, for its rounding is the result's.
    return 1.0 + (r + r * r * p)


@body(inline=True)
def exponential(x):
    """eˣ for x <= 0 to two units in the last place; 0 below -708.

    x = n ln 2 + r with |r| <= ½ ln 2; 2ⁿ is made of its bits.
    """
    y = x if x > LEAST_EXPONENT else LEAST_EXPONENT
    n = np.floor(y * LOG2_E + 0.5)
    e = series((y - n * LN2_HIGH) - n * LN2_LOW)
    scale = np.int64((np.int64(n) + np.int64(1023)) << np.int64(52)).view(np.float64)
    return e * scale if x >= LEAST_EXPONENT else 0.0


@body
def block_words(first, slot, block, key, out):
    """The words of one block of all lanes, (4, LANES)."""
    for lane in range(LANES):
        w0, w1, w2, w3 = words_at(block, slot, first + lane, key)
        out[0, lane] = w0
        out[1, lane] = w1
        out[2, lane] = w2
        out[3, lane] = w3


@body
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


@body
def _shuffled(words, place, order, xs):
    """Place ``place`` of each lane's epoch; ``order`` (X, LANES) is shuffled up to it."""
    total = len(order)
    if place == 0:
        for x in range(total):
            order[x, :] = np.uint64(x)
    for lane in range(LANES):
        swap(order[:, lane], place, words[lane])
        xs[lane] = order[place, lane]


@body
def _logits_few(features, offset, xs, theta, out):
    """Logits (K, LANES) where a choice among FEW_CONTEXTS numbers needs no table."""
    arms, d, _ = features.shape
    for k in range(arms):
        o0, o1, o2, o3 = offset[k, 0], offset[k, 1], offset[k, 2], offset[k, 3]
        for lane in range(LANES):
            x = xs[lane]
            low, high = o1 if x & ONE else o0, o3 if x & ONE else o2
            out[k, lane] = high if x & TWO else low
        for j in range(d):
            f0, f1 = features[k, j, 0], features[k, j, 1]
            f2, f3 = features[k, j, 2], features[k, j, 3]
            for lane in range(LANES):
                x = xs[lane]
                low, high = f1 if x & ONE else f0, f3 if x & ONE else f2
                out[k, lane] += (high if x & TWO else low) * theta[j, lane]


@body
def _logits(contexts, features, offset, xs, theta, out):
    """Logits, (K, LANES)."""
    arms, d, _ = features.shape
    if contexts == 1:
        for k in range(arms):
            first = offset[k, 0]
            for lane in range(LANES):
                out[k, lane] = first
            for j in range(d):
                feature = features[k, j, 0]
                for lane in range(LANES):
                    out[k, lane] += feature * theta[j, lane]
    elif contexts <= FEW_CONTEXTS:
        _logits_few(features, offset, xs, theta, out)
    else:
        for k in range(arms):
            for lane in range(LANES):
                out[k, lane] = offset[k, xs[lane]]
            for j in range(d):
                for lane in range(LANES):
                    out[k, lane] += features[k, j, xs[lane]] * theta[j, lane]


@body
def _bend(features, bends, xs, theta, logits, own, columns):
    """½ Σⱼ ψⱼ θⱼ² off the logits (K, LANES), and the features φ - ψθ of each lane, laid out twice.

    The features of a lane are those of context number ``lane`` in ``own`` (K, d, LANES), and
    column k LANES + ``lane`` of ``columns`` (d, K LANES).
    """
    arms, d, _ = features.shape
    for k in range(arms):
        for j in range(d):
            for lane in range(LANES):
                off = bends[k, j, xs[lane]] * theta[j, lane]
                logits[k, lane] -= 0.5 * off * theta[j, lane]
                own[k, j, lane] = features[k, j, xs[lane]] - off
                columns[j, k * LANES + lane] = own[k, j, lane]


@body
def _softmax(weights, ends):
    """Logits to exp(logit - max), in place, and the sums up to each arm, (K, LANES) both."""
    arms = len(weights)
    # The last row of the sums holds the greatest logit until it is needed.
    top = arms - 1
    for lane in range(LANES):
        ends[top, lane] = weights[0, lane]
    for k in range(1, arms):
        for lane in range(LANES):
            logit, most = weights[k, lane], ends[top, lane]
            ends[top, lane] = logit if logit > most else most
    for k in range(arms):
        for lane in range(LANES):
            weights[k, lane] = exponential(weights[k, lane] - ends[top, lane])
    for lane in range(LANES):
        ends[0, lane] = weights[0, lane]
    for k in range(1, arms):
        for lane in range(LANES):
            ends[k, lane] = ends[k - 1, lane] + weights[k, lane]


@body
def _output(law, values, xs, words, place, ends, at, reward):
    """One output of each lane: its column x K + k, and its reward."""
    arms = len(ends)
    for lane in range(LANES):
        reward[lane] = np.float64(np.uint64(words[place, lane])) * UNIT * ends[arms - 1, lane]
        at[lane] = xs[lane] * np.uint64(arms)
    whole = (arms - 1) // 4 * 4
    for k in range(0, whole, 4):
        for lane in range(LANES):
            level = reward[lane]
            at[lane] += (
                np.uint64(level >= ends[k, lane])
                + np.uint64(level >= ends[k + 1, lane])
                + np.uint64(level >= ends[k + 2, lane])
                + np.uint64(level >= ends[k + 3, lane])
            )
    for k in range(whole, arms - 1):
        for lane in range(LANES):
            at[lane] += np.uint64(reward[lane] >= ends[k, lane])
    for lane in range(LANES):
        reward[lane] = values[0, at[lane]]
    for m in range(len(law)):
        for lane in range(LANES):
            if words[place + 1, lane] >= law[m, at[lane]]:
                reward[lane] = values[m + 1, at[lane]]


@body
def _centre(features, xs, weights, total, out):
    """f̄ of each lane, (d, LANES)."""
    arms, d, _ = features.shape
    for j in range(d):
        for lane in range(LANES):
            out[j, lane] = 0.0
        for k in range(arms):
            for lane in range(LANES):
                out[j, lane] += weights[k, lane] * features[k, j, xs[lane]]
        for lane in range(LANES):
            out[j, lane] /= total[lane]


@body
def _value(kind, features, means, spots, xs, weights, total, centre, room):
    """V(x), or the minimum-variance baseline, of each lane: the first row of ``room``.

    A lane's features stand at ``spots``, its mean rewards at ``xs``.
    """
    arms, d, _ = features.shape
    value, norm, weight, shift = room[0], room[1], room[2], room[3]
    value[:] = 0.0
    for k in range(arms):
        mean, row = means[k], weights[k]
        for lane in range(LANES):
            value[lane] += row[lane] * mean[xs[lane]]
    for lane in range(LANES):
        value[lane] /= total[lane]
    if kind != MINIMUM_VARIANCE:
        return
    weight[:] = 0.0
    shift[:] = 0.0
    for k in range(arms):
        mean, row = means[k], weights[k]
        norm[:] = 0.0
        for j in range(d):
            feature, middle = features[k, j], centre[j]
            for lane in range(LANES):
                off = feature[spots[lane]] - middle[lane]
                norm[lane] += off * off
        for lane in range(LANES):
            part = row[lane] * norm[lane]
            weight[lane] += part
            shift[lane] += part * (mean[xs[lane]] - value[lane])
    for lane in range(LANES):
        if weight[lane] > 0.0:
            value[lane] += shift[lane] / weight[lane]


@body
def _subtract_others(by_arm, at, centre, rewards, norms, before, room):
    """Rewards less the norm-weighted mean of the other outputs', in place, (G, LANES).

    The others' sums are those before an output plus those after it: no difference loses digits.
    """
    group, d = len(rewards), len(centre)
    weight, shift = room[0], room[1]
    weight[:] = 0.0
    shift[:] = 0.0
    for i in range(group):
        norm = norms[i]
        norm[:] = 0.0
        for j in range(d):
            for lane in range(LANES):
                off = by_arm[j, at[i, lane]] - centre[j, lane]
                norm[lane] += off * off
        for lane in range(LANES):
            before[2 * i, lane] = weight[lane]
            before[2 * i + 1, lane] = shift[lane]
            weight[lane] += norm[lane]
            shift[lane] += norm[lane] * rewards[i, lane]
    weight[:] = 0.0
    shift[:] = 0.0
    for i in range(group - 1, -1, -1):
        for lane in range(LANES):
            others = weight[lane] + before[2 * i, lane]
            others_shift = shift[lane] + before[2 * i + 1, lane]
            own = norms[i, lane]
            z = rewards[i, lane]
            weight[lane] += own
            shift[lane] += own * z
            if others > 0.0:
                rewards[i, lane] = z - others_shift / others


@body
def _advantages(kind, constant, by_count, rewards, room):
    """Advantages in place of rewards, (G, LANES): all kinds but the norm-weighted.

    V or b* is the first row of ``room``.
    """
    group = len(rewards)
    if kind == PROMPT_ONLY:
        for i in range(group):
            for lane in range(LANES):
                rewards[i, lane] -= constant
        return
    if kind in (VALUE, MINIMUM_VARIANCE):
        for i in range(group):
            for lane in range(LANES):
                rewards[i, lane] -= room[0, lane]
        return
    for lane in range(LANES):
        room[0, lane] = 0.0
    for i in range(group):
        for lane in range(LANES):
            room[0, lane] += rewards[i, lane]
    if kind == GRPO:
        share = 1.0 / (group - 1)
        for i in range(group):
            for lane in range(LANES):
                rewards[i, lane] -= (room[0, lane] - rewards[i, lane]) * share
    elif kind == BY_COUNT:
        for i in range(group):
            for lane in range(LANES):
                rewards[i, lane] = by_count[int(rewards[i, lane]), int(room[0, lane])]
    else:
        share = 1.0 / group
        for i in range(group):
            for lane in range(LANES):
                rewards[i, lane] -= room[0, lane] * share


@body
def _add(kind, by_arm, at, rewards, centre, whole, out):
    """Σ Aᵢ sᵢ of each lane added to (d, LANES)."""
    group, d = rewards.shape[0], len(out)
    for j in range(d):
        for i in range(group):
            for lane in range(LANES):
                out[j, lane] += rewards[i, lane] * by_arm[j, at[i, lane]]
    if kind in (GRPO, GROUP_MEAN):
        return
    whole[:] = 0.0
    for i in range(group):
        for lane in range(LANES):
            whole[lane] += rewards[i, lane]
    for j in range(d):
        for lane in range(LANES):
            out[j, lane] -= whole[lane] * centre[j, lane]


@body
def _project(plan, theta, room):
    """θ of each lane to the nearest point of Θ, (d, LANES)."""
    d = len(theta)
    if plan.theta_set == BOX:
        for j in range(d):
            for lane in range(LANES):
                theta[j, lane] = min(max(theta[j, lane], plan.low[j]), plan.high[j])
        return
    r = plan.basis.shape[1]
    for lane in range(LANES):
        square = 0.0
        for v in range(r):
            along = 0.0
            for j in range(d):
                along += (theta[j, lane] - plan.centre[j]) * plan.basis[j, v]
            room[v] = along
            square += along * along
        norm = sqrt(square)
        if norm > plan.radius:
            excess = 1.0 - plan.radius / norm
            for j in range(d):
                back = 0.0
                for v in range(r):
                    back += room[v] * plan.basis[j, v]
                theta[j, lane] -= excess * back


@body
def run(first, key, group, batch, plan, bends, begin, out):
    """Replications ``first`` onwards from θ₀ (R, d): θ at the snapshots, (R, S, d).

    ``bends`` is ψ(x, k), (K, d, X), or None, for which numba compiles a program without them.
    """
    # Taken out once: a tuple of arrays handed on costs as much as many lanes' arithmetic.
    features, offset, by_arm, kind = plan.features, plan.offset, plan.by_arm, plan.kind
    law, values, means, constant = plan.law, plan.rewards, plan.mean_rewards, plan.constant
    by_count = plan.by_count
    chances, rates, design, free = plan.contexts, plan.rates, plan.design, plan.theta_set == FREE
    arms, d, _ = features.shape
    contexts = len(chances)
    replications, kept = len(begin), len(plan.snapshots)
    words, prompts = np.empty((4, LANES), np.int64), np.empty((4, LANES), np.int64)
    order = np.zeros((contexts if design == EPOCHS else 1, LANES), np.uint64)
    xs = np.zeros(LANES, np.uint64)
    weights, ends = np.empty((arms, LANES)), np.empty((arms, LANES))
    at = np.empty((group, LANES), np.uint64)
    rewards, norms = np.empty((group, LANES)), np.empty((group, LANES))
    before = np.empty((2 * group, LANES))
    centre, theta, total = np.zeros((d, LANES)), np.empty((d, LANES)), np.empty((d, LANES))
    room, along = np.zeros((4, LANES)), np.empty(max(d, 1))
    whole = np.empty(LANES)
    # Where the features of a lane's outputs stand: in its context's place, or in its own.
    own, columns, spots, places = features, by_arm, xs, at
    if bends is not None:
        own, columns = np.empty((arms, d, LANES)), np.empty((d, arms * LANES))
        spots = np.arange(LANES).astype(np.uint64)
        places = np.empty((group, LANES), np.uint64)
    for start in range(0, replications, LANES):
        used = min(LANES, replications - start)
        rep = first + start
        for lane in range(LANES):
            for j in range(d):
                theta[j, lane] = begin[start + min(lane, used - 1), j]
        place = 0
        if plan.snapshots[0] == 0:
            for lane in range(used):
                for j in range(d):
                    out[start + lane, 0, j] = theta[j, lane]
            place = 1
        for t in range(1, len(rates) + 1):
            total[:] = 0.0
            for b in range(batch):
                if contexts > 1:
                    n = (t - 1) * batch + b
                    if n % 4 == 0:
                        block_words(rep, CONTEXT_SLOT, n // 4, key, prompts)
                    if design == IID:
                        _iid(prompts[n % 4], chances, xs)
                    else:
                        _shuffled(prompts[n % 4], n % contexts, order, xs)
                _logits(contexts, features, offset, xs, theta, weights)
                if bends is not None:
                    _bend(features, bends, xs, theta, weights, own, columns)
                _softmax(weights, ends)
                slot = t * MOST_PROMPTS + b
                for i in range(group):
                    if i % 2 == 0:
                        block_words(rep, slot, i // 2, key, words)
                    _output(law, values, xs, words, 2 * (i % 2), ends, at[i], rewards[i])
                if bends is not None:
                    for i in range(group):
                        for lane in range(LANES):
                            arm = at[i, lane] - xs[lane] * np.uint64(arms)
                            places[i, lane] = arm * np.uint64(LANES) + np.uint64(lane)
                if kind not in (GRPO, GROUP_MEAN):
                    _centre(own, spots, weights, ends[arms - 1], centre)
                if kind == NORM_WEIGHTED:
                    _subtract_others(columns, places, centre, rewards, norms, before, room)
                else:
                    if kind in (VALUE, MINIMUM_VARIANCE):
                        _value(kind, own, means, spots, xs, weights, ends[arms - 1], centre, room)
                    _advantages(kind, constant, by_count, rewards, room)
                _add(kind, columns, places, rewards, centre, whole, total)
            step = rates[t - 1] / (group * batch)
            for j in range(d):
                for lane in range(LANES):
                    theta[j, lane] += step * total[j, lane]
            if not free:
                _project(plan, theta, along)
            if place < kept and plan.snapshots[place] == t:
                for lane in range(used):
                    for j in range(d):
                        out[start + lane, place, j] = theta[j, lane]
                place += 1
