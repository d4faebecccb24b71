"""Prompts drawn by any law: the mean and the square of one drawn prompt, and the law of least cost."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, product
from operator import mul
from typing import Any

import numpy as np
import sympy

from ustat_pg.predictions import closed_forms as formulas

from .linear import GRPO, LAW, SQUARE, G, pair, single
from .statement import Statement

PROMPTS = 3
SCOPE = f"{PROMPTS} prompts, every law"
k, S, n, a, b, c = sympy.symbols("κ ‖g‖² n a b c", positive=True)


def letters(name: str) -> Any:
    """A positive symbol for each prompt."""
    return np.array(sympy.symbols(f"{name}1:{PROMPTS + 1}", positive=True), dtype=object)


RHO, Q, ROOT_M, ROOT_N, g = (letters(name) for name in ("ρ", "q", "μ", "ν", "g"))
M, SIZES = ROOT_M**2, ROOT_N**2
"""m(x) and n(x), whose roots are symbols, so that the least cost is a rational function."""


def beyond_8() -> Iterator[Statement]:
    """The estimate of a drawn prompt, its cost, and where the cost is least."""
    yield Statement(
        "m: E‖ĝ‖² of a prompt's group",
        LAW.mean(GRPO * GRPO),
        SQUARE + formulas.grpo_error(G, single(), pair()),
        {"its error alone": formulas.grpo_error(G, single(), pair())},
    )
    weights = RHO / Q
    yield Statement(
        "mean of a drawn prompt, weighted by ρ/q",
        sum(Q * (weights * g)),
        sum(RHO * g),
        {"without weights": sum(Q * g)},
        SCOPE,
    )
    square = formulas.drawn_square(Q, weights, M)
    yield Statement(
        "E‖ĝ‖² of it",
        sum(RHO**2 / Q * M),
        square,
        {"weights not squared": sum(RHO * M)},
        SCOPE,
    )
    yield from least_cost(square)
    yield from from_rewards()


def least_cost(square: Any) -> Iterator[Statement]:
    """No law costs less than q ~ ρ √(m/n) at ‖g‖² = 0; κ makes this exact; what size a prompt has."""
    outputs, floor = sum(Q * SIZES), sum(RHO * ROOT_M * ROOT_N) ** 2
    apart = sum(
        (Q[x] * ROOT_N[x] * RHO[y] * ROOT_M[y] - Q[y] * ROOT_N[y] * RHO[x] * ROOT_M[x]) ** 2
        / (Q[x] * Q[y])
        for x, y in combinations(range(PROMPTS), 2)
    )
    yield Statement(
        "cost at ‖g‖² = 0: (Σ ρ √(nm))² and squares, which are 0 at q ~ ρ √(m/n)",
        formulas.drawn_cost(outputs, square, 0),
        floor + apart,
        {"Σ ρ² n m": sum(RHO**2 * SIZES * M), "no squares": floor},
        SCOPE,
    )
    root = np.vectorize(sympy.sqrt, otypes=[object])
    best = formulas.drawing_weight(RHO, M, SIZES, root=root)
    best = best / sum(best)
    yield Statement(
        "cost of that law",
        formulas.drawn_cost(sum(best * SIZES), formulas.drawn_square(best, RHO / best, M), 0),
        floor,
        scope=SCOPE,
    )
    first, then, m = sympy.symbols("N N' m", positive=True)
    extra = formulas.signal_outputs(first, m, S)
    after = formulas.drawn_cost(then, (first + extra) * m / (then + extra), S)
    yield Statement(
        "with κ of a law, another of equal (N + κ) E‖ĝ‖² costs no more",
        after - formulas.drawn_cost(first, m, S),
        -S * (then - first) ** 2 / (then + extra),
        {"the same": sympy.Integer(0)},
        "every law, every size and gradient",
    )
    each = (n + k) * (a + formulas.grpo_error(n, b, c))

    def slope(extra: Any) -> Any:
        parts = formulas.costly_slope(extra, b / a, c / a)
        powers = ((n - 1) ** power for power in range(len(parts) - 1, -1, -1))
        return a * sum(map(mul, parts, powers)) / (n * (n - 1)) ** 2

    yield Statement(
        "slope of (n + κ) m(n): a prompt's size is the best one at a cost of κ outputs per prompt",
        sympy.diff(each, n),
        slope(k),
        {"at no cost": slope(0)},
        "every size and moment",
    )


def from_rewards() -> Iterator[Statement]:
    """The spread that earlier rollouts leave, and the share of screenings that a prompt passes."""
    won, lost, one, two, p = sympy.symbols("s f α β p", positive=True)
    before = sympy.beta(one + won, two + lost).rewrite(sympy.gamma)
    after = sympy.beta(one + won + 1, two + lost + 1).rewrite(sympy.gamma)
    yield Statement(
        "E p(1-p) after s successes and f failures, p ~ Beta(α, β) before",
        sympy.gammasimp(after / before),
        formulas.expected_spread(won, lost, (one, two)),
        {"s f/k²": won * lost / (won + lost) ** 2},
        "every number of rollouts and every α and β",
    )
    rollouts = 4
    shares = (
        p ** sum(seen) * (1 - p) ** (rollouts - sum(seen))
        for seen in product((0, 1), repeat=rollouts)
        if 1 <= sum(seen) <= 2
    )
    yield Statement(
        "share of screenings with 1 or 2 successes among 4",
        sum(shares),
        formulas.chosen_share(p, rollouts, 1, 2),
        {"by the exact rate": sympy.Integer(1)},
        "every pass rate",
    )
