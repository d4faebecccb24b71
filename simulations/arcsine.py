"""Proposition 13: GRPO divided by the group's standard deviation, with a KL penalty, maximises another
objective. At a fixed group size it is the Bernstein objective E Φ(V(X)), Φ' = w, and not yet the arcsine
that this tends to; and which divergence is taken off depends on the estimator and on its place.

Checked as work: along a path of policies the estimator does the work E Φ(end) - E Φ(start). At the
maximisers of two prompts that pull apart its mean is 0, alone and against a penalty; whole runs end
there. What the work lacks of the arcsine's falls as 1/G. Each penalty on tokens does the work of its
own divergence, and where it is the gradient of nothing, it does work around a loop.

Falsified by work, a mean or an end of runs that differs from the objective's, or a slope other than -1.

Cost: about two seconds on two cores at smoke, ten at quick.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import chain
from math import log

import numpy as np

from ustat_pg.engines import Estimator, GradientCell
from ustat_pg.estimators import kl_coefficients
from ustat_pg.predictions import (
    arcsine_objective,
    bernstein_objective,
    climbed_maximiser,
    count_table,
    gradient_covariance,
    kl_penalty,
)
from ustat_pg.problems import SoftmaxBandit, WeightedBandit
from ustat_pg.validation import changed

from .engines import Coordinate, Decay, Training
from .evidence import Check, Linear, LogSlope, equal, mean_of
from .interior_problems.location_bandit import LocationBandit
from .problems import BanditEntry, Entry, Suite
from .problems.landscapes import LandscapeEntry
from .problems.paths import TokenPath, along, mean_along, penalised, tilted
from .shared.numerics import Approximate, derivative, later_terms
from .shared.runs import GRPO, VANILLA, ball

Array = np.ndarray
Objective = Callable[[Array], Array]

RETURN = "the expected reward is climbed"
ARCSINE = "the arcsine is climbed at finite G"
ORDER = "the polynomial is of degree G + 1"
DDOF = "ddof makes no difference"
RATE = "the arcsine is reached as 1/√G"
REVERSE = "k3 in the loss is the gradient of the reverse KL"
WHOLE = "k3 in the loss is the gradient of the forward KL of outputs"
GRADIENT = "k3 in the loss is a gradient"
PENALISES = "k1 in the loss penalises"
ALIKE = "in the reward k2 and k3 are as good as k1"
RIVALS = (
    *(RETURN, ARCSINE, ORDER, DDOF, RATE),
    *(REVERSE, WHOLE, GRADIENT, PENALISES, ALIKE),
)

STD = Estimator("std")

LOW, HIGH = -1.0, 1.0
"""The ends of a path, as tilts of a policy."""

BETA = 0.2
"""The weight of a penalty against the rewards."""


def climbed(name: str, group_size: int) -> Objective:
    """The Bernstein objective of a table by counts."""
    return partial(bernstein_objective, count_table(name, group_size))


def wrong_objectives(group_size: int) -> dict[str, Objective]:
    """The objectives that rivals say the estimator divided by the deviation climbs."""
    return {
        RETURN: lambda p: p,
        ARCSINE: arcsine_objective,
        ORDER: climbed("std", group_size + 1),
    }


def checks(suite: Suite) -> Iterator[Check]:
    """Work along paths, maximisers, ends of runs, the rate, and penalties."""
    size = suite.sized(4, 8, 8)
    for entry in suite.unequal_rates:
        # Groups of ten arms are enumerated up to G = 4.
        yield from climbs(entry, size if entry.problem.arms < 5 else 4)
    for landscape in suite.landscapes["lenient"]:
        yield from Pull(landscape, 8).checks(suite.size != "smoke")
    yield from shared(suite)


def shared(suite: Suite) -> Iterator[Check]:
    """The checks beside problems of every kind: the rate, and penalties on tokens."""
    yield from chain.from_iterable(map(falls, rates(suite)))
    yield from chain.from_iterable(map(penalties, penalised(suite)))


def climbs(entry: BanditEntry, group_size: int) -> Iterator[Check]:
    """The work along a path, beyond grpo's on the same draws: that changes little from draw to draw."""
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
        yield Entry(
            f"rate#{suite.seed}.{number}",
            "generated",
            SoftmaxBandit.bernoulli([rate, 1 - rate], [1, 0]),
        )


def falls(entry: BanditEntry) -> Iterator[Check]:
    """The gain of the arcsine on a short path, less the work of std: its slope, and its size at G = 32.

    Drawn as twice grpo less std on the same draws, which near p = 1/2 differ little.
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
    places = tuple(log(size) for size in sizes)

    def slope(size: int) -> float:
        """The formula's, from a fourth of a size up to it."""
        far, near = (limit - work(climbed("std", at)) for at in (size // 4, size))
        return log(near / far) / log(4)

    later, error = later_terms(slope, sizes[-1])
    yield entry.check(
        ": slope against G of the arcsine less std",
        LogSlope(places, tuple(drawn), tuple(off)),
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
    """grpo less a factor times std, as one estimator: its range is far below the sum of theirs."""
    (won, lost), (over_won, over_lost) = (
        estimator.by_count(group_size) for estimator in (GRPO, STD)
    )
    won, lost = won - factor * over_won, lost - factor * over_lost
    return Estimator("count-table:" + ",".join(map(repr, [*won[1:].tolist(), *lost[:-1].tolist()])))


REACH = 0.5
"""Half the length of the first interval on which the return is interpolated."""


@dataclass(frozen=True)
class Pull:
    """Two prompts that pull apart, a parameter between them, and the policy at -1 as reference; whole
    runs have some steps.
    """

    entry: LandscapeEntry
    group_size: int
    steps: int = 150

    @property
    def landscape(self) -> LocationBandit:
        assert isinstance(self.entry.problem, LocationBandit)
        return self.entry.problem

    def rates(self, u: float) -> Array:
        return self.landscape.curve(u * self.landscape.paths[:, 0])[0]

    def probs(self, u: float) -> Array:
        return np.asarray(self.landscape.at([u]).policy.probs)

    @cached_property
    def reference(self) -> Array:
        return self.probs(-1.0)

    def penalty(self, kind: str, place: str, u: float) -> float:
        """β times the divergence that a penalty descends."""
        law = zip(self.landscape.context_probs, self.probs(u), self.reference, strict=True)
        return BETA * sum(share * kl_penalty(p, r, kind, place) for share, p, r in law)

    def best(self, objective: Objective, penalty: Callable[[float], float] | None = None) -> float:
        """The parameter at which an objective less a penalty is greatest."""
        probs = self.landscape.context_probs
        return climbed_maximiser(
            self.rates, objective, -1.0, 2.5, context_probs=probs, penalty=penalty
        )

    def height(self, objective: Objective, u: float) -> float:
        return float(self.landscape.context_probs @ objective(self.rates(u)))

    def slope(self, objective: Objective, u: float, order: int = 1) -> Approximate:
        height = np.vectorize(partial(self.height, objective), otypes=[float])
        return derivative(height, u, REACH, order)

    def wrong_slopes(self, u: float) -> dict[str, float]:
        return {rival: self.slope(objective, u).value for rival, objective in self.afar.items()}

    @property
    def objective(self) -> Objective:
        return climbed("std", self.group_size)

    @property
    def afar(self) -> dict[str, Objective]:
        """The rivals' objectives, but for one whose maximiser is near."""
        wrong = wrong_objectives(self.group_size)
        del wrong[ORDER]
        return wrong

    def checks(self, both: bool) -> Iterator[Check]:
        """Where the mean estimate is 0, alone and against one penalty or both, and where runs end."""
        top, size = self.best(self.objective), self.group_size
        cell = GradientCell(self.landscape.at([top]), size)
        yield self.entry.check(
            f"G={size}: mean at the maximiser",
            mean_along(cell, ((STD, 1.0),)),
            equal(0.0, self.wrong_slopes(top), scale=1.0),
        )
        for kind, place in (("k3", "loss"), ("k1", "reward"))[: 1 + both]:
            yield from self.balance(kind, place)
        predicted, off, drawn = self.end(top)
        ends = {rival: self.best(objective) + off for rival, objective in self.afar.items()}
        yield self.entry.check(
            f"G={size}: end of runs", drawn, equal(predicted, ends, scale=1.0, digits=abs(off))
        )

    def balance(self, kind: str, place: str) -> Iterator[Check]:
        """At the maximiser rewards and penalty pull alike: as hard as the objective rises there."""
        size = self.group_size
        top = self.best(self.objective, partial(self.penalty, kind, place))
        force, error = self.slope(self.objective, top)
        bandit = self.landscape.at([top])
        ratios = np.log(self.reference / bandit.policy.probs)[..., None]
        pull = WeightedBandit.of(
            changed(bandit, reward_values=np.ones_like(bandit.reward_values)),
            kl_coefficients(ratios, kind, place)[..., 0],
            np.zeros((bandit.contexts, 1)),
        )
        for what, cell, weights in (
            ("rewards", GradientCell(bandit, size), ((STD, 1.0),)),
            ("penalty", GradientCell(pull, size), ((VANILLA, -BETA),)),
        ):
            yield self.entry.check(
                f"G={size}: {kind} in the {place}, pull of the {what} at the maximiser",
                mean_along(cell, weights),
                equal(force, self.wrong_slopes(top), digits=error),
            )

    def end(self, top: float) -> tuple[float, float, Linear]:
        """The mean parameter after whole runs from the best expected reward: predicted to second order,
        by how much it is then off the maximiser, and as it is measured.
        """
        size, off = self.group_size, float(self.landscape.maximiser[0]) - top
        curvature, bend = (self.slope(self.objective, top, order).value for order in (2, 3))
        curvature = -curvature
        moments, square = self.landscape.at([top]).moments(), off**2
        noise = float(gradient_covariance(moments, "std", size)[0, 0])
        schedule = Decay(2 / curvature, 20.0)
        for rate in schedule.rates(self.steps):
            keep = 1 - rate * curvature
            off, square = keep * off + rate * bend / 2 * square, keep**2 * square + rate**2 * noise
        runs = Training(
            *(self.landscape, size, self.steps, schedule),
            start=self.landscape.maximiser,
            projection=ball(self.landscape, 1.2),
        )
        return top + off, off, mean_of(runs, Coordinate(STD, self.steps, 0))


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
    ]
    for kind, place, wrong in works:
        # Where it is a gradient the ends are enough.
        ends = path.space.length == 1 or (kind, place) == ("k1", "reward")
        work = -path.divergence(kind, place) if ends else path.predicted(kind, place)
        yield entry.check(
            f": work of {kind} in the {place}",
            path.drawn(kind, place),
            equal(work, wrong, scale=unit),
        )
    if path.space.length == 1:
        # Its mean is 0, and would be without it.
        yield entry.check(
            ": noise of k1 in the loss", path.noise("k1", "loss"), equal(path.fisher())
        )
    else:
        for kind in ("k1", "k2", "k3"):
            value = path.predicted(kind, "reward")
            for what, drawn in (
                (f"{kind} in the rewards to go", path.drawn(kind, "reward-to-go")),
                (f"{kind} taken off rewards", path.rewarded(kind)),
            ):
                yield entry.check(f": work of {what}", drawn, equal(value, scale=unit))
        loop = path.loop
        yield entry.check(
            ": work of k3 in the loss around a loop",
            loop.drawn("k3", "loss"),
            equal(loop.predicted("k3", "loss"), {GRADIENT: 0.0}, scale=unit),
        )


def on_networks(suite: Suite) -> Iterator[Check]:
    """Work on the problems whose rewards are 0 and 1 and differ; the rate, and penalties on tokens."""
    for entry in suite.winnable(4):
        yield from climbs(entry, 4)
    yield from shared(suite)
