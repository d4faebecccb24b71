"""Groups in which only a part counts: episodes that reach a turn, and outputs that survive.

The number of others that count is random. A sum over subsets of the group replaces a division by
it, and the algebra expands the sum at each group size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import comb
from typing import Any

import sympy

from ustat_pg.algebra import Law, Sum, counted, distinct
from ustat_pg.predictions import closed_forms as formulas

from . import linear
from .linear import G
from .statement import Statement

SIZES = (2, 3, 4, 5)
EACH = "G to 5 and every law"
q, t = sympy.symbols("q t", positive=True)
X = sympy.Symbol("x")

EPISODES = Law(binary=["h"], absorbed={"s": "h", "R": "h"})
"""h is 1 if the turn is reached; s is its score and R the return from there on, or 0 otherwise."""
Q = EPISODES.moment("h")
PUSH = EPISODES.moment("s R")


def at_each_size(value: Callable[[int], Any]) -> Any:
    """The sum of the values at all sizes, each times a letter to the power of the size."""
    return sum(X**size * value(size) for size in SIZES)


def over(number: int) -> Any:
    """1 divided by a number, exactly."""
    return sympy.Rational(1, number)


def to_go(size: int, lone: int = 1) -> Sum:
    """Returns minus the mean of the others that reach the turn; for a lone turn the return, or 0."""
    own = counted(size, ["s R"], "h", lambda m: 1 if m else lone)
    others = counted(size, ["s", "R"], "h", lambda m: over(m + 1))
    return (own - others) / size


def to_go_mean(size: int) -> Sum:
    """Returns minus the mean of all that reach the turn, including the own episode."""
    own = counted(size, ["s R"], "h", lambda m: 1 - over(m + 1))
    others = counted(size, ["s", "R"], "h", lambda m: over(m + 2))
    return (own - others) / size


def mean_over(count: int, of: Callable[[int], Any]) -> Any:
    """E f(k), where k of the given number of others reach the turn."""
    return sum(comb(count, k) * Q**k * (1 - Q) ** (count - k) * of(k) for k in range(count + 1))


def beyond_6() -> Iterator[Statement]:
    """Means of schemes over turns, and the noise in a turn's own parameters."""
    curve = (1 - q + q * t) ** G / (G * q)
    yield Statement(
        "E tᵏ of the others who reach a turn is the slope of (1-q+qt)ᴳ/(Gq)",
        (1 - q + q * t) ** (G - 1),
        sympy.powsimp(sympy.simplify(sympy.diff(curve, t))),
        scope="every G, q and t",
    )
    yield Statement(
        "so that E 1/(k+1), its integral from 0 to 1, gives the weight of a turn",
        1 - (curve.subs(t, 1) - curve.subs(t, 0)),
        formulas.kept_share(q, G),
        {"(G-1)/G": formulas.whole_group_share(G), "1 - 1/(Gq)": 1 - 1 / (G * q)},
        "every G and q",
    )
    yield Statement(
        "mean of to-go: unbiased",
        at_each_size(lambda size: EPISODES.mean(to_go(size))),
        at_each_size(lambda size: PUSH),
        scope=EACH,
    )
    yield Statement(
        "the same where a lone turn is dropped",
        at_each_size(lambda size: EPISODES.mean(to_go(size, lone=0))),
        at_each_size(lambda size: formulas.compared_share(Q, size) * PUSH),
        {"as if it were kept": at_each_size(lambda size: PUSH)},
        scope=EACH,
    )
    yield Statement(
        "mean of to-go-mean",
        at_each_size(lambda size: EPISODES.mean(to_go_mean(size))),
        at_each_size(lambda size: formulas.kept_share(Q, size) * PUSH),
        {"(G-1)/G": at_each_size(lambda size: formulas.whole_group_share(over(1) * size) * PUSH)},
        scope=EACH,
    )
    # For a later turn u, the reward r is 0 if u is not reached, and s is the score of an earlier turn.
    later = Law(binary=["h"], absorbed={"r": "h"})

    def summed(size: int) -> Any:
        own, others = distinct(size, "s r"), counted(size, ["s h", "r"], "h", lambda m: over(m + 1))
        return later.mean((own - others) / size)

    def climbed(size: int, compared: Any) -> Any:
        mean = later.moment("r") / later.moment("h")
        return later.moment("s r") - compared * mean * later.moment("s h")

    yield Statement(
        "a later turn's part of the mean of summed",
        at_each_size(summed),
        at_each_size(lambda n: climbed(n, formulas.compared_share(later.moment("h"), n))),
        {
            "unbiased": at_each_size(lambda n: climbed(n, 0)),
            "in the limit": at_each_size(lambda n: climbed(n, 1)),
        },
        scope=EACH,
    )
    yield from noise()


def noise() -> Iterator[Statement]:
    """E‖ĝₜ‖² for a turn, without a baseline and with the mean of the others that reach it."""
    value = EPISODES.moment("R") / Q
    variance = EPISODES.moment("R R") / Q - value**2
    f0, t1, t2 = (EPISODES.moment(text) for text in ("s s", "s s R", "s s R R"))
    moments = f0, t1 - value * f0, t2 - 2 * value * t1 + value**2 * f0
    square = EPISODES.inner("s R", "s R")

    def plain(size: int) -> Any:
        push = formulas.turn_push(size, square)
        return formulas.turn_square(sympy.Integer(size), moments, (value, variance), 1, 0, push)

    def others(size: int, pair: bool = True) -> Any:
        alone = (1 - Q) ** (size - 1)
        one_over = mean_over(size - 1, lambda k: over(k) if k else 0)
        twice = mean_over(size - 2, lambda k: over((k + 1) ** 2)) if pair else 0
        push = formulas.turn_push(size, square, twice)
        return formulas.turn_square(
            sympy.Integer(size), moments, (value, variance), alone, one_over, push
        )

    def drawn(estimate: Callable[[int], Sum]) -> Any:
        return at_each_size(lambda n: EPISODES.mean(estimate(n) * estimate(n)))

    yield Statement(
        "E‖ĝₜ‖² without a baseline",
        drawn(lambda n: distinct(n, "s R") / n),
        at_each_size(plain),
        scope=EACH,
    )
    yield Statement(
        "E‖ĝₜ‖² of to-go",
        drawn(to_go),
        at_each_size(others),
        {
            "two episodes do not meet in a baseline": at_each_size(lambda n: others(n, pair=False)),
            "no baseline": at_each_size(plain),
        },
        scope=EACH,
    )
    # The whole episode's return minus the mean of all others', whatever turns they reach, for every G.
    lone = linear.V, linear.VARIANCE
    squares = linear.T0, linear.CROSS, linear.ADVANTAGE
    push = formulas.turn_push(G, linear.SQUARE, 1 / (G - 1) ** 2)
    yield Statement(
        "E‖ĝₜ‖² of episode",
        linear.LAW.mean(linear.GRPO * linear.GRPO),
        formulas.turn_square(G, squares, lone, 0, 1 / (G - 1), push),
        {
            "no pairs": formulas.turn_square(
                G, squares, lone, 0, 1 / (G - 1), formulas.turn_push(G, linear.SQUARE)
            )
        },
    )


SURVIVORS = Law(binary=["h"])
"""h is 1 if an output survives; its probability may depend on everything else."""


def beyond_5() -> Iterator[Statement]:
    """Leave-one-out over survivors equals leave-one-out for their own law, in groups of random size."""
    kept = SURVIVORS.moment("h")

    def tilted(text: str) -> Any:
        return SURVIVORS.moment(f"{text} h") / kept

    def estimate(size: int) -> Sum:
        single = counted(size, ["h s z"], "h", lambda m: over(m + 1) if m else 0)
        return single - counted(size, ["h s", "h z"], "h", lambda m: over((m + 1) * (m + 2)))

    def chance(size: int, n: int) -> Any:
        return comb(size, n) * kept**n * (1 - kept) ** (size - n)

    def enough(size: int) -> Any:
        return sum(chance(size, n) for n in range(2, size + 1))

    value = tilted("z")
    pull = tilted("s z") - value * tilted("s")
    yield Statement(
        "mean of leave-one-out over survivors",
        at_each_size(lambda size: SURVIVORS.mean(estimate(size))),
        at_each_size(lambda size: enough(size) * pull),
        {"the gradient of all": at_each_size(lambda size: enough(size) * SURVIVORS.moment("s z"))},
        EACH,
    )
    inner = SURVIVORS.inner
    square = (
        inner("s z h", "s z h") - 2 * value * inner("s z h", "s h") + value**2 * inner("s h", "s h")
    )
    square /= kept**2
    # Scores of survivors have a nonzero mean, and the closed form uses moments about it.
    drift = inner("s h", "s h") / kept**2

    def about(text: str) -> Any:
        crossed = inner(f"s h {text}", "s h") / kept**2
        return tilted(f"s s {text}") - 2 * crossed + drift * tilted(text)

    t0, t1, t2 = tilted("s s") - drift, about("z"), about("z z")
    single = formulas.baseline_square(t2 - 2 * value * t1 + value**2 * t0, t1 - value * t0, t0, 0)
    pair = formulas.pair_noise(tilted("z z") - value**2, t0, square)

    def moment(size: int) -> Any:
        return sum(
            chance(size, n)
            * (square + formulas.grpo_error(sympy.Integer(n), single - square, pair))
            for n in range(2, size + 1)
        )

    yield Statement(
        "E‖ĝ‖² of leave-one-out over survivors",
        at_each_size(lambda size: SURVIVORS.mean(estimate(size) * estimate(size))),
        at_each_size(moment),
        scope=EACH,
    )
