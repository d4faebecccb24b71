"""What a group adds to each arm: its baselines and advantages, summed over the outputs of an arm."""

from __future__ import annotations

import numpy as np

from ....compiled import body, fma
from ...draws import BY_COUNT, GRPO, MINIMUM_VARIANCE, PROMPT_ONLY, VALUE
from .plan import LANES, row_at

BASE, SLOPE, MASS, SHIFT, NORM = (row * LANES for row in range(5))
"""Rows of ``terms``, of which advantages are made; in one array, so that no loop asks whether two overlap."""


@body(apart=True)
def find_total(counted, counts, values, terms):
    """Σ z of each lane's group, to SHIFT: of all outcomes, or of all outputs."""
    for lane in range(LANES):
        terms[SHIFT + lane] = 0.0
    for n in range(len(values) // LANES):
        row = row_at(n)
        if counted:
            for lane in range(LANES):
                terms[SHIFT + lane] = fma(
                    counts[row + lane], values[row + lane], terms[SHIFT + lane]
                )
        else:
            for lane in range(LANES):
                terms[SHIFT + lane] += values[row + lane]


@body(apart=True)
def find_centre(arms, e, features, weights, total, out):
    """f̄ of each lane, (e,)."""
    for j in range(e):
        to = row_at(j)
        for lane in range(LANES):
            out[to + lane] = 0.0
        for k in range(arms):
            row, by = row_at(k * e + j), row_at(k)
            for lane in range(LANES):
                out[to + lane] = fma(weights[by + lane], features[row + lane], out[to + lane])
        for lane in range(LANES):
            out[to + lane] /= total[lane]


@body(apart=True)
def _norm(e, features, centre, terms):
    """‖s‖² of an arm with features (e,), but for the factor ‖δ‖² of shared ones."""
    for lane in range(LANES):
        terms[NORM + lane] = 0.0
    for j in range(e):
        row = row_at(j)
        for lane in range(LANES):
            off = features[row + lane] - centre[row + lane]
            terms[NORM + lane] = fma(off, off, terms[NORM + lane])


@body(apart=True)
def find_value(kind, arms, e, features, means, weights, total, centre, terms):
    """V(x), or the minimum-variance baseline, of each lane, to BASE."""
    for lane in range(LANES):
        terms[BASE + lane] = 0.0
    for k in range(arms):
        row = row_at(k)
        for lane in range(LANES):
            terms[BASE + lane] = fma(weights[row + lane], means[row + lane], terms[BASE + lane])
    for lane in range(LANES):
        terms[BASE + lane] /= total[lane]
    if kind != MINIMUM_VARIANCE:
        return
    for lane in range(LANES):
        terms[MASS + lane] = terms[SHIFT + lane] = 0.0
    for k in range(arms):
        row = row_at(k)
        _norm(e, features[row * e :], centre, terms)
        for lane in range(LANES):
            part = weights[row + lane] * terms[NORM + lane]
            off = means[row + lane] - terms[BASE + lane]
            terms[MASS + lane] += part
            terms[SHIFT + lane] = fma(part, off, terms[SHIFT + lane])
    for lane in range(LANES):
        if terms[MASS + lane] > 0.0:
            terms[BASE + lane] += terms[SHIFT + lane] / terms[MASS + lane]


@body(apart=True)
def find_linear(kind, constant, by_count, group, terms):
    """Advantages as BASE + SLOPE z: all kinds but the norm-weighted.

    V or b* comes in BASE, Σ z in SHIFT.
    """
    if kind in (VALUE, MINIMUM_VARIANCE, PROMPT_ONLY):
        for lane in range(LANES):
            terms[BASE + lane] = -constant if kind == PROMPT_ONLY else -terms[BASE + lane]
            terms[SLOPE + lane] = 1.0
    elif kind == BY_COUNT:
        for lane in range(LANES):
            wins = int(terms[SHIFT + lane])
            terms[BASE + lane] = by_count[0, wins]
            terms[SLOPE + lane] = by_count[1, wins] - by_count[0, wins]
    else:
        share = 1.0 / (group - 1) if kind == GRPO else 1.0 / group
        slope = 1.0 + share if kind == GRPO else 1.0
        for lane in range(LANES):
            terms[BASE + lane] = -terms[SHIFT + lane] * share
            terms[SLOPE + lane] = slope


@body(apart=True)
def push_counted(arms, counts, values, terms, out):
    """Σₘ cₖₘ Aₖₘ, (K,), with A = BASE + SLOPE z."""
    for k in range(arms):
        row = row_at(k)
        for lane in range(LANES):
            out[row + lane] = 0.0
        for m in range(len(values) // (arms * LANES)):
            at = row_at(m * arms + k)
            for lane in range(LANES):
                advantage = fma(terms[SLOPE + lane], values[at + lane], terms[BASE + lane])
                out[row + lane] = fma(counts[at + lane], advantage, out[row + lane])


@body(apart=True)
def push_drawn(group, at, rewards, terms, out):
    """Σᵢ Aᵢ of the outputs of each arm, (K,), with A = BASE + SLOPE z."""
    out[:] = 0.0
    for i in range(group):
        row = row_at(i)
        for lane in range(LANES):
            advantage = fma(terms[SLOPE + lane], rewards[row + lane], terms[BASE + lane])
            out[at[row + lane] * np.uint64(LANES) + np.uint64(lane)] += advantage


@body(apart=True)
def push_weighted(arms, e, features, centre, counts, values, before, terms, out):
    """The same with the norm-weighted mean of the other outputs' rewards subtracted.

    The others' sums are those of outcomes before one, those after it, and all but one of its own:
    no difference loses digits. ``before`` is scratch, (2 M K,).
    """
    outcomes = len(values) // LANES
    for lane in range(LANES):
        terms[MASS + lane] = terms[SHIFT + lane] = 0.0
    for k in range(arms):
        row = row_at(k)
        _norm(e, features[row * e :], centre, terms)
        for m in range(outcomes // arms):
            at, shifts = row_at(m * arms + k), row_at(outcomes + m * arms + k)
            for lane in range(LANES):
                before[at + lane] = terms[MASS + lane]
                before[shifts + lane] = terms[SHIFT + lane]
            for lane in range(LANES):
                part = counts[at + lane] * terms[NORM + lane]
                terms[MASS + lane] += part
                terms[SHIFT + lane] = fma(part, values[at + lane], terms[SHIFT + lane])
    for lane in range(LANES):
        terms[MASS + lane] = terms[SHIFT + lane] = 0.0
    for k in range(arms - 1, -1, -1):
        row = row_at(k)
        _norm(e, features[row * e :], centre, terms)
        for lane in range(LANES):
            out[row + lane] = 0.0
        for m in range(outcomes // arms - 1, -1, -1):
            at, shifts = row_at(m * arms + k), row_at(outcomes + m * arms + k)
            for lane in range(LANES):
                count, z = counts[at + lane], values[at + lane]
                more = (count - 1.0) * terms[NORM + lane] if count > 0.0 else 0.0
                others = terms[MASS + lane] + before[at + lane] + more
                reward = fma(more, z, terms[SHIFT + lane] + before[shifts + lane])
                advantage = z - reward / others if others > 0.0 else z
                out[row + lane] = fma(count, advantage, out[row + lane])
            for lane in range(LANES):
                part = counts[at + lane] * terms[NORM + lane]
                terms[MASS + lane] += part
                terms[SHIFT + lane] = fma(part, values[at + lane], terms[SHIFT + lane])


@body(apart=True)
def subtract_centre(arms, weights, total, push, whole):
    """pₖ - πₖ Σⱼ pⱼ in place of pₖ, (K,)."""
    for lane in range(LANES):
        whole[lane] = 0.0
    for k in range(arms):
        row = row_at(k)
        for lane in range(LANES):
            whole[lane] += push[row + lane]
    for lane in range(LANES):
        whole[lane] /= total[lane]
    for k in range(arms):
        row = row_at(k)
        for lane in range(LANES):
            push[row + lane] = fma(-whole[lane], weights[row + lane], push[row + lane])
