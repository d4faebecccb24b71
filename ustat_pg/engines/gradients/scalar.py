"""The scalar bodies of gradients: one replication of a minibatch.

Every estimator here is a combination of three vectors of a prompt's group,

    P = (1/G) Σ zᵢ sᵢ,   Q = (1/G) Σ sᵢ,   W = (1/G) Σ Aᵢ sᵢ  (Aᵢ norm-weighted),

namely P - b(x) Q for a baseline b(x) of the prompt only, (G P - Σz Q)/(G-1) for grpo, P - (Σz/G) Q for
the group mean, that over the group's deviation for the standardised one, (a₁(n) - a₀(n)) P + a₀(n) Q
for a table by the number n of successes, W for the norm-weighted one. So the code reads a group once, and
each estimator's squared error follows from inner products of these vectors and g.

Scores come in two forms: ``kron``, s(x, k) = φ(x) ⊗ (e_k - π(x)), where the inner products need
K-vectors only (tabular: φ(x) = e_x); and dense, s(x, k) given as an array (X, K, d).

:func:`minibatches` takes all cells and quantities; :func:`block` loops over it. Callers pass the scratch.
"""

from __future__ import annotations

from math import sqrt
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...execution.compiled import body
from ...sampling.rng import CONTEXT_SLOT
from ..draws import MASK, swap, words_at
from ..kinds import BY_COUNT, GROUP_MEAN, GRPO, PROMPT_ONLY, STANDARDISED

SQUARED_ERROR, DISTANCE, PROJECTION, SQUARED_PROJECTION, MIXED = 0, 1, 2, 3, 4
IID, FIXED, WITHOUT_REPLACEMENT = 0, 1, 2
TABULAR, SHARED, DENSE = 0, 1, 2

REWARD, PROB, LINEAR = 0, 1, 2
"""The columns of a problem's rows."""

ONE = np.uint64(1)
LARGEST_WORD = np.uint64(MASK)

CHUNK = 64
"""Replications that a block adds together."""


class Search(NamedTuple):
    """Thresholds of categorical draws, and tables indexed by a word's first bits, which are its cell.

    Arguments:
        ends: thresholds, (..., M).
        guide: where the search for a word of each cell starts, (..., 2ⁿ).
        cells: numbers that map a word to its outcome, (..., 2ⁿ): the sum with the word, without carry, has
            the outcome's number in the first bits. These bits are all 1 for cells of several thresholds.
        shift: 32 - n.
    """

    ends: NDArray[np.int64]
    guide: NDArray[np.int32]
    cells: NDArray[np.uint32]
    shift: int


class Tables(NamedTuple):
    """A problem as the body reads it.

    Arguments:
        contexts: thresholds of ρ, (X,).
        outcomes: thresholds of each context's (arm, reward) pairs, (X, M).
        arm, reward: of each outcome, (X, M); rewards are relative to their context's ``centre`` (X,),
            so that a common offset of all rewards costs no precision.
        form: TABULAR, SHARED or DENSE.
        probs: π, (X, K); probs_sq: ‖π‖², (X,).
        features: φ(x), (X, m), for SHARED; features_sq: ‖φ(x)‖², (X,).
        dense: s(x, k), (X, K, d), for DENSE.
        norms: ‖s(x, k)‖², (X, K).
        linear: ⟨s(x, k), g⟩, (X, K); target_sq: ‖g‖².
        row: reward, π and ⟨s, g⟩ of each outcome, (X, M, 4), adjacent in memory; the last number is 0.
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


class Quantities(NamedTuple):
    """The quantities as the body reads them.

    Arguments:
        kinds: PROMPT_ONLY, GRPO, ... of each estimator, (E,).
        baselines: b(x) of each, relative to the context's centre, (E, X).
        by_count: a₀(n) and a₁(n) - a₀(n) of each table, (E, 2, G+1).
        centre: the centre of the rewards, (X,).
        weighted, standardised: whether one of them is norm-weighted, or divides by the deviation.
        quantity: SQUARED_ERROR, DISTANCE, ... of each quantity, (Q,).
        first: its estimator, (Q,); second: its other estimator, or the index of its direction, (Q,).
        along: ⟨s(x, k), u⟩ for each direction u, (J, X, K); target_along: ⟨g, u⟩, (J,).
    """

    kinds: NDArray[np.int64]
    baselines: NDArray[np.float64]
    by_count: NDArray[np.float64]
    centre: NDArray[np.float64]
    weighted: bool
    standardised: bool
    quantity: NDArray[np.int64]
    first: NDArray[np.int64]
    second: NDArray[np.int64]
    along: NDArray[np.float64]
    target_along: NDArray[np.float64]


class Room(NamedTuple):
    """The scratch of one replication. Only ``order`` needs a value at the start: 0 to X - 1.

    Arguments:
        order, undo, xs: for the prompts, (X,), (B,), (B,).
        chosen: outcomes of a group, (G,).
        mass: weights by arm or coordinate, (V, B, W).
        weights: (V, G).
        sums: sums of rewards, and 1 / their deviation, or 0 if all are equal, (2, B).
        gram: (B, B, V, V).
        lin, lin_along: (B, V), (J, B, V).
        coef: (E, V, B); diff: (V, B).
    """

    order: NDArray[np.int64]
    undo: NDArray[np.int64]
    xs: NDArray[np.int64]
    chosen: NDArray[np.int32]
    mass: NDArray[np.float64]
    weights: NDArray[np.float64]
    sums: NDArray[np.float64]
    gram: NDArray[np.float64]
    lin: NDArray[np.float64]
    lin_along: NDArray[np.float64]
    coef: NDArray[np.float64]
    diff: NDArray[np.float64]


@body(inline=True)
def pick(word, ends, guide, cells, shift):
    """The outcome that a word chooses: found by its cell, or by indexed search (Chen and Asau 1974)."""
    # Unsigned numbers: as indices they need no check of whether they count from the end.
    place, bits = np.uint64(word), np.uint64(shift)
    cell = place >> bits
    j = ((place + cells[cell]) & LARGEST_WORD) >> bits
    beyond, passed = j == LARGEST_WORD >> bits, np.uint64(0)
    while beyond:
        j = np.uint64(guide[cell]) + passed
        beyond = place >= np.uint64(ends[j])
        passed += ONE
    return j


@body(inline=True)
def pick_at(word, x, ends, guide, cells, shift):
    """The outcome that a word chooses in row x of tables, without a view of the row."""
    place, bits = np.uint64(word), np.uint64(shift)
    cell = place >> bits
    j = ((place + cells[x, cell]) & LARGEST_WORD) >> bits
    beyond, passed = j == LARGEST_WORD >> bits, np.uint64(0)
    while beyond:
        j = np.uint64(guide[x, cell]) + passed
        beyond = place >= np.uint64(ends[x, j])
        passed += ONE
    return j


@body
def draw_prompts(design, rep, key, search, order, undo, out):
    """Choose the prompts of one replication; ``order`` is 0 to X - 1 before and after."""
    batch = len(out)
    if design == FIXED:
        for b in range(batch):
            out[b] = b
        return
    words = (0, 0, 0, 0)
    for b in range(batch):
        if b % 4 == 0:
            words = words_at(b // 4, CONTEXT_SLOT, rep, key)
        if design == IID:
            out[b] = pick(words[b % 4], search.ends, search.guide, search.cells, search.shift)
        else:
            undo[b] = swap(order, b, words[b % 4])
            out[b] = order[b]
    if design == WITHOUT_REPLACEMENT:
        for b in range(batch - 1, -1, -1):
            order[b], order[undo[b]] = order[undo[b]], order[b]


@body
def draw_group(rep, slot, key, search, x, out):
    """Choose the outcomes of one prompt's group."""
    ends, guide, cells, shift = search.ends[x], search.guide[x], search.cells[x], search.shift
    size = len(out)
    for start in range(0, size, 4):
        w0, w1, w2, w3 = words_at(start // 4, slot, rep, key)
        out[start] = pick(w0, ends, guide, cells, shift)
        if start + 1 < size:
            out[start + 1] = pick(w1, ends, guide, cells, shift)
        if start + 2 < size:
            out[start + 2] = pick(w2, ends, guide, cells, shift)
        if start + 3 < size:
            out[start + 3] = pick(w3, ends, guide, cells, shift)


@body(inline=True)
def successes(centre, group, whole):
    """The number of rewards 1 in a group of rewards 0 and 1, from their sum about a centre."""
    return int(whole + group * centre + 0.5)


@body(apart=True)
def coefficients(kinds, baselines, by_count, centres, group, xs, sums, coef):
    """The coefficients of P, Q and W in each estimator, (E, V, B), at prompts xs with reward sums."""
    coef[:] = 0.0
    # The loop over prompts is the inner one, so that it vectorises.
    for e in range(len(kinds)):
        if kinds[e] == PROMPT_ONLY:
            for b in range(len(xs)):
                coef[e, 0, b] = 1.0
                coef[e, 1, b] = -baselines[e, xs[b]]
        elif kinds[e] == GRPO:
            for b in range(len(xs)):
                coef[e, 0, b] = group / (group - 1.0)
                coef[e, 1, b] = -sums[0, b] / (group - 1.0)
        elif kinds[e] == GROUP_MEAN:
            for b in range(len(xs)):
                coef[e, 0, b] = 1.0
                coef[e, 1, b] = -sums[0, b] / group
        elif kinds[e] == STANDARDISED:
            for b in range(len(xs)):
                coef[e, 0, b] = sums[1, b]
                coef[e, 1, b] = -sums[1, b] * sums[0, b] / group
        elif kinds[e] == BY_COUNT:
            for b in range(len(xs)):
                centre = centres[xs[b]]
                won = successes(centre, group, sums[0, b])
                coef[e, 0, b] = by_count[e, 1, won]
                coef[e, 1, b] = by_count[e, 0, won] + centre * by_count[e, 1, won]
        else:
            for b in range(len(xs)):
                coef[e, 2, b] = 1.0


@body
def own_gram(x, b, chosen, tables, weights, mass, gram):
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


@body
def cross_gram(xs, tables, mass, gram):
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


@body
def square(coef, gram):
    """‖Σ_b Σ_v coef[v, b] vector[b, v]‖²."""
    vectors, batch = coef.shape
    s = 0.0
    for b in range(batch):
        for c in range(batch):
            for v in range(vectors):
                for u in range(vectors):
                    s += coef[v, b] * coef[u, c] * gram[b, c, v, u]
    return s


@body
def combine(coef, lin):
    """Σ_b Σ_v coef[v, b] lin[b, v]."""
    s = 0.0
    for b in range(coef.shape[1]):
        for v in range(coef.shape[0]):
            s += coef[v, b] * lin[b, v]
    return s


@body
def minibatches(first, count, key, group, design, tables, quantities, room, out):
    """Fill ``out`` (Q, count) with the quantities of replications ``first`` onwards."""
    # Unpacked once for many replications, because each array taken from a tuple counts a reference.
    form, arm, reward, norms = tables.form, tables.arm, tables.reward, tables.norms
    dense, linear, along = tables.dense, tables.linear, quantities.along
    kinds, baselines = quantities.kinds, quantities.baselines
    by_count, centres = quantities.by_count, quantities.centre
    xs, chosen, sums = room.xs, room.chosen, room.sums
    mass, weights, gram = room.mass, room.weights, room.gram
    lin, lin_along, coef, diff = room.lin, room.lin_along, room.coef, room.diff
    vectors, batch, width = mass.shape
    directions = along.shape[0]
    share, per_prompt = 1.0 / group, 1.0 / batch
    for r in range(count):
        rep = first + r
        draw_prompts(design, rep, key, tables.contexts, room.order, room.undo, xs)
        for b in range(batch):
            x = xs[b]
            draw_group(rep, b, key, tables.outcomes, x, chosen)
            for v in range(vectors):
                lin[b, v] = 0.0
                for j in range(directions):
                    lin_along[j, b, v] = 0.0
                if form == DENSE or batch > 1:
                    for k in range(width):
                        mass[v, b, k] = 0.0
                else:
                    for n in range(group):
                        mass[v, b, arm[x, chosen[n]]] = 0.0
            own_sum = 0.0
            for n in range(group):
                own_sum += reward[x, chosen[n]]
            sums[0, b] = own_sum
            if quantities.standardised:
                squares = 0.0
                unequal = False
                for n in range(group):
                    z = reward[x, chosen[n]]
                    squares += (z - own_sum * share) * (z - own_sum * share)
                    unequal |= z != reward[x, chosen[0]]
                sums[1, b] = 1.0 / sqrt(squares * share) if unequal else 0.0
            weight_sum = 0.0
            weighted_sum = 0.0
            if quantities.weighted:
                for n in range(group):
                    weight_sum += norms[x, arm[x, chosen[n]]]
                    weighted_sum += norms[x, arm[x, chosen[n]]] * reward[x, chosen[n]]
            for n in range(group):
                k = arm[x, chosen[n]]
                z = reward[x, chosen[n]]
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
                            # The prompt's own norm is much the largest: add, do not subtract.
                            for j in range(group):
                                if j != n:
                                    norm = norms[x, arm[x, chosen[j]]]
                                    others += norm
                                    others_weighted += norm * reward[x, chosen[j]]
                        # By definition 0/0 is a baseline of 0, which is minus the centre here.
                        baseline = -tables.centre[x]
                        if others > 0.0:
                            baseline = others_weighted / others
                        w = share * (z - baseline)
                    weights[v, n] = w
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
                own_gram(x, b, chosen, tables, weights, mass, gram)
        if batch > 1:
            cross_gram(xs, tables, mass, gram)
        coefficients(kinds, baselines, by_count, centres, group, xs, sums, coef)
        for q in range(len(quantities.quantity)):
            one, other = quantities.first[q], quantities.second[q]
            if quantities.quantity[q] == DISTANCE:
                for b in range(batch):
                    for v in range(vectors):
                        diff[v, b] = coef[one, v, b] - coef[other, v, b]
                out[q, r] = square(diff, gram) * per_prompt * per_prompt
            elif quantities.quantity[q] == SQUARED_ERROR:
                out[q, r] = (
                    square(coef[one], gram) * per_prompt * per_prompt
                    - 2.0 * combine(coef[one], lin) * per_prompt
                    + tables.target_sq
                )
            elif quantities.quantity[q] == MIXED:
                s = 0.0
                for b in range(batch):
                    if 0 < successes(centres[xs[b]], group, sums[0, b]) < group:
                        s += per_prompt
                out[q, r] = s
            else:
                s = (
                    combine(coef[one], lin_along[other]) * per_prompt
                    - quantities.target_along[other]
                )
                out[q, r] = s if quantities.quantity[q] == PROJECTION else s * s


@body
def block(first, replications, key, group, design, tables, quantities, room, total, products):
    """Fill the quantities' means ``total`` (Q,) and centred products (Q, Q) over a block."""
    count = len(quantities.quantity)
    values, base, added = np.zeros((count, CHUNK)), np.zeros(count), np.zeros(count)
    for x in range(len(room.order)):
        room.order[x] = x
    for start in range(0, replications, CHUNK):
        used = min(CHUNK, replications - start)
        minibatches(first + start, used, key, group, design, tables, quantities, room, values)
        # Sums are about the first replication's values. These are near the mean, so nothing cancels.
        if start == 0:
            for q in range(count):
                base[q] = values[q, 0]
        for r in range(used):
            for q in range(count):
                values[q, r] -= base[q]
                added[q] += values[q, r]
                for p in range(q + 1):
                    products[q, p] += values[q, r] * values[p, r]
    for q in range(count):
        total[q] = base[q] + added[q] / replications
        for p in range(q + 1):
            products[q, p] -= added[q] * added[p] / replications
            products[p, q] = products[q, p]
