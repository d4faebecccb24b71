"""The probabilities of a policy: logits, their exponentials, and the sums that are compared with draws."""

from __future__ import annotations

import numpy as np

from ustat_pg.execution.compiled import body, fma

from .plan import BITS_OF_ONE, FAR, LANES, row_at

LEAST_EXPONENT = -708.0
"""The exponent below which the exponential is 0."""
LOG2_E = 1.4426950408889634
LN2_HIGH, LN2_LOW = 6.93147180369123816490e-01, 1.90821492927058770002e-10
"""ln 2 in two parts; the first has trailing zeros, so that its small multiples are exact."""

ROUNDS = 1.5 * 2.0**52
"""A number so large that it is whole; a number added to it is rounded into its last bits."""


@body(inline=True)
def series(y):
    """eʳ and n + ROUNDS for |y| <= 708, with y = n ln 2 + r and |r| <= ½ ln 2.

    eʳ is a polynomial that interpolates it at Chebyshev points, with an error below 2e-17.
    """
    whole = fma(y, LOG2_E, ROUNDS)
    n = whole - ROUNDS
    r = fma(-n, LN2_LOW, fma(-n, LN2_HIGH, y))
    p = fma(2.510038549551032e-08, r, 2.7620088445409746e-07)
    p = fma(p, r, 2.7557268459997064e-06)
    p = fma(p, r, 2.4801521295954376e-05)
    p = fma(p, r, 1.9841269863053618e-04)
    p = fma(p, r, 1.3888888917213717e-03)
    p = fma(p, r, 8.333333333330062e-03)
    p = fma(p, r, 4.166666666662413e-02)
    p = fma(p, r, 1.6666666666666669e-01)
    p = fma(p, r, 0.5000000000000001)
    # 1 + (r + r² p): add the large term last, because its rounding is that of the result.
    return 1.0 + fma(r * r, p, r), whole


@body(inline=True)
def power(y):
    """eʸ for |y| <= 708: 2ⁿ eʳ, where 2ⁿ is built from its bits."""
    e, whole = series(y)
    scale = np.int64((np.float64(whole).view(np.int64) << np.int64(52)) + BITS_OF_ONE).view(
        np.float64
    )
    return e * scale


@body(inline=True)
def exponential(x):
    """eˣ for x <= 0 to two units in the last place; 0 below -708."""
    y = x if x > LEAST_EXPONENT else LEAST_EXPONENT
    return power(y) if x >= LEAST_EXPONENT else 0.0


@body(apart=True)
def find_along(d, ways, theta, out):
    """⟨δ, θ⟩, (1,)."""
    for lane in range(LANES):
        out[lane] = ways[lane] * theta[lane]
    for j in range(1, d):
        row = row_at(j)
        for lane in range(LANES):
            out[lane] = fma(ways[row + lane], theta[row + lane], out[lane])


@body(apart=True)
def find_logits(arms, e, features, offset, along, out):
    """Logits, (K,)."""
    for k in range(arms):
        to, row = row_at(k), row_at(k * e)
        for lane in range(LANES):
            out[to + lane] = fma(features[row + lane], along[lane], offset[to + lane])
        for j in range(1, e):
            row, by = row_at(k * e + j), row_at(j)
            for lane in range(LANES):
                out[to + lane] = fma(features[row + lane], along[by + lane], out[to + lane])


@body(apart=True)
def bend(arms, d, features, bends, theta, logits, bent):
    """Subtract ½ Σⱼ ψⱼ θⱼ² from the logits (K,), and fill the features φ - ψθ, (K d,)."""
    for k in range(arms):
        for j in range(d):
            to, row, by = row_at(k), row_at(k * d + j), row_at(j)
            for lane in range(LANES):
                off = bends[row + lane] * theta[by + lane]
                logits[to + lane] = fma(-0.5 * off, theta[by + lane], logits[to + lane])
            for lane in range(LANES):
                bent[row + lane] = features[row + lane] - bends[row + lane] * theta[by + lane]


@body(apart=True)
def exponentiate(arms, weights, greatest):
    """Replace logits by exp(logit - max), in place, (K,)."""
    for lane in range(LANES):
        greatest[lane] = weights[lane]
    for k in range(1, arms):
        row = row_at(k)
        for lane in range(LANES):
            logit, most = weights[row + lane], greatest[lane]
            greatest[lane] = logit if logit > most else most
    for k in range(arms):
        row = row_at(k)
        for lane in range(LANES):
            weights[row + lane] = exponential(weights[row + lane] - greatest[lane])


@body(apart=True)
def find_powers(arms, offset, xs, shares, along, weights, ratio, raised):
    """Weights cₖ ρᵏ of equally spaced arms, (K,), from one exponential if nothing overflows."""
    limit = FAR / max(arms - 1, 1)
    far = np.int64(0)
    for lane in range(LANES):
        near = abs(along[lane]) <= limit
        far += np.int64(0 if near else 1)
        # This computes ρ and its powers.
        ratio[lane] = power(along[lane] if near else 0.0)
        raised[lane] = 1.0
    for k in range(arms):
        row = row_at(k)
        for lane in range(LANES):
            weights[row + lane] = shares[row + lane] * raised[lane]
        for lane in range(LANES):
            raised[lane] *= ratio[lane]
    if far > 0:
        for lane in range(LANES):
            h, x = along[lane], xs[lane]
            if not abs(h) <= limit:
                most = -np.inf
                for k in range(arms):
                    most = max(most, fma(h, float(k), offset[k, x]))
                for k in range(arms):
                    row = row_at(k)
                    weights[row + lane] = exponential(fma(h, float(k), offset[k, x]) - most)


@body(apart=True)
def find_sums(arms, weights, ends):
    """The cumulative sums of weights over the arms, (K,)."""
    for lane in range(LANES):
        ends[lane] = weights[lane]
    for k in range(arms - 1):
        row = row_at(k)
        for lane in range(LANES):
            ends[row + LANES + lane] = ends[row + lane] + weights[row + LANES + lane]
