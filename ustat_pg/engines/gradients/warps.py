"""The warps of the cuda engine: a replication to a few lanes of a warp, its sums added up on the device.

A team of lanes takes a replication, a part of it (the peers) takes a prompt: each lane draws four outputs at a
time, counts them in shared memory and adds up its share; the peers' shares are added by shuffles in
a fixed order. The quantities follow from inner products of the vectors P, Q and W of
:mod:`ustat_pg.engines.gradients.scalar`, prompt by prompt. Team t of thread block b takes the replications
(round · blocks + b) · teams + t, and a block adds up its teams in their order: no result depends on
how many blocks a device runs at once.

All that a shape decides is a number of :class:`Shape`. A kernel reads these numbers when it runs, or
has them built in (:func:`kernel_of`), which is faster and compiled for each shape.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numba import cuda, float64, uint32

from ...rng import CONTEXT_SLOT
from ..device import device_function, meet, total
from ..draws import words_of_32
from ..kinds import BY_COUNT, GROUP_MEAN, GRPO, NORM_WEIGHTED, PROMPT_ONLY, STANDARDISED
from .scalar import (
    DENSE,
    DISTANCE,
    FIXED,
    IID,
    MIXED,
    PROJECTION,
    SHARED,
    SQUARED_ERROR,
    SQUARED_PROJECTION,
)

REWARD, PROB, LINEAR, NORM = 0, 1, 2, 3
"""The columns of an outcome's row: its reward about the prompt's centre, π, ⟨s, g⟩ and ‖s‖²."""

CENTRE, PROBS_SQ, FEATURES_SQ = 0, 1, 2
"""The columns of a prompt's row."""

WHOLE, SCALE, NORMS, WEIGHTED = 0, 1, 2, 3
"""The sums of a group: Σz; one over the deviation, 0 where rewards are equal; Σ‖s‖²; Σ‖s‖² z."""

AT_P, AT_Q, AT_W, WHOLE_W = 4, 5, 6, 7
"""Σ w π of each vector, and Σ w of W."""

GROUP_SUMS = 8


class Shape(NamedTuple):
    """What kernels are made for.

    Arguments:
        group, batch, contexts, outcomes, width: G, B, X, M, and the length of features or scores.
        form, design: as :mod:`~ustat_pg.engines.gradients.scalar` numbers them.
        estimators, quantities, pairs, directions: how many.
        moving, weighted, standardised: whether π enters a norm, whether an estimator is
            norm-weighted, or divides by the deviation.
        peers, lanes, teams: the lanes of a prompt and of a replication, replications of a thread block.
        counted: whether outcomes are counted, rather than compared with each other.
        per_word, words: how many counts a word holds, and the words of a prompt's counts.
        guide, shift: the places of a guide table, and the bits that it leaves out.
        staged_draws, staged_rows: whether tables are copied to shared memory.
        parts: the parts in which a team adds up quantities.
        doubles, integers: where the teams' own shared memory begins, in its unit.
        team_doubles, team_integers: how much a team has.
    """

    group: int
    batch: int
    contexts: int
    outcomes: int
    width: int
    form: int
    design: int
    estimators: int
    quantities: int
    pairs: int
    directions: int
    moving: int
    weighted: int
    standardised: int
    peers: int
    lanes: int
    teams: int
    counted: int
    per_word: int
    words: int
    guide: int
    shift: int
    staged_draws: int
    staged_rows: int
    parts: int
    doubles: int
    integers: int
    team_doubles: int
    team_integers: int


class There(NamedTuple):
    """Tables on the device, flat.

    Arguments:
        context_ends, context_guide: of the prompts' draw; last, the last of them that has a word.
        ends (X M), guide (X, guide), last (X): of the outcomes' draw.
        span: the first outcome of an outcome's arm, and the one behind its last, (X M 2).
        arm: (X M).
        row: (X M 4). prompt: (X 3). probs: π (X K), features: (X m), dense: s (X K d).
        along: ⟨s, u⟩ of outcomes (J X M).
        kinds: (E). baselines: (E X). by_count: (E 2 (G+1)).
        asked: kind, first, second of each quantity, (Q 3). constants: what it ends with, (Q).
        pairs: the two quantities of each product, behind those of one, (Q + Q(Q+1)/2, 2).
    """

    context_ends: Any
    context_guide: Any
    context_last: Any
    ends: Any
    guide: Any
    last: Any
    span: Any
    arm: Any
    row: Any
    prompt: Any
    probs: Any
    features: Any
    dense: Any
    along: Any
    kinds: Any
    baselines: Any
    by_count: Any
    asked: Any
    constants: Any
    pairs: Any


@device_function
def search(word, ends, guide, at, first, shift, last):
    """The outcome that a word chooses, of those that begin at ``first``; the last has no end."""
    j = guide[at + (word >> shift)]
    while j < last and word >= ends[first + j]:
        j += 1
    return j


@device_function
def draw_prompts(n, rep, high, k0, k1, t, lane, xs, U):
    """The prompts of a replication, in shared memory from ``xs`` on."""
    if n.design == FIXED:
        for b in range(lane, n.batch, n.lanes):
            U[xs + b] = b
    elif n.design == IID:
        bits = 32 - n.context_shift
        for b in range(lane, n.batch, n.lanes):
            four = words_of_32(b // 4, CONTEXT_SLOT, rep, high, k0, k1)
            word = four[b % 4]
            U[xs + b] = search(word, t.context_ends, t.context_guide, 0, 0, bits, t.context_last[0])
