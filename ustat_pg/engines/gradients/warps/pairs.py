"""Sums of two prompts, and sums by coordinates if scores are dense."""

from __future__ import annotations

import numpy as np

from ...device import device_function, index, total
from ..scalar import DISTANCE, SQUARED_ERROR
from .groups import along, count_of, norm_weighted
from .shapes import (
    AT_P,
    AT_Q,
    AT_W,
    FEATURES_SQ,
    PROBS_SQ,
    REWARD,
    WHOLE,
    WHOLE_W,
    chosen_at,
    coefficients_at,
    kept_at,
    turns,
    values_at,
    within,
)


@device_function
def masses(n, c, y, low, high, rows, t, at, ints, reals):
    """The weights of P, Q and W that a prompt's group has put on some outcomes, times G, G and 1."""
    of_p, of_q, of_w = 0.0, 0.0, 0.0
    if n.counted:
        for k in range(low, high):
            often = float(count_of(n, at, c, k, ints))
            if often > 0.0:
                of_p += often * rows[index(4 * (y * n.outcomes + k) + REWARD)]
                of_q += often
                if n.vectors == 3:
                    of_w += often * norm_weighted(n, at, c, y, k, rows, t, ints, reals)
    else:
        for i in range(n.group):
            k = np.int64(ints[index(chosen_at(n, at, c) + i)])
            if low <= k < high:
                of_p += rows[index(4 * (y * n.outcomes + k) + REWARD)]
                of_q += 1.0
                if n.vectors == 3:
                    of_w += norm_weighted(n, at, c, y, k, rows, t, ints, reals)
    return of_p, of_q, of_w


@device_function
def pi_parts(n, b, x, y, rows, t, at, ints, reals):
    """Σ w π_y of a prompt's P, Q and W, along the probabilities of another."""
    of_p, of_q, of_w = 0.0, 0.0, 0.0
    for turn in range(turns(n.group, n.peers)):
        i = at.peer + turn * n.peers
        if within(i, n.group, n.peers):
            o = np.int64(ints[index(chosen_at(n, at, b) + i)])
            prob = t.probs[index(y * n.arms + t.arm[index(x * n.outcomes + o)])]
            of_p += rows[index(4 * (x * n.outcomes + o) + REWARD)] * prob
            of_q += prob
            if n.vectors == 3:
                of_w += norm_weighted(n, at, b, x, o, rows, t, ints, reals) * prob
    share = 1.0 / n.group
    of_p, of_q = total(of_p, n.peers) * share, total(of_q, n.peers) * share
    return of_p, of_q, total(of_w, n.peers) if n.vectors == 3 else of_w


@device_function
def add_products(n, a, b, c, x, y, rows, t, at, ints, reals):
    """Add to each quantity the contribution of two prompts' vectors, or of one prompt's own."""
    share = 1.0 / n.group
    pp, pq, qp, qq = 0.0, 0.0, 0.0, 0.0
    pw, qw, wp, wq, ww = 0.0, 0.0, 0.0, 0.0, 0.0
    for turn in range(turns(n.group, n.peers)):
        i = at.peer + turn * n.peers
        if within(i, n.group, n.peers):
            o = np.int64(ints[index(chosen_at(n, at, b) + i)])
            z = rows[index(4 * (x * n.outcomes + o) + REWARD)]
            low, high = o, o + 1
            if not n.distinct or x != y:
                of_arm = 2 * (y * n.arms + t.arm[index(x * n.outcomes + o)])
                low, high = t.span[index(of_arm)], t.span[index(of_arm + 1)]
            of_p, of_q, of_w = masses(n, c, y, low, high, rows, t, at, ints, reals)
            pp += z * of_p
            pq += z * of_q
            qp += of_p
            qq += of_q
            if n.vectors == 3:
                w = norm_weighted(n, at, b, x, o, rows, t, ints, reals)
                pw += z * of_w
                qw += of_w
                wp += w * of_p
                wq += w * of_q
                ww += w * of_w
    pp, pq = total(pp, n.peers) * share * share, total(pq, n.peers) * share * share
    # A prompt's products with itself are symmetric.
    qp = total(qp, n.peers) * share * share if b != c else pq
    qq = total(qq, n.peers) * share * share
    if n.vectors == 3:
        pw, qw = total(pw, n.peers) * share, total(qw, n.peers) * share
        wp, wq = total(wp, n.peers) * share, total(wq, n.peers) * share
        ww = total(ww, n.peers)
    scale = t.prompt[index(3 * x + FEATURES_SQ)]
    if x != y:
        scale = 0.0
        for turn in range(turns(n.width, n.peers)):
            m = at.peer + turn * n.peers
            if within(m, n.width, n.peers):
                scale += t.features[index(x * n.width + m)] * t.features[index(y * n.width + m)]
        scale = total(scale, n.peers)
    if n.moving:
        one, two = kept_at(n, at, b), kept_at(n, at, c)
        # ⟨w - |w| π, u - |u| π'⟩, |P| = Σz/G and |Q| = 1.
        p, q, w = reals[index(one + WHOLE)] * share, 1.0, reals[index(one + WHOLE_W)]
        p2, q2, w2 = reals[index(two + WHOLE)] * share, 1.0, reals[index(two + WHOLE_W)]
        both = t.prompt[index(3 * x + PROBS_SQ)]
        pi_p, pi_q, pi_w = (
            reals[index(one + AT_P)],
            reals[index(one + AT_Q)],
            reals[index(one + AT_W)],
        )
        pi_p2, pi_q2, pi_w2 = (
            reals[index(two + AT_P)],
            reals[index(two + AT_Q)],
            reals[index(two + AT_W)],
        )
        if x != y:
            pi_p, pi_q, pi_w = pi_parts(n, b, x, y, rows, t, at, ints, reals)
            pi_p2, pi_q2, pi_w2 = pi_parts(n, c, y, x, rows, t, at, ints, reals)
            both = 0.0
            for turn in range(turns(n.arms, n.peers)):
                k = at.peer + turn * n.peers
                if within(k, n.arms, n.peers):
                    both += t.probs[index(x * n.arms + k)] * t.probs[index(y * n.arms + k)]
            both = total(both, n.peers)
        pp += p * p2 * both - p * pi_p2 - p2 * pi_p
        pq += p * q2 * both - p * pi_q2 - q2 * pi_p
        qp += q * p2 * both - q * pi_p2 - p2 * pi_q
        qq += q * q2 * both - q * pi_q2 - q2 * pi_q
        if n.vectors == 3:
            pw += p * w2 * both - p * pi_w2 - w2 * pi_p
            qw += q * w2 * both - q * pi_w2 - w2 * pi_q
            wp += w * p2 * both - w * pi_p2 - p2 * pi_w
            wq += w * q2 * both - w * pi_q2 - q2 * pi_w
            ww += w * w2 * both - w * pi_w2 - w2 * pi_w
    scale *= (1.0 if b == c else 2.0) / (n.batch * n.batch)
    values = values_at(n, at, at.part)
    for turn in range(turns(n.quantities, n.peers)):
        q = at.peer + turn * n.peers
        if within(q, n.quantities, n.peers):
            kind = a.quantity[q]
            if kind in (SQUARED_ERROR, DISTANCE):
                here = coefficients_at(n, at, b, a.first[q])
                there = coefficients_at(n, at, c, a.first[q])
                p, q1, w = reals[index(here)], reals[index(here + 1)], 0.0
                p2, q2, w2 = reals[index(there)], reals[index(there + 1)], 0.0
                if n.vectors == 3:
                    w, w2 = reals[index(here + 2)], reals[index(there + 2)]
                if kind == DISTANCE:
                    here = coefficients_at(n, at, b, a.second[q])
                    there = coefficients_at(n, at, c, a.second[q])
                    p, q1 = p - reals[index(here)], q1 - reals[index(here + 1)]
                    p2, q2 = p2 - reals[index(there)], q2 - reals[index(there + 1)]
                    if n.vectors == 3:
                        w, w2 = w - reals[index(here + 2)], w2 - reals[index(there + 2)]
                s = p * (p2 * pp + q2 * pq) + q1 * (p2 * qp + q2 * qq)
                if n.vectors == 3:
                    s += w2 * (p * pw + q1 * qw) + w * (p2 * wp + q2 * wq + w2 * ww)
                reals[index(values + q)] += scale * s


@device_function
def add_coordinates(n, a, rows, t, at, ints, reals):
    """The same contribution from the coordinates of dense scores; each lane takes some of them."""
    share, values = 1.0 / n.group, values_at(n, at, at.lane)
    sums = values_at(n, at, n.lanes + at.lane)
    for turn in range(turns(n.width, n.lanes)):
        m = at.lane + turn * n.lanes
        if within(m, n.width, n.lanes):
            for q in range(n.quantities):
                reals[index(sums + q)] = 0.0
            for b in range(n.batch):
                x = np.int64(ints[index(at.integers + b)])
                of_p, of_q, of_w = 0.0, 0.0, 0.0
                for i in range(n.group):
                    o = np.int64(ints[index(chosen_at(n, at, b) + i)])
                    s = t.dense[
                        index((x * n.arms + t.arm[index(x * n.outcomes + o)]) * n.width + m)
                    ]
                    of_p += rows[index(4 * (x * n.outcomes + o) + REWARD)] * s
                    of_q += s
                    if n.vectors == 3:
                        of_w += norm_weighted(n, at, b, x, o, rows, t, ints, reals) * s
                of_p, of_q = of_p * share, of_q * share
                for q in range(n.quantities):
                    kind = a.quantity[q]
                    if kind in (SQUARED_ERROR, DISTANCE):
                        s = along(n, b, a.first[q], of_p, of_q, of_w, at, reals)
                        if kind == DISTANCE:
                            s -= along(n, b, a.second[q], of_p, of_q, of_w, at, reals)
                        reals[index(sums + q)] += s
            for q in range(n.quantities):
                s = reals[index(sums + q)] / n.batch
                reals[index(values + q)] += s * s
