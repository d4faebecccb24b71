"""The compiled bodies of the cpu engine: one replication of a minibatch, looped over a block.

Every estimator here is a combination of three vectors of a prompt's group,

    P = (1/G) Σ zᵢ sᵢ,   Q = (1/G) Σ sᵢ,   W = (1/G) Σ Aᵢ sᵢ  (Aᵢ norm-weighted),

namely P - b(x) Q for a baseline of the prompt only, (G P - Σz Q)/(G-1) for grpo, P - (Σz/G) Q for
the group mean, W for the norm-weighted one. So a group is read once, and each estimator's squared
error follows from inner products of these vectors and g.

Scores come in two forms: ``kron``, s(x, k) = φ(x) ⊗ (e_k - π(x)), where the inner products need
K-vectors only (tabular: φ(x) = e_x); and dense, s(x, k) given as an array (X, K, d).

:func:`block` takes every cell and quantity. :func:`one_prompt_block` takes what most claims ask:
one prompt a replication, scores in kron form, squared errors and distances of estimators made of P
and Q. It runs replications side by side, one to a vector lane, and reads a group from how often
each outcome occurred.

numba caches a compiled function by the file it stands in, so everything that is compiled stands in
this one: a cache never outlives a change.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from ...rng import CONTEXT_SLOT

__all__ = ["Asked", "Search", "Tables", "block", "draw_block", "one_prompt_block", "philox_scalar"]

PROMPT_ONLY, GRPO, GROUP_MEAN, NORM_WEIGHTED = 0, 1, 2, 3
SQUARED_ERROR, DISTANCE, PROJECTION, SQUARED_PROJECTION = 0, 1, 2, 3
IID, FIXED, WITHOUT_REPLACEMENT = 0, 1, 2
TABULAR, SHARED, DENSE = 0, 1, 2

REWARD, PROB, LINEAR = 0, 1, 2

LANES = 64
"""Replications side by side; a constant, and rows of it in flat arrays, let loops be vectors."""

(SUM, AT_P, AT_Q, LIN_P, LIN_Q, PP, PQ, QQ, SCALE, PROBS_SQ, COEF_P, COEF_Q) = (
    row * LANES for row in range(12)
)
_STATS = 12 * LANES
_FEW = 32
_ACCUMULATORS = 8

_SLOT = np.uint64(CONTEXT_SLOT)
_ONE = np.uint64(1)
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)


@njit(nogil=True, inline="always")
def philox_scalar(c0: Any, c1: Any, c2: Any, c3: Any, k0: Any, k1: Any) -> Any:
    """Philox 4x32-10 of :mod:`ustat_pg.rng`, on eight-byte scalars holding 32-bit words."""
    mask, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    for _ in range(10):
        product_0 = np.uint64(0xD2511F53) * c0
        product_1 = np.uint64(0xCD9E8D57) * c2
        c0 = (product_1 >> half) ^ c1 ^ k0
        c1 = product_1 & mask
        c2 = (product_0 >> half) ^ c3 ^ k1
        c3 = product_0 & mask
        k0 = (k0 + np.uint64(0x9E3779B9)) & mask
        k1 = (k1 + np.uint64(0xBB67AE85)) & mask
    return c0, c1, c2, c3


@njit(nogil=True, inline="always")
def _pick(word: Any, ends: Any, guide: Any, shift: Any) -> Any:
    """The outcome that a word chooses: indexed search (Chen and Asau 1974)."""
    j = np.uint64(guide[word >> shift])
    # The first step without a branch: it is the one that a processor cannot foresee.
    j += np.uint64(word >= ends[j])
    while word >= ends[j]:
        j += _ONE
    return j


@njit(nogil=True, inline="always")
def _pick_at(word: Any, x: Any, ends: Any, guide: Any, shift: Any) -> Any:
    """_pick in row x of tables, without a view of the row."""
    j = np.uint64(guide[x, word >> shift])
    j += np.uint64(word >= ends[x, j])
    while word >= ends[x, j]:
        j += _ONE
    return j


@njit(nogil=True)
def _prompts(design: Any, rep: Any, key: Any, search: Any, order: Any, undo: Any, out: Any) -> None:
    """Choose the prompts of one replication."""
    batch, total = len(out), len(order)
    if design == FIXED:
        for b in range(batch):
            out[b] = b
        return
    words = (np.uint64(0), np.uint64(0), np.uint64(0), np.uint64(0))
    for b in range(batch):
        if b % 4 == 0:
            words = philox_scalar(
                np.uint64(b // 4), _SLOT, rep & _LOW, rep >> _HALF, key[0], key[1]
            )
        word = words[b % 4]
        if design == IID:
            out[b] = _pick(word, search.ends, search.guide, search.shift)
        else:
            place = b + np.int64((word * np.uint64(total - b)) >> _HALF)
            undo[b] = place
            order[b], order[place] = order[place], order[b]
            out[b] = order[b]
    if design == WITHOUT_REPLACEMENT:
        for b in range(batch - 1, -1, -1):
            order[b], order[undo[b]] = order[undo[b]], order[b]


@njit(nogil=True)
def _group(rep: Any, slot: Any, key: Any, search: Any, x: Any, out: Any) -> None:
    """Choose the outcomes of one prompt's group."""
    ends, guide = search.ends[x], search.guide[x]
    size = len(out)
    for start in range(0, size, 4):
        w0, w1, w2, w3 = philox_scalar(
            np.uint64(start // 4), np.uint64(slot), rep & _LOW, rep >> _HALF, key[0], key[1]
        )
        out[start] = _pick(w0, ends, guide, search.shift)
        if start + 1 < size:
            out[start + 1] = _pick(w1, ends, guide, search.shift)
        if start + 2 < size:
            out[start + 2] = _pick(w2, ends, guide, search.shift)
        if start + 3 < size:
            out[start + 3] = _pick(w3, ends, guide, search.shift)


class Search(NamedTuple):
    """Thresholds of categorical draws, with a guide table: where the search for a word starts."""

    ends: NDArray[np.uint64]
    guide: NDArray[np.int32]
    shift: np.uint64


class Tables(NamedTuple):
    """A problem as the body reads it.

    Arguments:
        contexts: thresholds of ρ, (X,).
        outcomes: thresholds of each context's (arm, reward) pairs, (X, M).
        arm, reward: of each outcome, (X, M); rewards are about their context's ``centre`` (X,),
            so that an offset of all rewards costs no precision.
        form: TABULAR, SHARED or DENSE.
        probs: π, (X, K); probs_sq: ‖π‖², (X,).
        features: φ(x), (X, m), for SHARED; features_sq: ‖φ(x)‖², (X,).
        dense: s(x, k), (X, K, d), for DENSE.
        norms: ‖s(x, k)‖², (X, K).
        linear: ⟨s(x, k), g⟩, (X, K); target_sq: ‖g‖².
        row: reward, π and ⟨s, g⟩ of each outcome, (X, M, 4), side by side in memory; last, 0.
        distinct: whether no two outcomes of a context have the same arm.
    """

    contexts: Search
    outcomes: Search
    arm: NDArray[np.int64]
    reward: NDArray[np.float64]
    centre: NDArray[np.float64]
    form: int
    probs: NDArray[np.float64]
    probs_sq: NDArray[np.float64]
    features: NDArray[np.float64]
    features_sq: NDArray[np.float64]
    dense: NDArray[np.float64]
    norms: NDArray[np.float64]
    linear: NDArray[np.float64]
    target_sq: float
    row: NDArray[np.float64]
    distinct: bool


class Asked(NamedTuple):
    """The quantities as the body reads them.

    Arguments:
        kinds: PROMPT_ONLY, GRPO, ... of each estimator, (E,).
        baselines: b(x) of each, about the context's centre, (E, X).
        weighted: whether one of them is norm-weighted.
        quantity: SQUARED_ERROR, DISTANCE, ... of each quantity, (Q,).
        first: its estimator, (Q,); second: its other estimator, or number of direction, (Q,).
        along: ⟨s(x, k), u⟩ for each direction u, (J, X, K); target_along: ⟨g, u⟩, (J,).
    """

    kinds: NDArray[np.int64]
    baselines: NDArray[np.float64]
    weighted: bool
    quantity: NDArray[np.int64]
    first: NDArray[np.int64]
    second: NDArray[np.int64]
    along: NDArray[np.float64]
    target_along: NDArray[np.float64]


@njit(nogil=True, cache=True)
def draw_block(first: Any, key: Any, design: Any, tables: Any, contexts: Any, chosen: Any) -> None:
    """Fill contexts (R, B) and outcome numbers (R, B, G): what the agreement tests compare."""
    order = np.arange(len(tables.contexts.ends))
    undo = np.empty(contexts.shape[1], np.int64)
    for r in range(len(contexts)):
        rep = np.uint64(first + r)
        _prompts(design, rep, key, tables.contexts, order, undo, contexts[r])
        for b in range(contexts.shape[1]):
            _group(rep, b, key, tables.outcomes, contexts[r, b], chosen[r, b])


@njit(nogil=True, cache=True, error_model="numpy")
def block(
    first: Any,
    replications: Any,
    key: Any,
    group: Any,
    batch: Any,
    design: Any,
    tables: Any,
    asked: Any,
    total: Any,
    products: Any,
) -> None:
    """Fill the quantities' means ``total`` (Q,) and centred products (Q, Q) over a block."""
    form, probs, arm, reward, norms = (
        tables.form,
        tables.probs,
        tables.arm,
        tables.reward,
        tables.norms,
    )
    dense, linear, along = tables.dense, tables.linear, asked.along
    weighted = asked.weighted
    arms = probs.shape[1]
    width = dense.shape[2] if form == DENSE else arms
    count = len(asked.quantity)
    directions = along.shape[0]
    vectors = 3 if weighted else 2
    order = np.arange(len(tables.contexts.ends))
    undo = np.empty(batch, np.int64)
    xs = np.empty(batch, np.int64)
    chosen = np.empty(group, np.int64)
    mass = np.zeros((vectors, batch, width))
    weights = np.zeros((vectors, group))
    sums = np.zeros(batch)
    gram = np.zeros((batch, batch, vectors, vectors))
    lin = np.zeros((batch, vectors))
    lin_along = np.zeros((directions, batch, vectors))
    coef = np.zeros((len(asked.kinds), batch, vectors))
    diff = np.zeros((batch, vectors))
    value = np.zeros(count)
    base = np.zeros(count)
    added = np.zeros(count)
    share = 1.0 / group
    per_prompt = 1.0 / batch
    for r in range(replications):
        rep = np.uint64(first + r)
        _prompts(design, rep, key, tables.contexts, order, undo, xs)
        for b in range(batch):
            x = xs[b]
            _group(rep, b, key, tables.outcomes, x, chosen)
            for v in range(vectors):
                lin[b, v] = 0.0
                for j in range(directions):
                    lin_along[j, b, v] = 0.0
                if form == DENSE or batch > 1:
                    for k in range(width):
                        mass[v, b, k] = 0.0
                else:
                    for i in range(group):
                        mass[v, b, arm[x, chosen[i]]] = 0.0
            own_sum = 0.0
            for i in range(group):
                own_sum += reward[x, chosen[i]]
            sums[b] = own_sum
            weight_sum = 0.0
            weighted_sum = 0.0
            if weighted:
                for i in range(group):
                    weight_sum += norms[x, arm[x, chosen[i]]]
                    weighted_sum += norms[x, arm[x, chosen[i]]] * reward[x, chosen[i]]
            for i in range(group):
                k = arm[x, chosen[i]]
                z = reward[x, chosen[i]]
                for v in range(vectors):
                    if v == 0:
                        w = z * share
                    elif v == 1:
                        w = share
                    else:
                        others = 0.0
                        others_weighted = 0.0
                        if weight_sum - norms[x, k] > 1e-3 * weight_sum:
                            others = weight_sum - norms[x, k]
                            others_weighted = weighted_sum - norms[x, k] * z
                        else:
                            # The own norm dwarfs the others: add them up rather than subtract.
                            for j in range(group):
                                if j != i:
                                    n = norms[x, arm[x, chosen[j]]]
                                    others += n
                                    others_weighted += n * reward[x, chosen[j]]
                        # 0/0 is a baseline of 0 by definition, which is minus the centre here.
                        own = -tables.centre[x]
                        if others > 0.0:
                            own = others_weighted / others
                        w = share * (z - own)
                    weights[v, i] = w
                    lin[b, v] += w * linear[x, k]
                    for j in range(directions):
                        lin_along[j, b, v] += w * along[j, x, k]
                    if form == DENSE:
                        for m in range(width):
                            mass[v, b, m] += w * dense[x, k, m]
                    else:
                        mass[v, b, k] += w
            if form == DENSE:
                for v in range(vectors):
                    for u in range(v + 1):
                        s = 0.0
                        for m in range(width):
                            s += mass[v, b, m] * mass[u, b, m]
                        gram[b, b, v, u] = s
                        gram[b, b, u, v] = s
            else:
                _own_gram(x, b, chosen, tables, weights, mass, gram)
        if batch > 1:
            _cross_gram(xs, tables, mass, gram)
        _coefficients(asked, group, xs, sums, coef)
        for q in range(count):
            if asked.quantity[q] == DISTANCE:
                for b in range(batch):
                    for v in range(vectors):
                        diff[b, v] = coef[asked.first[q], b, v] - coef[asked.second[q], b, v]
                value[q] = _square(diff, gram) * per_prompt * per_prompt
            elif asked.quantity[q] == SQUARED_ERROR:
                value[q] = (
                    _square(coef[asked.first[q]], gram) * per_prompt * per_prompt
                    - 2.0 * _apply(coef[asked.first[q]], lin) * per_prompt
                    + tables.target_sq
                )
            else:
                j = asked.second[q]
                s = _apply(coef[asked.first[q]], lin_along[j]) * per_prompt - asked.target_along[j]
                value[q] = s if asked.quantity[q] == PROJECTION else s * s
        # Sums about the first replication's values, which are near the mean: no cancellation.
        if r == 0:
            for q in range(count):
                base[q] = value[q]
        for q in range(count):
            value[q] -= base[q]
            added[q] += value[q]
            for p in range(q + 1):
                products[q, p] += value[q] * value[p]
    for q in range(count):
        total[q] = base[q] + added[q] / replications
        for p in range(q + 1):
            products[q, p] -= added[q] * added[p] / replications
            products[p, q] = products[q, p]


@njit(nogil=True, error_model="numpy")
def _coefficients(asked: Any, group: Any, xs: Any, sums: Any, coef: Any) -> None:
    """Each estimator by its multiples of P, Q and W, (E, B, V), at prompts xs with reward sums."""
    coef[:] = 0.0
    for e in range(len(asked.kinds)):
        kind = asked.kinds[e]
        for b in range(len(xs)):
            if kind == PROMPT_ONLY:
                coef[e, b, 0] = 1.0
                coef[e, b, 1] = -asked.baselines[e, xs[b]]
            elif kind == GRPO:
                coef[e, b, 0] = group / (group - 1.0)
                coef[e, b, 1] = -sums[b] / (group - 1.0)
            elif kind == GROUP_MEAN:
                coef[e, b, 0] = 1.0
                coef[e, b, 1] = -sums[b] / group
            else:
                coef[e, b, 2] = 1.0


@njit(nogil=True)
def _own_gram(x: Any, b: Any, chosen: Any, tables: Any, weights: Any, mass: Any, gram: Any) -> None:
    """Inner products within one prompt, in O(G): weights (V, G) per output, mass (V, B, K) per arm.

    ⟨φ⊗(w - |w|π), φ⊗(u - |u|π)⟩ = ‖φ‖² (Σ w u - |w| Σ u π - |u| Σ w π + |w||u| ‖π‖²), and the
    sum of w u over arms is the sum over outputs of the output's w times its arm's u.
    """
    probs = tables.probs
    for v in range(len(weights)):
        for u in range(v + 1):
            both = 0.0
            at_v = 0.0
            at_u = 0.0
            whole_v = 0.0
            whole_u = 0.0
            for i in range(len(chosen)):
                k = tables.arm[x, chosen[i]]
                both += weights[v, i] * mass[u, b, k]
                at_v += weights[v, i] * probs[x, k]
                at_u += weights[u, i] * probs[x, k]
                whole_v += weights[v, i]
                whole_u += weights[u, i]
            s = tables.features_sq[x] * (
                both - whole_v * at_u - whole_u * at_v + whole_v * whole_u * tables.probs_sq[x]
            )
            gram[b, b, v, u] = s
            gram[b, b, u, v] = s


@njit(nogil=True)
def _cross_gram(xs: Any, tables: Any, mass: Any, gram: Any) -> None:
    """Inner products between the prompts of a minibatch."""
    vectors, batch, width = mass.shape
    form, features, probs = tables.form, tables.features, tables.probs
    if form != DENSE:
        for v in range(vectors):
            for b in range(batch):
                whole = 0.0
                for k in range(width):
                    whole += mass[v, b, k]
                for k in range(width):
                    mass[v, b, k] -= whole * probs[xs[b], k]
    for b in range(batch):
        for c in range(b):
            scale = 1.0
            if form == TABULAR:
                scale = 1.0 if xs[b] == xs[c] else 0.0
            elif form == SHARED:
                scale = 0.0
                for m in range(features.shape[1]):
                    scale += features[xs[b], m] * features[xs[c], m]
            for v in range(vectors):
                for u in range(vectors):
                    s = 0.0
                    if scale != 0.0:
                        for k in range(width):
                            s += mass[v, b, k] * mass[u, c, k]
                    gram[b, c, v, u] = scale * s
                    gram[c, b, u, v] = scale * s


@njit(nogil=True)
def _square(coef: Any, gram: Any) -> Any:
    """‖Σ_b Σ_v coef[b, v] vector[b, v]‖²."""
    batch, vectors = coef.shape
    s = 0.0
    for b in range(batch):
        for c in range(batch):
            for v in range(vectors):
                for u in range(vectors):
                    s += coef[b, v] * coef[c, u] * gram[b, c, v, u]
    return s


@njit(nogil=True)
def _apply(coef: Any, lin: Any) -> Any:
    s = 0.0
    for b in range(coef.shape[0]):
        for v in range(coef.shape[1]):
            s += coef[b, v] * lin[b, v]
    return s


@njit(nogil=True, cache=True, error_model="numpy")
def one_prompt_block(
    first: Any,
    replications: Any,
    key: Any,
    group: Any,
    batch: Any,
    design: Any,
    tables: Any,
    asked: Any,
    total: Any,
    products: Any,
) -> None:
    """What :func:`block` does, for batch 1, scores in kron form, and quantities of P and Q alone.

    ``stats`` holds, for each of LANES replications, in units of G: Σz (SUM), the parts of P and Q
    along π (AT) and g (LIN), their inner products before centring (PP, PQ, QQ), ‖φ(x)‖² (SCALE)
    and ‖π(x)‖² of its prompt, and room to work in.
    """
    contexts, outcomes = tables.outcomes.ends.shape
    dense = contexts == 1 and tables.distinct and outcomes <= 2 * group
    moving = _moving(asked.kinds)
    count = len(asked.quantity)
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
    stats = np.zeros(_STATS)
    stats[SCALE : SCALE + LANES] = tables.features_sq[0]
    stats[PROBS_SQ : PROBS_SQ + LANES] = tables.probs_sq[0]
    coef = np.zeros((len(asked.kinds), LANES, 2))
    value = np.zeros((count, LANES))
    base = np.zeros(count)
    added = np.zeros((count, _ACCUMULATORS))
    multiplied = np.zeros((count, count, _ACCUMULATORS))
    for start in range(0, replications, LANES):
        used = min(LANES, replications - start)
        _words(np.uint64(first + start), np.uint64(0), key, words)
        if contexts > 1:
            for lane in range(used):
                rep = np.uint64(first + start + lane)
                at = xs[lane : lane + 1]
                _prompts(design, rep, key, tables.contexts, order, undo, at)
                stats[SCALE + lane] = tables.features_sq[xs[lane]]
                stats[PROBS_SQ + lane] = tables.probs_sq[xs[lane]]
        if dense:
            if outcomes <= _FEW:
                _count_by_comparison(group, tables, words, by_outcome)
            else:
                _count_by_search(group, tables, rows, by_outcome)
            _sum_counts(counts, weights, moving, stats)
        else:
            _searched(used, moving, tables, xs, rows, chosen, often, mass, stats)
        _coefficients(asked, group, xs, stats[SUM : SUM + LANES], coef)
        for q in range(count):
            _squared(asked, q, group, tables.target_sq, coef, stats, value)
            # As in block: sums about the first replication's values.
            if start == 0:
                base[q] = value[q, 0]
            for lane in range(LANES):
                value[q, lane] -= base[q]
            for lane in range(used, LANES):
                value[q, lane] = 0.0
        for q in range(count):
            for lane in range(0, LANES, _ACCUMULATORS):
                for a in range(_ACCUMULATORS):
                    added[q, a] += value[q, lane + a]
            for p in range(q + 1):
                for lane in range(0, LANES, _ACCUMULATORS):
                    for a in range(_ACCUMULATORS):
                        multiplied[q, p, a] += value[q, lane + a] * value[p, lane + a]
    for q in range(count):
        total[q] = base[q] + added[q].sum() / replications
        for p in range(q + 1):
            s = added[q].sum() * added[p].sum() / replications
            products[q, p] = multiplied[q, p].sum() - s
            products[p, q] = products[q, p]


@njit(nogil=True)
def _moving(kinds: Any) -> Any:
    """Whether some estimator's weights do not sum to 0, so that π enters its norm."""
    return (kinds == PROMPT_ONLY).any()


@njit(nogil=True)
def _words(first: Any, slot: Any, key: Any, out: Any) -> None:
    """The words of LANES replications in a row at one slot, (⌈G/4⌉, 4 LANES)."""
    # The masks tell the compiler that these are 32-bit numbers, which makes a product one step.
    k0, k1 = key[0] & _LOW, key[1] & _LOW
    for quad in range(len(out)):
        for lane in range(LANES):
            rep = first + np.uint64(lane)
            w0, w1, w2, w3 = philox_scalar(
                np.uint64(quad), slot & _LOW, rep & _LOW, rep >> _HALF, k0, k1
            )
            out[quad, lane] = w0
            out[quad, LANES + lane] = w1
            out[quad, 2 * LANES + lane] = w2
            out[quad, 3 * LANES + lane] = w3


@njit(nogil=True)
def _count_by_comparison(group: Any, tables: Any, words: Any, counts: Any) -> None:
    """How often each outcome of a problem's only prompt was drawn, (4 ⌈M/4⌉, LANES).

    The number of words below an outcome's upper end is how often it or one before it was drawn.
    """
    ends = tables.outcomes.ends[0]
    counts[:] = 0
    for j in range(len(ends)):
        if ends[j] > _LOW:
            counts[j] = group
    for i in range(group, 4 * len(words)):
        words[i // 4, i % 4 * LANES : (i % 4 + 1) * LANES] = _LOW
    for quad in range(len(words)):
        for j in range(len(ends)):
            if ends[j] <= _LOW:
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


@njit(nogil=True)
def _count_by_search(group: Any, tables: Any, words: Any, counts: Any) -> None:
    """Counts (4 ⌈M/4⌉, LANES), with one search a word (4 ⌈G/4⌉, LANES)."""
    ends, guide, shift = tables.outcomes.ends[0], tables.outcomes.guide[0], tables.outcomes.shift
    counts[:] = 0
    for i in range(group):
        for lane in range(LANES):
            j = _pick(np.uint64(words[i, lane]), ends, guide, shift)
            counts[j, lane] += np.uint32(1)


@njit(nogil=True)
def _weights(row: Any, out: Any) -> None:
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


@njit(nogil=True)
def _sum_counts(counts: Any, w: Any, moving: Any, stats: Any) -> None:
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


@njit(nogil=True)
def _searched(
    used: Any,
    moving: Any,
    tables: Any,
    xs: Any,
    words: Any,
    chosen: Any,
    often: Any,
    mass: Any,
    stats: Any,
) -> None:
    """The stats of the lanes in use, in O(G) each; ``often`` and ``mass`` enter and leave at 0."""
    ends, guide, shift = tables.outcomes.ends, tables.outcomes.guide, tables.outcomes.shift
    row, arm, distinct = tables.row, tables.arm, tables.distinct
    # Searches first, over the outcome numbers' own words: fewer tables at a time in the cache.
    if len(ends) == 1:
        only, its_guide = ends[0], guide[0]
        for i in range(len(chosen)):
            for lane in range(used):
                words[i, lane] = _pick(np.uint64(words[i, lane]), only, its_guide, shift)
    else:
        for i in range(len(chosen)):
            for lane in range(used):
                words[i, lane] = _pick_at(np.uint64(words[i, lane]), xs[lane], ends, guide, shift)
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


@njit(nogil=True, error_model="numpy")
def _squared(
    asked: Any, q: Any, group: Any, target_sq: Any, coef: Any, stats: Any, value: Any
) -> None:
    """Quantity q of each lane: a square as in _own_gram; for an error, less 2⟨·, g⟩ - ‖g‖²."""
    of, other = asked.first[q], asked.second[q]
    for lane in range(LANES):
        stats[COEF_P + lane] = coef[of, lane, 0]
        stats[COEF_Q + lane] = coef[of, lane, 1]
    error = 1.0
    if asked.quantity[q] == DISTANCE:
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
