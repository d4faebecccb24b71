"""A step of all lanes, and the loop over replications, steps and prompts."""

from __future__ import annotations

from math import sqrt

import numpy as np

from ustat_pg.engines.kinds import GROUP_MEAN, GRPO, VALUE
from ustat_pg.execution.compiled import body, fma
from ustat_pg.sampling.rng import CONTEXT_SLOT, MOST_PROMPTS

from . import draw, push, softmax
from .plan import BENT, EPOCHS, FREE, IID, LANES, SHARED, SPACED, empty_rows, row_at


@body(apart=True)
def _add(arms, e, features, push, out):
    """Add Σₖ pₖ fₖ to (e,)."""
    for j in range(e):
        to = row_at(j)
        for k in range(arms):
            row, by = row_at(k * e + j), row_at(k)
            for lane in range(LANES):
                out[to + lane] = fma(push[by + lane], features[row + lane], out[to + lane])


@body(apart=True)
def _spread(d, ways, along, out):
    """Add a multiple of δ to (d,)."""
    for j in range(d):
        row = row_at(j)
        for lane in range(LANES):
            out[row + lane] = fma(ways[row + lane], along[lane], out[row + lane])


@body(apart=True)
def _project(plan, theta, along):
    """Move θ of each lane, (d,), to the nearest point of Θ."""
    d = len(theta) // LANES
    r = plan.basis.shape[1]
    for lane in range(LANES):
        square = 0.0
        for v in range(r):
            part = 0.0
            for j in range(d):
                part += (theta[j * LANES + lane] - plan.centre[j]) * plan.basis[j, v]
            along[v] = part
            square += part * part
        norm = sqrt(square)
        if norm > plan.radius:
            excess = 1.0 - plan.radius / norm
            for j in range(d):
                back = 0.0
                for v in range(r):
                    back += along[v] * plan.basis[j, v]
                theta[j * LANES + lane] -= excess * back


@body
def run(first, key, group, batch, plan, rows, begin, out):
    """Run replications ``first`` onwards from θ₀ (R, d) and fill θ at the snapshots, (R, S, d)."""
    # Unpacked once, because passing a tuple of arrays costs as much as the arithmetic of many lanes.
    kind, constant, by_count = plan.kind, plan.constant, plan.by_count
    chances, rates, design, free = plan.contexts, plan.rates, plan.design, plan.theta_set == FREE
    table, varies, form, offset, e = rows.table, rows.varies, rows.form, rows.offset, rows.width
    arms, d, _ = plan.features.shape
    outcomes = len(plan.rewards)
    contexts = len(chances)
    replications, kept = len(begin), len(plan.snapshots)
    prompts, uniforms = np.empty(4 * LANES, np.int64), empty_rows(4)
    order = np.zeros((contexts if design == EPOCHS else 1, LANES), np.uint64)
    xs = np.zeros(LANES, np.uint64)
    gradient_row = empty_rows(len(table))
    for row in range(len(table)):
        gradient_row[row * LANES : (row + 1) * LANES] = table[row, 0]
    cells = outcomes * arms
    rows_at = LANES * np.cumsum(np.array([0, arms * e, arms, cells - arms, cells, arms]))
    features, shares, law = (
        gradient_row[: rows_at[1]],
        gradient_row[rows_at[1] : rows_at[2]],
        gradient_row[rows_at[2] : rows_at[3]],
    )
    values, means = gradient_row[rows_at[3] : rows_at[4]], gradient_row[rows_at[4] : rows_at[5]]
    # This is δ for shared features and ψ for bent ones.
    ways = gradient_row[rows_at[5] :]
    shared, bent, sure = form in (SHARED, SPACED), form == BENT, kind in (GRPO, GROUP_MEAN)
    # The outputs alone determine a group's part, so no sum over arms is needed.
    spaced = form == SPACED and sure and not rows.counted
    curved = empty_rows(arms * d) if bent else features
    weights, ends, pushed = empty_rows(arms), empty_rows(arms), empty_rows(arms)
    counted, plain, edges, outcome_rewards = rows.counted, rows.plain, rows.edges, plan.rewards
    counts = empty_rows(cells if counted else 0)
    ratio, raised, levels, terms = empty_rows(1), empty_rows(1), empty_rows(4), empty_rows(3)
    outputs = 0 if counted else group
    at, rewards = empty_rows(outputs), empty_rows(outputs)
    theta, total = empty_rows(d), empty_rows(d)
    along, way_total = theta, total
    if shared:
        along, way_total = empty_rows(1), empty_rows(1)
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
                        draw.block_words(rep, CONTEXT_SLOT, n // 4, key, prompts)
                    if design == IID:
                        draw.choose(prompts[n % 4 * LANES : (n % 4 + 1) * LANES], chances, xs)
                    else:
                        draw.shuffle(
                            prompts[n % 4 * LANES : (n % 4 + 1) * LANES], n % contexts, order, xs
                        )
                    draw.load(table, varies, contexts, xs, gradient_row)
                if shared:
                    softmax.find_along(d, ways, theta, along)
                if form == SPACED:
                    softmax.find_powers(arms, offset, xs, shares, along, weights, ratio, raised)
                else:
                    softmax.find_logits(arms, e, features, shares, along, weights)
                    if bent:
                        softmax.bend(arms, d, features, ways, theta, weights, curved)
                    softmax.exponentiate(arms, weights, ratio)
                softmax.find_sums(arms, weights, ends)
                slot = t * MOST_PROMPTS + b
                counts[:] = 0.0
                for i in range(0, group, 2):
                    used_words = min(2, group - i)
                    draw.fill_uniforms(rep, slot, i // 2, key, uniforms)
                    if counted:
                        draw.count(used_words, arms, outcomes, uniforms, ends, law, counts, levels)
                        continue
                    for j in range(used_words):
                        draw.draw_one(
                            i + j,
                            arms,
                            plain,
                            uniforms,
                            ends,
                            edges,
                            outcome_rewards,
                            xs,
                            at,
                            rewards,
                            levels,
                        )
                if counted:
                    draw.by_outcome(arms, outcomes, group, counts)
                if kind == VALUE:
                    push.find_value(arms, means, weights, last, terms)
                push.find_total(counted, counts, values if counted else rewards, terms)
                push.find_linear(kind, constant, by_count, group, terms)
                if spaced:
                    push.push_spaced(group, at, rewards, terms, way_total)
                else:
                    if counted:
                        push.push_counted(arms, counts, values, terms, pushed)
                    else:
                        push.push_drawn(group, at, rewards, terms, pushed)
                    if not sure:
                        push.subtract_centre(arms, weights, last, pushed, ratio)
                    if shared:
                        way_total[:] = 0.0
                    _add(arms, e, curved, pushed, way_total)
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
