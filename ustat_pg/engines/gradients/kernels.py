"""The kernels of the cuda engine: one replication, or one sum, to a thread.

The scratch of all threads stands in arrays whose last axis is the thread, so that threads side by
side read numbers side by side. Kernels are compiled anew in each process: numba keeps none.
"""

from __future__ import annotations

from numba import cuda

from .scalar import WITHOUT_REPLACEMENT, draw_group, draw_prompts, minibatches, one_prompt, room_of

__all__ = ["draw_kernel", "minibatch_kernel", "one_prompt_kernel", "reduce_kernel"]


@cuda.jit
def minibatch_kernel(first, start, count, key, group, design, tables, asked, room, values):
    """Fill columns ``start`` to ``start + count`` of values (Q, R): one replication a thread."""
    i = cuda.grid(1)
    if i < count:
        at = start + i
        own = room_of(room, i, design)
        minibatches(first + at, 1, key, group, design, tables, asked, own, values[:, at : at + 1])


@cuda.jit
def one_prompt_kernel(first, start, count, key, group, design, tables, asked, tabled, room, values):
    """Fill columns ``start`` to ``start + count`` of values (Q, R): one replication a thread."""
    i = cuda.grid(1)
    if i < count:
        at = start + i
        own = room_of(room, i, design)
        one_prompt(first + at, key, group, design, tables, asked, tabled, own, values[:, at])


@cuda.jit
def draw_kernel(first, count, key, design, tables, order, undo, contexts, chosen):
    """Fill contexts (B, count) and outcome numbers (B, G, count)."""
    i = cuda.grid(1)
    if i < count:
        rep = first + i
        if design == WITHOUT_REPLACEMENT:
            for x in range(len(order)):
                order[x, i] = x
        draw_prompts(design, rep, key, tables.contexts, order[:, i], undo[:, i], contexts[:, i])
        for b in range(len(contexts)):
            draw_group(rep, b, key, tables.outcomes, contexts[b, i], chosen[b, :, i])


@cuda.jit
def reduce_kernel(values, count, tiles, base, sums, products):
    """Sums (tiles, Q) and products (tiles, Q, Q) about the first replication's
    values ``base`` (Q,), of values (Q, R).

    Tile t holds replications t, t + tiles, …, added in that order whatever the launch.
    """
    i = cuda.grid(1)
    used, total = sums.shape
    if i < used * total:
        # Threads side by side read replications side by side.
        q, t = i // used, i % used
        for p in range(q + 1):
            products[t, q, p] = 0.0
        added = 0.0
        for r in range(t, count, tiles):
            off = values[q, r] - values[q, 0]
            added += off
            for p in range(q + 1):
                products[t, q, p] += off * (values[p, r] - values[p, 0])
        sums[t, q] = added
        if t == 0:
            base[q] = values[q, 0]
