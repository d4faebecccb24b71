"""Sums of two prompts, and sums by coordinates if scores are dense."""

from __future__ import annotations

import numpy as np

from ...device import device_function, short, total
from ..scalar import DISTANCE, SHARED, SQUARED_ERROR
from .groups import along, count_of
from .shapes import (
    AT_P,
    AT_Q,
    AT_W,
    FEATURES_SQ,
    KEPT,
    PROBS_SQ,
    REWARD,
    WHOLE,
    WHOLE_W,
    after,
)


@device_function
def masses(n, c, low, high, rewards, rows, at, ints, reals):
    """The weights of P, Q and W that a group has put on some outcomes, times G, G and 1."""
    of_p, of_q, of_w = 0.0, 0.0, 0.0
    if n.counted:
        k = np.int32(low)
        while k < high:
            often = float(count_of(n, at.integers + n.counts + c * n.words, k, ints))
            of_p += often * rows[short(rewards + k)]
            of_q += often
            k = after(k, n.one)
    if n.vectors == 3 or not n.counted:
        i = np.int32(0)
        while i < n.group:
            k = ints[short(at.integers + n.chosen + c * n.group + i)]
            if low <= k < high:
                if not n.counted:
                    of_p += rows[short(rewards + k)]
                    of_q += 1.0
                if n.vectors == 3:
                    of_w += reals[short(at.doubles + n.weights + c * n.group + i)]
            i = after(i, n.one)
    return of_p, of_q, of_w


@device_function
def add_products(n, p, a, own, b, c, x, y, rows, at_rows, t, at, ints, reals):
    """Add to each quantity the contribution of two prompts' vectors, or of one prompt's own.

    ⟨w - |w| π, u - |u| π'⟩ = Σ w (u - |u| π') - |w| (Σ u π - |u| Σ π π'), with |P| = Σz/G and |Q| = 1.
    """
    rewards = np.int32(at_rows + REWARD * n.rows + x * n.outcomes)
    theirs = np.int32(at_rows + REWARD * n.rows + y * n.outcomes)
    one = np.int32(at.doubles + b * KEPT)
    two = np.int32(at.doubles + c * KEPT)
    pp, pq, qp, qq = 0.0, 0.0, 0.0, 0.0
    pw, qw, wp, wq, ww = 0.0, 0.0, 0.0, 0.0, 0.0
    i = np.int32(at.peer)
    while i < own:
        o = ints[short(at.integers + n.chosen + b * n.group + i)]
        z, low, high = rows[short(rewards + o)], np.int32(o), np.int32(o + 1)
        arm = t.words[short(p.arm + x * n.outcomes + o)]
        if not n.distinct or x != y:
            of_arm = p.span + 2 * (y * n.arms + arm)
            low, high = np.int32(t.words[short(of_arm)]), np.int32(t.words[short(of_arm + 1)])
        of_p, of_q, of_w = masses(n, c, low, high, theirs, rows, at, ints, reals)
        if n.moving:
            prob = t.reals[short(p.probs + y * n.arms + arm)]
            of_p -= reals[short(two + WHOLE)] * prob
            of_q -= n.group * prob
            of_w -= reals[short(two + WHOLE_W)] * prob
        pp += z * of_p
        pq += z * of_q
        qp += of_p
        qq += of_q
        if n.vectors == 3:
            w = reals[short(at.doubles + n.weights + b * n.group + i)]
            pw += z * of_w
            qw += of_w
            wp += w * of_p
            wq += w * of_q
            ww += w * of_w
        i = after(i, n.peers)
    pp, pq = total(pp, n.peers) * n.share * n.share, total(pq, n.peers) * n.share * n.share
    qp, qq = total(qp, n.peers) * n.share * n.share, total(qq, n.peers) * n.share * n.share
    if n.vectors == 3:
        pw, qw = total(pw, n.peers) * n.share, total(qw, n.peers) * n.share
        wp, wq = total(wp, n.peers) * n.share, total(wq, n.peers) * n.share
        ww = total(ww, n.peers)
    scale = t.reals[short(p.prompt + 3 * x + FEATURES_SQ)]
    crossed = n.form == SHARED and n.batch > 1
    if crossed:
        scale = 0.0
        m = np.int32(at.peer)
        while m < n.width:
            here = t.reals[short(p.features + x * n.width + m)]
            scale += here * t.reals[short(p.features + y * n.width + m)]
            m = after(m, n.peers)
        scale = total(scale, n.peers)
    if n.moving:
        of_p, of_q, of_w = (
            reals[short(two + AT_P)],
            reals[short(two + AT_Q)],
            reals[short(two + AT_W)],
        )
        both = t.reals[short(p.prompt + 3 * x + PROBS_SQ)]
        if crossed:
            of_p, of_q, of_w, both = 0.0, 0.0, 0.0, 0.0
            i = np.int32(at.peer)
            while i < own:
                o = ints[short(at.integers + n.chosen + c * n.group + i)]
                arm = t.words[short(p.arm + y * n.outcomes + o)]
                prob = t.reals[short(p.probs + x * n.arms + arm)]
                of_p += rows[short(theirs + o)] * prob
                of_q += prob
                if n.vectors == 3:
                    of_w += reals[short(at.doubles + n.weights + c * n.group + i)] * prob
                i = after(i, n.peers)
            k = np.int32(at.peer)
            while k < n.arms:
                here = t.reals[short(p.probs + x * n.arms + k)]
                both += here * t.reals[short(p.probs + y * n.arms + k)]
                k = after(k, n.peers)
            of_p, of_q = total(of_p, n.peers) * n.share, total(of_q, n.peers) * n.share
            of_w, both = total(of_w, n.peers), total(both, n.peers)
        whole, whole_w = reals[short(one + WHOLE)] * n.share, reals[short(one + WHOLE_W)]
        rest_p = of_p - reals[short(two + WHOLE)] * n.share * both
        rest_q, rest_w = of_q - both, of_w - reals[short(two + WHOLE_W)] * both
        pp -= whole * rest_p
        pq -= whole * rest_q
        qp -= rest_p
        qq -= rest_q
        pw -= whole * rest_w
        qw -= rest_w
        wp -= whole_w * rest_p
        wq -= whole_w * rest_q
        ww -= whole_w * rest_w
    scale *= (1.0 if b == c else 2.0) / (n.batch * n.batch)
    values = np.int32(at.doubles + n.values + at.part * n.quantities)
    q = np.int32(at.peer)
    while q < n.quantities:
        if own > 0:
            kind = a[short(n.kind + q)]
            if kind in (SQUARED_ERROR, DISTANCE):
                here = np.int32(
                    at.doubles
                    + n.coefficients
                    + (b * n.estimators + a[short(n.first + q)]) * n.vectors
                )
                there = np.int32(
                    at.doubles
                    + n.coefficients
                    + (c * n.estimators + a[short(n.first + q)]) * n.vectors
                )
                p1, q1, w1 = reals[short(here)], reals[short(here + 1)], 0.0
                p2, q2, w2 = reals[short(there)], reals[short(there + 1)], 0.0
                if n.vectors == 3:
                    w1, w2 = reals[short(here + 2)], reals[short(there + 2)]
                if kind == DISTANCE:
                    here = (
                        at.doubles
                        + n.coefficients
                        + (b * n.estimators + a[short(n.second + q)]) * n.vectors
                    )
                    there = (
                        at.doubles
                        + n.coefficients
                        + (c * n.estimators + a[short(n.second + q)]) * n.vectors
                    )
                    p1, q1 = p1 - reals[short(here)], q1 - reals[short(here + 1)]
                    p2, q2 = p2 - reals[short(there)], q2 - reals[short(there + 1)]
                    if n.vectors == 3:
                        w1, w2 = w1 - reals[short(here + 2)], w2 - reals[short(there + 2)]
                s = p1 * (p2 * pp + q2 * pq) + q1 * (p2 * qp + q2 * qq)
                if n.vectors == 3:
                    s += w2 * (p1 * pw + q1 * qw) + w1 * (p2 * wp + q2 * wq + w2 * ww)
                reals[short(values + q)] += scale * s
        q = after(q, n.peers)


@device_function
def add_coordinates(n, p, a, rows, at_rows, t, at, ints, reals):
    """The same contribution from the coordinates of dense scores; each lane takes some of them."""
    values = np.int32(at.doubles + n.values + at.lane * n.quantities)
    sums = np.int32(at.doubles + n.values + (n.lanes + at.lane) * n.quantities)
    m = np.int32(at.lane)
    while m < n.width:
        q = np.int32(0)
        while q < n.quantities:
            reals[short(sums + q)] = 0.0
            q = after(q, n.one)
        b = np.int32(0)
        while b < n.batch:
            x = ints[short(at.integers + b)]
            of_p, of_q, of_w = 0.0, 0.0, 0.0
            i = np.int32(0)
            while i < n.group:
                o = x * n.outcomes + ints[short(at.integers + n.chosen + b * n.group + i)]
                s = t.reals[short(p.dense + (x * n.arms + t.words[short(p.arm + o)]) * n.width + m)]
                of_p += rows[short(at_rows + REWARD * n.rows + o)] * s
                of_q += s
                if n.vectors == 3:
                    of_w += reals[short(at.doubles + n.weights + b * n.group + i)] * s
                i = after(i, n.one)
            of_p, of_q = of_p * n.share, of_q * n.share
            q = np.int32(0)
            while q < n.quantities:
                kind = a[short(n.kind + q)]
                if kind in (SQUARED_ERROR, DISTANCE):
                    s = along(n, b, a[short(n.first + q)], of_p, of_q, of_w, at, reals)
                    if kind == DISTANCE:
                        s -= along(n, b, a[short(n.second + q)], of_p, of_q, of_w, at, reals)
                    reals[short(sums + q)] += s
                q = after(q, n.one)
            b = after(b, n.one)
        q = np.int32(0)
        while q < n.quantities:
            s = reals[short(sums + q)] / n.batch
            reals[short(values + q)] += s * s
            q = after(q, n.one)
        m = after(m, n.lanes)
