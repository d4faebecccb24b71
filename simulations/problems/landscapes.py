"""The problems on which whole training runs are checked. Each has an interior optimum.

Made-up ones are a return that is exactly quadratic near its optimum, where Lemma 6 is attained; prompts that
disagree, so that the group size matters; and one or two identifiable directions, with and without flat
ones, for the limit law. Generated ones are the same kinds with numbers drawn from the seed, in ranges for
which rates, steps and radii are chosen, so that curvature or noise differs by more than 5%.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from ..interior_problems.bent_bandit import BentBandit, norm_only_problem, ordered_problem
from ..interior_problems.location_bandit import LocationBandit, mixture_problem
from .entry import Entry

Landscape = LocationBandit | BentBandit

LandscapeEntry = Entry[Landscape]


THREE = np.array([-1.0, 0.0, 1.0])
"""The arms of most landscapes."""


def certain(
    directions: Any, arms: Any, tau: float, rewards: Any, *, radius: float = 1.0, share: float = 0.0
) -> LocationBandit:
    """Prompts with directions (X, d) and deterministic rewards (X, K) or (K,): equally likely, or two of
    which the first has the given probability.
    """
    ways = np.atleast_2d(np.asarray(directions, dtype=float))
    contexts = len(ways)
    values = np.broadcast_to(rewards, (contexts, len(arms)))[..., None]
    shares = np.array([share, 1 - share]) if share else np.full(contexts, 1 / contexts)
    return LocationBandit(shares, ways, arms, tau, values, np.ones_like(values), radius)


def bowl(target: float = 0.0, tau: float = 0.4) -> LocationBandit:
    """Sure rewards that are quadratic in the arm, so that the return is quadratic near its optimum."""
    arms = np.linspace(-2, 2, 9)
    return certain([[1.0]], arms, tau, 1 - (arms - target) ** 2 / (2 + abs(target)) ** 2)


def dome(tilt: float = 0.0, height: float = 1.0, tau: float = 0.47) -> LocationBandit:
    """Three arms with deterministic rewards. The outer ones have total probability 1/6: there the fourth
    derivative of the return is 0, so that curvature and noise are nearly the same around the optimum.
    """
    rewards = height * np.array([0.1 - tilt, 1.0, 0.1 + tilt])
    return certain([[1.0]], THREE, tau, rewards)


def twin() -> LocationBandit:
    """One prompt with a best arm on the right and a good one on the left: the return has two peaks."""
    return certain([[1.0]], np.arange(-2.0, 3.0), 0.4, [0.0, 0.8, 0.2, 1.0, 0.0], radius=2.5)


def shoulder(share: float = 0.68, steep: float = 1.8) -> LocationBandit:
    """Two prompts, one more likely than the other, whose sum is most curved near the optimum, is convex
    far from it and has its least PL ratio there. On a ball of radius 1, the least curvature at the
    optimum, L, μ and μ' are all different.
    """
    rewards = np.array([[0.69, 0.93, 0.49], [0.7, 0.87, 0.11]])
    return certain([[1.3], [steep]], THREE, 1.1, rewards, radius=3.0, share=share)


def disagreement(tilt: float = 0.2, far: float = 1.2) -> LocationBandit:
    """Two opposed prompts: on one the reward grows with the arm by ``tilt``, on the other it
    falls, and both reward the middle arm. Steps are steep in θ: c₃/c₁ is about 5 at .2.
    """
    arms = np.array([-far, -1.0, 0.0, 1.0, far])
    middle = 0.3 + 0.5 * (arms == 0)
    rewards = np.stack([middle + tilt * arms, middle - tilt * arms])
    return certain([[4.0], [4.0]], arms, 2.0, rewards, radius=0.5)


def tilted(angle: float = 1.1, tilt: float = 0.2) -> LocationBandit:
    """The same prompts with two parameters that act through one sum, in a direction along no axis;
    the other direction is flat.
    """
    way = 4.0 * np.array([np.cos(angle), np.sin(angle)])
    one = disagreement(tilt)
    rewards = one.mean_rewards
    return certain([way, way], one.arms, 2.0, rewards, radius=0.5)


def plane(ratio: float = 0.3, angle: float = 0.4) -> LocationBandit:
    """Two directions, each with its own prompt and very different noise, so that weights are unequal."""
    turn = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
    rewards = np.array([[0.1, 0.9, 0.2], [0.2, 0.9, 0.1]])
    return certain(turn * [[3.0], [3.0 * ratio]], THREE, 1.2, rewards)


def twisted(
    ratios: tuple[float, ...] = (1.0, 1.6),
    shares: tuple[float, ...] = (0.45, 0.3, 0.25),
    angle: float = 0.4,
    reach: float = 2.5,
    side: float = 0.1,
) -> LocationBandit:
    """Prompts with orthogonal directions, each with its own best arm, and one prompt with the reward of
    a fair coin for every arm: it moves the parameters along the diagonal and adds no curvature.

    So the noise does not commute with the Hessian, and its correlation between eigendirections is
    large. All directions are turned by an angle in the plane of each pair of neighbouring axes; ``side``
    rewards the first prompt's left arm, so that the optimum is not at 0.
    """
    rank = len(ratios)
    ways = np.vstack([np.diag(ratios), np.full(rank, reach / np.sqrt(rank))])
    cos, sin = np.cos(angle), np.sin(angle)
    for axis in range(rank - 1):
        turn = np.eye(rank)
        turn[axis : axis + 2, axis : axis + 2] = [[cos, sin], [-sin, cos]]
        ways = ways @ turn
    values = np.zeros((rank + 1, 3, 2))
    values[:-1, 1], values[0, 0], values[-1, :, 1] = 1.0, side, 1.0
    laws = np.full(values.shape, 0.5)
    return LocationBandit(np.array(shares), ways, THREE, 0.85, values, laws, radius=1.0)


def triple(tilt: float = 0.0, lift: float = 0.3, *, flat: bool = False) -> LocationBandit:
    """Three arms with deterministic rewards; the middle one is best. With a tilt, two prompts disagree.

    With ``flat`` two parameters act through one sum.
    """
    way = np.array([[0.6, 0.8]]) if flat else np.array([[1.0]])
    if not tilt:
        return certain(way, THREE, 1.0, [lift, 1.0, 0.0])
    rewards = np.array([[lift - tilt, 1.0, lift + tilt], [lift + tilt, 1.0, lift - tilt]])
    return certain(np.repeat(way, 2, axis=0), THREE, 1.0, rewards)


def _untilted(tilt: float = 0.0, lift: float = 0.3, *, flat: bool = False) -> LocationBandit:
    """Three arms and one prompt: the tilt is drawn as for two prompts, and not used."""
    return triple(0.0, lift, flat=flat)


def uneven(first: float = 1.4, second: float = 3.0) -> BentBandit:
    """The scores of :func:`~simulations.interior_problems.norm_only_problem` with bends that make one
    direction flatter: E[‖s‖² a] = 0 as there, but Λ = diag((first - 1)/4, (second + 1)/4).

    Errors in the flatter direction decay slowly and are most of the gap.
    """
    units = np.array([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
    earns = np.array([1.0, 1.0, 0.0, 0.0])
    bends = earns[:, None] * [first, second]
    law = np.ones((1, 4, 1))
    return BentBandit(np.ones(1), units[None], bends[None], earns[None, :, None], law)


def ordered_prompts(
    share: float = 0.35,
    hard: float = 0.25,
    easy: float = 0.7,
    angle: float = 0.6,
    reach: float = 1.6,
) -> BentBandit:
    """Two prompts of unequal values and probabilities. In each, score and reward are independent at
    the optimum, as in :func:`~simulations.interior_problems.ordered_problem`: E[s sᵀ a | x] = 0 in both.

    The hard prompt's scores are rotated by an angle, the easy one's by half of it backwards, and both are
    longer in one direction, so that the Fisher information commutes neither with the other prompt's
    nor with the Hessian.
    """
    features, bends = [], []
    for turn, bend in ((angle, (0.8, 2.4)), (-angle / 2, (1.2, 1.6))):
        axes = np.array([[np.cos(turn), np.sin(turn)], [-np.sin(turn), np.cos(turn)]])
        ways = np.concatenate([axes * [[reach], [1.0]], -axes * [[reach], [1.0]]])
        features.append(np.concatenate([ways, ways]))
        bends.append(np.repeat([(0.0, 0.0), bend], 4, axis=0))
    values = np.array([hard, easy])
    earns = np.repeat([0.0, 1.0], 4)
    return BentBandit(
        context_probs=np.array([share, 1 - share]),
        features=np.stack(features),
        bends=np.stack(bends),
        rewards=np.broadcast_to(earns[:, None], (2, 8, 1)),
        reward_probs=np.ones((2, 8, 1)),
        offset=np.log(values / (1 - values))[:, None] * earns,
        radius=1.0,
    )


def tug(
    height: float = 0.6, tilt: float = 0.2, tau: float = 2.0, copies: int = 1
) -> LocationBandit:
    """Two kinds of opposed prompts on three arms. The middle arm earns ``height`` on both, the
    outer ones earn ``tilt`` more or less, with the opposite sign on the other kind.

    With ε the probability of an outer arm, c₃/c₁ = 2 + (1 - 2ε)(height/tilt)² and
    c₂/c₁ = (1 + (1 - 2ε)²(height/tilt)²)/(2ε) - 1: rare outer arms make only c₂ large.
    """
    middle = height * (THREE == 0)
    # In this order successive batches pull in the same direction if prompts are not shuffled.
    rewards = np.repeat([middle + tilt * THREE, middle - tilt * THREE], copies, axis=0)
    return certain([[tau**2]] * (2 * copies), THREE, tau, rewards)


def lopsided(share: float = 0.3, tilt: float = 0.35, height: float = 0.8) -> LocationBandit:
    """Two opposed prompts on three arms; one is more likely than the other and pulls harder."""
    middle, pull = height * (THREE == 0), tilt * THREE
    rewards = np.stack([middle + pull, middle - share / (1 - share) * pull])
    return certain([[3.0], [3.0]], THREE, 1.5, rewards, share=share)


def gamble(
    hard: float = 0.22, easy: float = 0.55, height: float = 0.3, tilt: float = 0.2, tau: float = 2.0
) -> LocationBandit:
    """Two opposed prompts on three arms, with rewards 0 and 1: a hard and an easy one, on which
    the outer arms succeed ``tilt`` more or less often, and the middle one ``height`` more often.
    """
    middle, pull = height * (THREE == 0), tilt * THREE
    chances = np.stack([hard + middle + pull, easy + middle - pull])
    values = np.broadcast_to([1.0, 0.0], (2, 3, 2))
    law = np.stack([chances, 1 - chances], axis=-1)
    uniform = np.full(2, 0.5)
    return LocationBandit(uniform, np.full((2, 1), tau**2), THREE, tau, values, law, radius=1.0)


def lenient(tau: float = 0.8, share: float = 0.5) -> LocationBandit:
    """Two prompts with three arms, right or wrong: the lenient prompt accepts the middle arm and the one on
    its right, the strict one only the middle arm. So the easy prompt pulls one way, the hard one back.
    """
    rewards = [[0.0, 1.0, 1.0], [0.0, 1.0, 0.0]]
    return certain([[tau**2], [tau**2]], THREE, tau, rewards, radius=3.0, share=share)


def crossing(flat: float = 2.8, steep: float = 4.0) -> LocationBandit:
    """Two directions, neither along an axis: a flat one with opposed prompts, and a steep one with
    noise only.
    """
    across, along = np.array([0.8, 0.6]), np.array([-0.6, 0.8])
    middle = 1.0 * (THREE == 0)
    rewards = np.stack([0.3 * middle + 0.3 * THREE, 0.3 * middle - 0.3 * THREE, 2 * middle])
    return certain([flat * across, flat * across, steep * along], THREE, 2.0, rewards)


def diabetes() -> LocationBandit:
    """Every 20th of 442 patients as a prompt, with the body mass index as the feature and the
    progression of the disease as the target arm.
    """
    from sklearn.datasets import load_diabetes

    data = load_diabetes(scaled=False)
    index = data.data[::20, data.feature_names.index("bmi")]
    progression = data.target[::20]
    targets = 3 * (progression - progression.min()) / np.ptp(progression) - 1.5
    return LocationBandit.bump((index - index.mean()) / index.std(), targets)


APART = 0.05
"""The least relative difference of a generated landscape from the first of its family, if a draw has it."""

DRAWS = 100
"""The most landscapes that are drawn to find such a difference."""


@dataclass(frozen=True)
class Family:
    """Landscapes of one kind: the first one, and the ranges for generated ones.

    Arguments:
        build: a function from named numbers to a landscape; without numbers it gives the first one.
        stream: the random stream for the others' numbers; without it there are no others.
        ranges: the numbers in drawing order, each with least and greatest value, and the length of an array.
        name: the name in reports; by default the family's own.
        origin: the origin of the first one.
    """

    build: Callable[..., Landscape]
    stream: tuple[int, ...] = ()
    ranges: dict[str, tuple[float, float] | tuple[float, float, int]] = field(default_factory=dict)
    name: str = ""
    origin: str = "made-up"

    def drawn(self, rng: np.random.Generator) -> Landscape:
        numbers: dict[str, Any] = {}
        for name, (low, high, *count) in self.ranges.items():
            values = rng.uniform(low, high, *map(int, count))
            numbers[name] = values if count else float(values)
        return self.build(**numbers)


def apart(one: Landscape, other: Landscape) -> float:
    """The relative difference of two landscapes in a curvature or in the noise at their optima."""
    return max(
        float(np.abs(other.curvatures / one.curvatures - 1).max()),
        *(
            # The sign of an eigenvector is arbitrary.
            float(np.abs(np.abs(second) - np.abs(first)).max() / np.abs(first).max())
            for first, second in zip(_noise(one), _noise(other), strict=True)
            if first.any()
        ),
    )


def _apart_from(first: Landscape, drawn: Iterator[Landscape]) -> Landscape:
    """The first drawn landscape that differs enough from a given one, or else the most different one."""
    best, most = first, 0.0
    for landscape in drawn:
        off = apart(first, landscape)
        if off > most:
            best, most = landscape, off
        if off > APART:
            break
    return best


def _noise(landscape: Landscape) -> tuple[np.ndarray, np.ndarray]:
    """Uᵀ E[s sᵀ a²] U and the spread of the prompts' gradients, over prompts, arms and rewards."""
    problem, basis = landscape.at(landscape.maximiser), landscape.identifiable
    outcomes = problem.outcomes
    scores = np.stack([problem.policy.scores(x)[arms] for x, arms in enumerate(outcomes.arms)])
    values = (outcomes.probs * outcomes.rewards).sum(axis=1, keepdims=True)
    pushed = (scores @ basis) * (outcomes.rewards - values)[..., None]
    chances = problem.context_probs[:, None] * outcomes.probs
    pulls = np.einsum("xk,xki->xi", outcomes.probs, pushed)
    return (
        np.einsum("xk,xki,xkj->ij", chances, pushed, pushed),
        np.einsum("x,xi,xj->ij", problem.context_probs, pulls, pulls).round(12),
    )


def _tug(height: float, tilt: float, tau: float, stream: int, copies: int = 1) -> Family:
    """Opposed prompts, with heights and widths near the given ones."""

    def build(height_share: float = 1.0, tau_share: float = 1.0) -> LocationBandit:
        return tug(height * height_share, tilt, tau * tau_share, copies)

    return Family(build, (stream,), {"height_share": (0.85, 1.15), "tau_share": (0.95, 1.05)})


FAMILIES = {
    # One prompt with a quadratic return.
    "bowl": Family(bowl, (11,), {"target": (-0.1, 0.1), "tau": (0.38, 0.42)}),
    # One prompt with nearly constant curvature and noise; two prompts with different L, μ and μ'.
    "dome": Family(dome, (16,), {"tilt": (-0.03, 0.03), "height": (0.7, 1.3), "tau": (0.45, 0.49)}),
    "shoulder": Family(shoulder, (17,), {"share": (0.6, 0.75), "steep": (1.6, 2.0)}),
    # One prompt with two local optima.
    "twin": Family(twin),
    # Three prompts, two directions and noisy rewards; then the same with more unequal curvatures.
    "slopes": Family(partial(LocationBandit.bump, [-1.0, 0.0, 1.0], [-0.7, 0.8, 0.3])),
    "steep": Family(partial(LocationBandit.bump, [-0.5, 0.2, 1.4], [-0.7, 0.8, 0.6])),
    "diabetes": Family(diabetes, origin="real"),
    # Two opposed prompts, so that the group size matters.
    "disagreement": Family(disagreement, (12,), {"tilt": (0.17, 0.21), "far": (1.1, 1.3)}),
    # There are more parameters than the return depends on: one direction is flat.
    "tilted": Family(tilted, (13,), {"angle": (0.9, 1.2), "tilt": (0.17, 0.21)}),
    # Two directions of very different noise, for a page.
    "plane": Family(plane, (14,), {"ratio": (0.28, 0.34), "angle": (0.0, 1.5)}),
    # Two and three directions whose noise is strongly correlated; then equal curvatures.
    "twisted": Family(
        twisted, (51,), {"angle": (0.5, 1.1), "reach": (2.2, 2.8), "side": (0.05, 0.2)}
    ),
    "twisted, r = 3": Family(
        partial(twisted, (1.0, 1.3, 1.6), (0.3, 0.27, 0.23, 0.2), angle=0.7, reach=3.2),
        (52,),
        {"angle": (0.5, 1.1), "reach": (3.0, 3.6), "side": (0.05, 0.15)},
    ),
    "ring": Family(
        partial(twisted, (1.0, 1.5**0.5), (0.45, 0.3, 0.25), side=0.0),
        (53,),
        {"angle": (0.1, 1.4), "reach": (2.2, 2.8)},
    ),
    # Three arms: one prompt, two prompts that disagree, and one prompt with a flat direction.
    "triple": Family(_untilted, (21,), {"tilt": (0.2, 0.3), "lift": (0.25, 0.45)}),
    "quarrel": Family(
        partial(triple, tilt=0.25), (22,), {"tilt": (0.2, 0.3), "lift": (0.25, 0.45)}
    ),
    "flat triple": Family(
        partial(_untilted, flat=True), (23,), {"tilt": (0.2, 0.3), "lift": (0.25, 0.45)}
    ),
    # The noise depends on a parameter that is never identified.
    "mixture": Family(mixture_problem, (24,), {"target": (-0.5, 0.5), "noise": (0.5, 0.7)}),
    "calm mixture": Family(
        mixture_problem, (15,), {"target": (0.2, 0.5), "noise": (0.55, 0.65)}, "mixture"
    ),
    # E[s sᵀ a] = 0 at the optimum.
    "ordered": Family(
        partial(ordered_problem, 1), (25, 1), {"bend": (0.8, 1.2, 1), "value": (0.45, 0.55)}
    ),
    "ordered, d = 2": Family(
        partial(ordered_problem, 2), (25, 2), {"bend": (0.8, 1.2, 2), "value": (0.45, 0.55)}
    ),
    "ordered prompts": Family(
        ordered_prompts,
        (25, 3),
        {
            "share": (0.25, 0.45),
            "hard": (0.15, 0.35),
            "easy": (0.6, 0.8),
            "angle": (0.4, 0.9),
            "reach": (1.4, 1.9),
        },
    ),
    # E[‖s‖² a] = 0 but not E[s sᵀ a]: equal curvatures, and unequal ones.
    "norm only": Family(norm_only_problem),
    "uneven": Family(uneven, (26,), {"first": (1.35, 1.45), "second": (2.5, 3.5)}),
    # Opposed prompts with G* of about 3 or larger; rare outer arms; 24 prompts.
    "tug": _tug(0.6, 0.2, 2.0, 31),
    "accord": _tug(0.6, 0.05, 2.0, 32),
    "rare": _tug(0.5, 1.0, 0.5, 33),
    "crowd": _tug(0.6, 0.2, 2.0, 34, copies=12),
    "pairs": _tug(0.6, 0.25, 2.0, 37, copies=2),
    # Opposed prompts, one more likely than the other.
    "lopsided": Family(
        lopsided, (36,), {"share": (0.2, 0.35), "tilt": (0.3, 0.4), "height": (0.7, 0.9)}
    ),
    # Opposed prompts of unequal pass rates, with rewards 0 and 1.
    "gamble": Family(
        gamble, (35,), {"hard": (0.21, 0.25), "easy": (0.5, 0.55), "tilt": (0.18, 0.2)}
    ),
    # Deterministic rewards 0 and 1: an easy prompt and a hard one, whose weights move the optimum.
    "lenient": Family(lenient, (45,), {"tau": (0.7, 0.9), "share": (0.45, 0.55)}),
    # Two directions with different best group sizes.
    "crossing": Family(crossing, (38,), {"flat": (2.5, 3.1), "steep": (3.7, 4.3)}),
}


class Landscapes:
    """The landscapes of a suite, by family: the first one, then those that are generated.

    A family is created once, at its first use, because this searches for its optimum.
    """

    def __init__(self, generated: int = 1, seed: int = 0) -> None:
        self.generated, self.seed = generated, seed
        self._made: dict[str, tuple[LandscapeEntry, ...]] = {}

    def __getitem__(self, family: str) -> tuple[LandscapeEntry, ...]:
        if family not in self._made:
            self._made[family] = tuple(self._entries(family, FAMILIES[family]))
        return self._made[family]

    def _entries(self, name: str, family: Family) -> Iterator[LandscapeEntry]:
        name, first = family.name or name, family.build()
        yield Entry(name, family.origin, first)
        for number in range(self.generated if family.stream else 0):
            rng = np.random.default_rng([self.seed, number, *family.stream])
            drawn = (family.drawn(rng) for _ in range(DRAWS))
            other = _apart_from(first, drawn)
            yield Entry(f"{name}#{self.seed}.{number}", "generated", other)
