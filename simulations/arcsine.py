"""Proposition 13: GRPO divided by the group's standard deviation, with a KL penalty, maximises another
objective. At a fixed group size it is the Bernstein objective E Φ(V(X)) with Φ' = w, which tends to the
arcsine for large groups. The subtracted divergence depends on the estimator and on its place.

The checks measure work: along a path of policies the estimator does the work E Φ(end) - E Φ(start). At the
    maximisers of two conflicting prompts its mean is 0, alone and with a penalty, and whole runs end there.
    The difference from the arcsine's work falls as 1/G. Each penalty on tokens does the work of its own
    divergence; if it is not a gradient, it does work around a loop.

The claim is falsified if the work, a mean or an end of runs differs from the objective's, or if the slope is
not -1.

Cost: about two seconds on two cores at smoke, ten at quick.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from math import log

import numpy as np

from ustat_pg.engines import Estimator, GradientCell
from ustat_pg.predictions import arcsine_objective
from ustat_pg.problems import SoftmaxBandit

from .evidence import Check, LogSlope, equal
from .parts.maximisers import (
    ARCSINE,
    ORDER,
    RETURN,
    STD,
    Objective,
    Pull,
    climbed,
    wrong_objectives,
)
from .problems import BanditEntry, Entry, Suite
from .problems.paths import TokenPath, along, mean_along, penalised, tilted
from .shared.numerics import later_terms
from .shared.runs import GRPO

DDOF = "ddof makes no difference"
RATE = "the arcsine is reached as 1/√G"
REVERSE = "k3 in the loss is the gradient of the reverse KL"
WHOLE = "k3 in the loss is the gradient of the forward KL of outputs"
GRADIENT = "k3 in the loss is a gradient"
PENALISES = "k1 in the loss penalises"
ALIKE = "in the reward k2 and k3 are as good as k1"
UNCHANGED = "a ratio of 1 leaves k3 as it is"
CREDITED = "the token's ratio makes the gradient of the KL of outputs"
OF_PENALTIES = (REVERSE, WHOLE, GRADIENT, PENALISES, ALIKE, UNCHANGED, CREDITED)
RIVALS = (RETURN, ARCSINE, ORDER, DDOF, RATE, *OF_PENALTIES)

PLACES = {"loss": "in the loss", "reward": "in the reward"}

WHOLE_GRADIENTS = (("k1", "reward"), ("k3", "sequence-ratio"))
"""Penalties that descend a divergence of outputs of any length."""

LOW, HIGH = -1.0, 1.0
"""The ends of a path, as tilts of a policy."""


def checks(suite: Suite) -> Iterator[Check]:
    """The checks of work along paths, maximisers, ends of runs, the rate, and penalties."""
    size = suite.sized(4, 8, 8)
    for entry in suite.unequal_rates:
        # Groups of ten arms are enumerated up to G = 4.
        yield from climbs(entry, size if entry.problem.arms < 5 else 4)
    for landscape in suite.landscapes["lenient"]:
        yield from Pull(landscape, 8).checks(suite.size != "smoke")
    yield from shared(suite)


def shared(suite: Suite) -> Iterator[Check]:
    """The checks that do not use the given problems: the rate, and penalties on tokens."""
    yield from chain.from_iterable(map(falls, rates(suite)))
    yield from chain.from_iterable(map(penalties, penalised(suite)))


def climbs(entry: BanditEntry, group_size: int) -> Iterator[Check]:
    """The work along a path minus grpo's on the same draws, which varies little."""
    problem = entry.problem
    ends = [tilted(problem, tilt).moments().value for tilt in (LOW, HIGH)]

    def work(objective: Objective) -> float:
        low, high = (objective(rates) for rates in ends)
        return float(problem.context_probs @ (high - low))

    cell, unbiased = GradientCell(along(problem, LOW, HIGH), group_size), work(lambda p: p)
    unit = work(climbed("std", group_size))
    others = {rival: work(objective) for rival, objective in wrong_objectives(group_size).items()}
    for name, wrong in (("std", others), ("std-ddof1", {DDOF: unit})):
        value = work(climbed(name, group_size)) - unbiased
        yield entry.check(
            f"G={group_size}: work of {name} beyond grpo's",
            mean_along(cell, ((Estimator(name), 1.0), (GRPO, -1.0))),
            equal(value, {rival: value - unbiased for rival, value in wrong.items()}, scale=unit),
        )


def rates(suite: Suite) -> Iterator[BanditEntry]:
    yield Entry("half", "made-up", SoftmaxBandit.bernoulli([0.5, 0.5], [1, 0]))
    rng = np.random.default_rng([suite.seed, 46])
    for number in range(max(suite.generated // 2, 1)):
        rate = float(rng.uniform(0.4, 0.6))
        coin = SoftmaxBandit.bernoulli([rate, 1 - rate], [1, 0])
        yield Entry(f"rate#{suite.seed}.{number}", "generated", coin)


def falls(entry: BanditEntry) -> Iterator[Check]:
    """The gain of the arcsine on a short path minus the work of std: its slope, and its size at G = 32.

    It is measured as twice grpo minus std on the same draws, which differ little near p = 1/2.
    """
    ends = [tilted(entry.problem, tilt).moments().value for tilt in (-0.4, 0.4)]
    path, sizes = along(entry.problem, -0.4, 0.4), (8, 32)

    def work(objective: Objective) -> float:
        low, high = (float(objective(rates)[0]) for rates in ends)
        return high - low

    limit, unbiased = work(arcsine_objective), work(lambda p: p)
    off = [limit - work(climbed("std", size)) for size in sizes]
    drawn = []
    for size in sizes:
        twice = mean_along(GradientCell(path, size), ((less(size, 0.5), 2.0),))
        constant = twice.constant + limit - 2 * unbiased
        drawn.append(replace(twice, constant=constant))

    def slope(size: int) -> float:
        """The formula's slope, from a fourth of a size up to the size."""
        far, near = (limit - work(climbed("std", at)) for at in (size // 4, size))
        return log(near / far) / log(4)

    later, error = later_terms(slope, sizes[-1])
    yield entry.check(
        ": slope against G of the arcsine less std",
        LogSlope(tuple(map(log, sizes)), tuple(drawn), tuple(off)),
        equal(-1.0 + later, {RATE: -0.5 + later}, digits=error),
    )
    yield entry.check(": arcsine less std at G=32", drawn[-1], equal(off[-1], {ARCSINE: 0.0}))
    later, error = later_terms(lambda size: work(climbed("std", size)), sizes[-1])
    cell = GradientCell(path, sizes[-1])
    beyond = mean_along(cell, ((less(sizes[-1], 1.0), -1.0),))
    yield entry.check(
        f": work of std at G={sizes[-1]}",
        replace(beyond, constant=beyond.constant + unbiased),
        equal(limit + later, {ARCSINE: limit, RETURN: unbiased + later}, digits=error),
    )


def less(group_size: int, factor: float) -> Estimator:
    """grpo minus a factor times std, as one estimator; its range is far below the sum of both ranges."""
    plain, over = (estimator.by_count(group_size) for estimator in (GRPO, STD))
    won, lost = (one - factor * other for one, other in zip(plain, over, strict=True))
    return Estimator("count-table:" + ",".join(map(repr, [*won[1:].tolist(), *lost[:-1].tolist()])))


def penalties(entry: Entry[TokenPath]) -> Iterator[Check]:
    """The work of penalties from the reference to a policy, and around a loop."""
    path = entry.problem
    reverse, forward = (-path.divergence(kind) for kind in ("k2", "k3"))
    unit = abs(reverse)
    works: list[tuple[str, str, dict[str, float]]] = [
        ("k1", "loss", {PENALISES: reverse}),
        ("k2", "loss", {}),
        ("k3", "loss", {REVERSE: reverse, WHOLE: forward}),
        ("k1", "reward", {}),
        ("k2", "reward", {ALIKE: reverse}),
        ("k3", "reward", {ALIKE: reverse}),
        ("k3", "token-ratio", {UNCHANGED: path.predicted("k3", "loss"), CREDITED: reverse}),
        ("k3", "sequence-ratio", {}),
    ]
    for kind, place, wrong in works:
        # If it is a gradient, the ends are enough.
        ends = path.space.length == 1 or (kind, place) in WHOLE_GRADIENTS
        work = -path.divergence(kind, place) if ends else path.predicted(kind, place)
        yield entry.check(
            f": work of {kind} {PLACES.get(place, f'times its {place}')}",
            path.drawn(kind, place),
            equal(work, wrong, scale=unit),
        )
    if path.space.length == 1:
        # Its mean is 0, with and without the penalty.
        noise = path.noise("k1", "loss")
        yield entry.check(": noise of k1 in the loss", noise, equal(path.fisher()))
        return
    for kind in ("k1", "k2", "k3"):
        value = path.predicted(kind, "reward")
        for what, drawn in (
            (f"{kind} in the rewards to go", path.drawn(kind, "reward-to-go")),
            (f"{kind} taken off rewards", path.rewarded(kind)),
        ):
            yield entry.check(f": work of {what}", drawn, equal(value, scale=unit))
    drawn = path.loop.drawn("k3", "loss")
    around = equal(path.loop.predicted("k3", "loss"), {GRADIENT: 0.0}, scale=unit)
    yield entry.check(": work of k3 in the loss around a loop", drawn, around)


def on_networks(suite: Suite) -> Iterator[Check]:
    """The checks of work on problems with unequal 0/1 rewards; the rate, and penalties on tokens."""
    for entry in suite.winnable(4):
        yield from climbs(entry, 4)
    yield from shared(suite)
