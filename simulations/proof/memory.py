"""Beyond 9: a baseline from the other rewards and from earlier rewards of the same prompt."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ustat_pg.algebra import distinct
from ustat_pg.predictions import closed_forms as formulas
from ustat_pg.validation import needed

from .linear import (
    ADVANTAGE,
    CROSS,
    LAW,
    SQUARE,
    T0,
    VANILLA,
    VARIANCE,
    G,
    V,
    c1,
    c2,
    c3,
    pair,
    single,
)
from .statement import Statement

with needed("a proof by computer algebra", "proof"):
    import sympy

n, share, past = sympy.symbols("n λ σ'²", positive=True)
drift = sympy.Symbol("e", real=True)
NUMBER = G - 1 + n
EVERY = "every G >= 1, every n >= 1 and every law"


def error(other: Any, earlier: Any, mean: Any, variance: Any) -> Any:
    """tr Cov ĝ with the baseline u Σ_{j≠i} zⱼ + v M, where M is the sum of n rewards apart from the group.

    Arguments:
        other, earlier: u and v.
        mean, variance: those of an earlier reward.
    """
    own = VANILLA - other * distinct(G, "s", "z") / G
    score = earlier * distinct(G, "s") / G
    # M is independent of the group: only its first two moments enter.
    first, second = n * mean, n * variance + (n * mean) ** 2
    crossed = LAW.mean(own * score)
    return LAW.mean(own * own) - 2 * first * crossed + second * LAW.mean(score * score) - SQUARE


def beyond_9() -> Iterator[Statement]:
    """The error of a memory, its best group size, and its best weight under drift."""
    pooled = error(1 / NUMBER, 1 / NUMBER, V, VARIANCE)
    noise = formulas.memory_noise(G, n, 1 / NUMBER, 1 / NUMBER, pair(), VARIANCE * T0)
    yield Statement(
        "mean of the estimate",
        LAW.mean(VANILLA - distinct(G, "s", "z") / (G * NUMBER) - V * n * distinct(G, "s") / G),
        LAW.moment("s z"),
        {"the own reward inside": LAW.moment("s z") * NUMBER / (NUMBER + 1)},
        EVERY,
    )
    within = (single() + noise) / G
    yield Statement(
        "covariance with the mean of all other and earlier rewards",
        pooled,
        within,
        {
            "earlier rewards do not count": formulas.grpo_error(G, single(), pair()),
            "‖g‖²/N for (G-1) ‖g‖²/N²": (single() + (VARIANCE * T0 + SQUARE) / NUMBER) / G,
            "earlier rewards are outputs": formulas.grpo_error(NUMBER + 1, single(), pair()),
        },
        EVERY,
    )
    yield Statement(
        "the same in groups of one",
        pooled.subs(G, 1),
        single() + VARIANCE * T0 / n,
        {"no memory": formulas.baseline_square(ADVANTAGE, CROSS, T0, -V) - SQUARE},
        "every n >= 1 and every law",
    )
    phi, tau, spread, signal = sympy.symbols("φ τ E‖g(X)‖² ‖g‖²", positive=True)
    both = formulas.pair_noise(phi, 1, spread)
    of_pairs = formulas.memory_noise(G, n, 1 / NUMBER, 1 / NUMBER, both, phi)
    first, second, third = formulas.constants_from(tau, phi, spread, signal)
    yield Statement(
        "c1 G + c2 + c3/N - n E‖g(X)‖²/N² of moments",
        G * formulas.minibatch_error(1, spread - signal, (tau - spread + of_pairs) / G),
        formulas.memory_budget_noise(G, n, first, second, third, spread),
        {"c1 G + c2 + c3/N": formulas.memory_budget_noise(G, n, first, second, third, 0)},
        EVERY,
    )
    slope = formulas.memory_slope(n, c1, c3, spread)
    yield Statement(
        "its derivative in G",
        sympy.diff(formulas.memory_budget_noise(G, n, c1, c2, c3, spread), G),
        sum(factor * NUMBER**k for factor, k in zip(slope, (3, 2, 1, 0), strict=True)) / NUMBER**3,
        scope="every G, n, c1, c2 and c3",
    )
    size = formulas.best_group_size(c3 / c1, sympy.sqrt) - n
    small = sympy.diff(formulas.memory_budget_noise(G, n, c1, c2, c3, 0), G)
    yield Statement(
        "its derivative at 1 + √(c3/c1) - n, if E‖g(X)‖² is small",
        small.subs(G, size),
        sympy.Integer(0),
        {"at 1 + √(c3/c1)": small.subs(G, size + n)},
        "every n, c1, c2 and c3",
    )
    weights = (1 - share) / (G - 1), share / n
    moved = error(*weights, V + drift, past)
    square = formulas.baseline_square(ADVANTAGE, CROSS, T0, share * drift) - SQUARE
    with_drift = (square + formulas.memory_noise(G, n, *weights, pair(), past * T0)) / G
    yield Statement(
        "covariance with a weight λ of a memory of another mean and variance",
        moved,
        with_drift,
        {
            "no drift": with_drift.subs(drift, 0),
            "no noise of the earlier rewards": with_drift.subs(past, 0),
        },
        "every G >= 2, every n, λ, drift and law",
    )
    best = formulas.best_amount(pair() / (G - 1), drift * CROSS, (drift**2 + past / n) * T0)
    slope_in_weight = sympy.diff(with_drift, share)
    yield Statement(
        "its derivative at λ*",
        sympy.cancel(slope_in_weight.subs(share, best)),
        sympy.Integer(0),
        {"at n/(G-1+n)": slope_in_weight.subs(share, n / NUMBER)},
        "every G >= 2, every n, drift and law",
    )
