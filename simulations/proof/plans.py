"""Groups whose size depends on the observed rewards: each published plan, for every pass rate."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np
import sympy

from ustat_pg.predictions import closed_forms as formulas
from ustat_pg.sampling.plans import SCHEMES, Plan

from .counts import F, R, X, chance, g2, p
from .statement import Statement

WHOLE = "every pass rate"
SHORT = ("3+2 if mixed", "1..4 until 1 success", "2+1+2 if mixed 0.5")
"""Plans for which all sequences of rewards are enumerated."""


def exact(numbers: Any) -> Any:
    """Fractions as sympy numbers."""
    fractions = map(Fraction, numbers)
    return np.array([sympy.Rational(f.numerator, f.denominator) for f in fractions], dtype=object)


def chances(plan: Plan) -> Callable[[int, int], Any]:
    """P(t)/(pⁱ qʲ) at all stops, from the plan's own numbers of paths."""
    sizes, successes = plan.stops.sizes.tolist(), plan.stops.successes.tolist()
    paths = exact(plan.stops.paths)

    def divided(won: int, lost: int) -> Any:
        powers = [(k - won, n - k - lost) for n, k in zip(sizes, successes, strict=True)]
        return np.array(
            [N * chance(*ks) if min(ks) >= 0 else 0 for N, ks in zip(paths, powers, strict=True)]
        )

    return divided


def sequences(plan: Plan) -> Iterator[tuple[tuple[int, ...], Any]]:
    """All sequences of rewards at which a plan may stop, and the probability that it stops there."""
    for look, size in enumerate(plan.looks):
        for rewards in product((0, 1), repeat=size):
            here = sympy.Integer(1)
            for earlier in range(look):
                seen = sum(rewards[: plan.looks[earlier]])
                here *= exact(plan.go_on[earlier])[seen]
            if look < len(plan.looks) - 1:
                here *= 1 - exact(plan.go_on[look])[sum(rewards)]
            if here != 0:
                yield rewards, here


def beyond_4() -> Iterator[Statement]:
    """Published plans as polynomials in the pass rate, and short plans by all sequences of rewards."""
    plans = {name: Plan.parse(scheme.plan).keeping_all for name, scheme in SCHEMES.items()}
    ones = sum(X**i for i in range(len(plans)))
    yield Statement(
        f"the stops of {len(plans)} published plans have chances that add up to 1",
        sum(X**i * sum(chances(plan)(0, 0)) for i, plan in enumerate(plans.values())),
        ones,
        scope=WHOLE,
    )

    def kernel(plan: Plan) -> Any:
        return exact(plan.stops.mixed_starts) / exact(plan.stops.paths)

    whole = sum(
        X**i * formulas.stop_weight(chances(plan), kernel(plan), -kernel(plan))
        for i, plan in enumerate(plans.values())
    )
    yield Statement("their sequential estimator is unbiased", whole, ones, scope=WHOLE)
    for text in SHORT:
        yield from short(Plan.parse(text))


def short(plan: Plan) -> Iterator[Statement]:
    """Mean and second moment of any estimate a(t) s̄₁ + b(t) s̄₀ by enumeration of all rewards."""
    stops = list(zip(plan.stops.sizes.tolist(), plan.stops.successes.tolist(), strict=True))
    won, lost = (
        np.array(
            [sympy.Symbol(f"{name}_{n}_{k}") if used(n, k) else sympy.Integer(0) for n, k in stops]
        )
        for name, used in (("a", lambda n, k: k > 0), ("b", lambda n, k: k < n))
    )
    q = 1 - p
    place = {stop: i for i, stop in enumerate(stops)}
    mean = square = sympy.Integer(0)
    for rewards, here in sequences(plan):
        n, k = len(rewards), sum(rewards)
        a, b = won[place[n, k]], lost[place[n, k]]
        # Given its rewards a group has independent scores: means g/p and -g/q, squares R/p and (F-R)/q.
        pull = a / p - b / q
        spread = (a**2 * (R / p - g2 / p**2) / k if k else 0) + (
            b**2 * ((F - R) / q - g2 / q**2) / (n - k) if k < n else 0
        )
        mean += here * p**k * q ** (n - k) * pull
        square += here * p**k * q ** (n - k) * (pull**2 * g2 + spread)
    law = chances(plan)
    counts = [(k, n - k) for n, k in stops]
    alone = (exact(Fraction(1, max(c[i], 1)) for c in counts) for i in (0, 1))
    shares = formulas.stop_shares(law, won, lost, *alone)
    yield Statement(
        f"mean of any estimate of the plan {plan.text}",
        sympy.cancel(mean),
        formulas.stop_weight(law, won, lost),
        {"failures forgotten": formulas.stop_weight(law, won, 0 * lost)},
        "every pass rate and law of scores",
    )
    yield Statement(
        f"E‖ĝ‖² of any estimate of the plan {plan.text}",
        sympy.cancel(square),
        formulas.centred_moment(shares, R, F, g2),
        {"pairs forgotten": formulas.centred_moment(shares._replace(both=0, none=0), R, F, g2)},
        "every pass rate and law of scores",
    )
