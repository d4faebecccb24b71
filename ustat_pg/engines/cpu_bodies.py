"""The compiled body of the cpu engine: one replication of a minibatch, looped over a block.

Every estimator here is a combination of three vectors of a prompt's group,

    P = (1/G) Σ zᵢ sᵢ,   Q = (1/G) Σ sᵢ,   W = (1/G) Σ Aᵢ sᵢ  (Aᵢ norm-weighted),

namely P - b(x) Q for a baseline of the prompt only, (G P - Σz Q)/(G-1) for grpo, P - (Σz/G) Q for
the group mean, W for the norm-weighted one. So a group is read once, and each estimator's squared
error follows from inner products of these vectors and g.

Scores come in two forms: ``kron``, s(x, k) = φ(x) ⊗ (e_k - π(x)), where the inner products need
K-vectors only (tabular: φ(x) = e_x); and dense, s(x, k) given as an array (X, K, d).

numba caches a compiled function by the file it stands in, so everything that is compiled stands in
this one: a cache never outlives a change.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from ..rng import CONTEXT_SLOT

__all__ = ["Asked", "Search", "Tables", "block", "draw_block", "philox_scalar"]

PROMPT_ONLY, GRPO, GROUP_MEAN, NORM_WEIGHTED = 0, 1, 2, 3
SQUARED_ERROR, DISTANCE, PROJECTION, SQUARED_PROJECTION = 0, 1, 2, 3
IID, FIXED, WITHOUT_REPLACEMENT = 0, 1, 2
TABULAR, SHARED, DENSE = 0, 1, 2

_SLOT = np.uint64(CONTEXT_SLOT)
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
    j = guide[word >> shift]
    while word >= ends[j]:
        j += 1
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
    kinds, weighted = asked.kinds, asked.weighted
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
    coef = np.zeros((len(kinds), batch, vectors))
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
        for e in range(len(kinds)):
            for b in range(batch):
                for v in range(vectors):
                    coef[e, b, v] = 0.0
                if kinds[e] == PROMPT_ONLY:
                    coef[e, b, 0] = 1.0
                    coef[e, b, 1] = -asked.baselines[e, xs[b]]
                elif kinds[e] == GRPO:
                    coef[e, b, 0] = group / (group - 1.0)
                    coef[e, b, 1] = -sums[b] / (group - 1.0)
                elif kinds[e] == GROUP_MEAN:
                    coef[e, b, 0] = 1.0
                    coef[e, b, 1] = -sums[b] * share
                else:
                    coef[e, b, 2] = 1.0
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
