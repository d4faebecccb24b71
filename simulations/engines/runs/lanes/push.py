"""The contribution of a group to each arm: advantages, summed over the outputs of an arm."""

from __future__ import annotations

import numpy as np

from ustat_pg.engines.kinds import BY_COUNT, GRPO, PROMPT_ONLY, VALUE
from ustat_pg.execution.compiled import body, fma

from .plan import LANES, row_at

BASE, SLOPE, SHIFT = (row * LANES for row in range(3))
"""Rows of ``terms``, which give the advantages; one array, so that no loop checks for overlap."""


@body(apart=True)
def find_total(counted, counts, values, terms):
    """Write Σ z of each lane's group to SHIFT, from all outcomes or from all outputs."""
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
def find_value(arms, means, weights, total, terms):
    """Write V(x) of each lane to BASE."""
    for lane in range(LANES):
        terms[BASE + lane] = 0.0
    for k in range(arms):
        row = row_at(k)
        for lane in range(LANES):
            terms[BASE + lane] = fma(weights[row + lane], means[row + lane], terms[BASE + lane])
    for lane in range(LANES):
        terms[BASE + lane] /= total[lane]


@body(apart=True)
def find_linear(kind, constant, by_count, group, terms):
    """Set BASE and SLOPE so that advantages are BASE + SLOPE z; V is in BASE and Σ z in SHIFT before."""
    if kind in (VALUE, PROMPT_ONLY):
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
            out[np.uint64(np.int64(at[row + lane])) * np.uint64(LANES) + np.uint64(lane)] += (
                advantage
            )


@body(apart=True)
def push_spaced(group, at, rewards, terms, out):
    """Σᵢ Aᵢ kᵢ of the outputs, (1,), with A = BASE + SLOPE z: their contribution if features are k δ(x)."""
    for lane in range(LANES):
        out[lane] = 0.0
    for i in range(group):
        row = row_at(i)
        for lane in range(LANES):
            advantage = fma(terms[SLOPE + lane], rewards[row + lane], terms[BASE + lane])
            out[lane] = fma(advantage, at[row + lane], out[lane])


@body(apart=True)
def subtract_centre(arms, weights, total, push, whole):
    """Replace pₖ by pₖ - πₖ Σⱼ pⱼ, (K,)."""
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
