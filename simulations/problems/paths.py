"""Problems with the points of a path of policies as prompts; the mean estimate is the work along it.

A gradient does the work E Φ(end) - E Φ(start) along every path, and 0 around a loop. An estimator does
the work ∫ ⟨E ĝ, dθ⟩; with the path's points as prompts, drawn with Gauss-Legendre weights, and
scores along the path, this is the mean of one number. So work is enumerated or sampled like any mean.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import log_softmax

from ustat_pg.engines import Estimator, GradientCell, Projection, SquaredError
from ustat_pg.engines.gradients.cell import direction
from ustat_pg.estimators import kl_coefficients, kl_values
from ustat_pg.policies import OutputSpace
from ustat_pg.predictions import aggregated_mean, gradient_mse, kl_gradient, kl_penalty
from ustat_pg.problems import SoftmaxBandit, WeightedBandit
from ustat_pg.validation import Array

from ..evidence import Linear, mean_of
from .entry import Entry, streams

if TYPE_CHECKING:
    from .suite import Suite


POINTS = 8
"""The number of points on a path of tilts; weights are exact for polynomials of degree 15."""

POINTS_OF_TOKENS = 16
"""The number of points on a leg of a path of token policies; its ends are farther apart."""

TURNED_SEED = 20261123
"""The seed of the made-up policies. Its value is arbitrary, but fixed so that draws stay the same."""

POINTS_OF_A_SIDE = 6
"""The number of points on each side of a loop; weights are exact for polynomials of degree 11."""

Divisor = Callable[[Array, float], Array]
"""Divisors of tokens from the lengths of outputs and their mean, the limit for token-mean."""


def _points(count: int) -> tuple[Array, Array]:
    """Nodes in (0, 1) and their weights, which sum to 1."""
    places, weights = np.polynomial.legendre.leggauss(count)
    return (places + 1) / 2, weights / 2


def tilted(problem: SoftmaxBandit, amount: float) -> SoftmaxBandit:
    """The problem with each output's probability times exp(amount · its mean reward), as a policy with
    this one parameter.
    """
    # Rounding to few digits gives the same draws on machines whose last bits differ.
    rewards = problem.mean_rewards.round(12)
    return SoftmaxBandit.linear(
        problem.context_probs,
        rewards[..., None],
        [0.0],
        problem.reward_values,
        problem.reward_probs,
        problem.policy.logits.round(12) + amount * rewards,
    )


def along(problem: SoftmaxBandit, low: float, high: float) -> SoftmaxBandit:
    """A problem with the points of the path between two tilts as prompts, and scores along it."""
    places, weights = _points(POINTS)
    points = [tilted(problem, low + place * (high - low)) for place in places]
    return SoftmaxBandit.linear(
        np.concatenate([weight * problem.context_probs for weight in weights]),
        (high - low) * np.tile(points[0].mean_rewards.round(12)[..., None], (POINTS, 1, 1)),
        [0.0],
        np.tile(problem.reward_values, (POINTS, 1, 1)),
        np.tile(problem.reward_probs, (POINTS, 1, 1)),
        np.concatenate([point.policy.logits for point in points]),
    )


def mean_along(cell: GradientCell, weights: Sequence[tuple[Estimator, float]]) -> Linear:
    """A combination of estimators' means in the one parameter of a cell."""
    unit = float(direction(cell.problem, 0)[0])
    gradient = float(cell.problem.gradient()[0])
    terms = tuple((Projection(estimator), share * unit) for estimator, share in weights)
    return Linear(cell, terms, gradient * sum(share for _, share in weights))


@dataclass(frozen=True)
class TokenPath:
    """A path of token policies, with the reference policy of a penalty.

    Arguments:
        space: the outputs.
        corners: logits of every prefix at the corners of the path, (C, N, A).
        reference: logits of the reference policy, (N, A).
    """

    space: OutputSpace
    corners: Array
    reference: Array

    @classmethod
    def between(cls, space: OutputSpace, reference: Array, end: Array) -> TokenPath:
        """The straight path from the reference policy to another, logits (N, A) each."""
        return cls(space, np.stack([reference, end]), reference)

    @property
    def loop(self) -> TokenPath:
        """The path to the end that moves the first token's logits first, and the path back that does so."""
        begin, end = self.corners[0], self.corners[-1]
        first = np.arange(len(begin))[:, None] == 0
        there, back = np.where(first, end, begin), np.where(first, begin, end)
        return replace(self, corners=np.stack([begin, there, end, back, begin]))

    @property
    def points(self) -> list[tuple[float, Array, Array]]:
        """Weights, log-probabilities of choices (N, A) and the change of logits on the leg, (N, A)."""
        places, weights = _points(POINTS_OF_TOKENS)
        return [
            (float(weight), log_softmax(one + place * (other - one), axis=-1), other - one)
            for one, other in zip(self.corners, self.corners[1:], strict=False)
            for place, weight in zip(places, weights, strict=True)
        ]

    def divergence(self, kind: str, place: str = "loss") -> float:
        """The divergence at the path's end that a penalty on whole outputs, each as one token, reduces."""
        end, reference = (
            np.exp(self.space.along(log_softmax(logits, axis=-1)))
            for logits in (self.corners[-1], self.reference)
        )
        return kl_penalty(end, reference, kind, place)

    def predicted(self, kind: str, place: str) -> float:
        """The work of a penalty, from its part of the mean at every point."""
        reference = np.exp(log_softmax(self.reference, axis=-1))
        of_outputs = {"prefixes": self.space.nodes, "tokens": self.space.outputs}
        return sum(
            weight
            * float((move * kl_gradient(np.exp(logs), reference, kind, place, **of_outputs)).sum())
            for weight, logs, move in self.points
        )

    def drawn(self, kind: str, place: str) -> Linear:
        """The work of a penalty from drawn outputs: the coefficients and scores of their tokens."""
        return self._mean(lambda ratios: kl_coefficients(ratios, kind, place))

    def rewarded(self, kind: str) -> Linear:
        """The work of an estimate of the divergence that is subtracted from each output's reward."""

        def of_tokens(ratios: Array) -> Array:
            taken = -kl_values(ratios, kind).sum(axis=1, keepdims=True)
            return np.repeat(taken, ratios.shape[1], axis=1)

        return self._mean(of_tokens)

    def noise(self, kind: str, place: str) -> Linear:
        """The mean square of the penalty along the path."""
        cell = GradientCell(self._weighted(lambda ratios: kl_coefficients(ratios, kind, place)), 1)
        # There is no target, so errors are the estimates.
        return mean_of(cell, SquaredError(Estimator("vanilla")))

    def fisher(self) -> float:
        """The mean square of the path's scores, Fisher's information along it, for outputs of one token."""
        nodes, tokens = self.space.nodes, np.maximum(self.space.outputs, 0)
        legs = len(self.corners) - 1
        features = [
            legs * np.where(nodes >= 0, move[nodes, tokens], 0.0).sum(axis=1, keepdims=True)
            for _, _, move in self.points
        ]
        logs = np.stack([self.space.along(here) for _, here, _ in self.points])
        weights = np.array([weight / legs for weight, _, _ in self.points])
        ones = np.ones((len(logs), self.space.count, 1))
        bandit = SoftmaxBandit.linear(weights, features, [0.0], ones, ones, logs)
        return gradient_mse(bandit.moments(), "vanilla", 1).mse

    def _mean(self, coefficients: Callable[[Array], Array]) -> Linear:
        cell = GradientCell(self._weighted(coefficients), 1)
        return mean_along(cell, [(Estimator("vanilla"), 1.0)])

    def _weighted(self, coefficients: Callable[[Array], Array]) -> WeightedBandit:
        """A problem with the path's points as prompts; coefficients of tokens' scores weight the outputs."""
        nodes, tokens = self.space.nodes, np.maximum(self.space.outputs, 0)
        inside, reference = nodes >= 0, log_softmax(self.reference, axis=-1)
        legs, laws, work = len(self.corners) - 1, [], []
        for _, here, move in self.points:
            ratios = np.where(inside, (reference - here)[nodes, tokens], 0.0)
            centred = move - (np.exp(here) * move).sum(axis=-1, keepdims=True)
            scores = np.where(inside, centred[nodes, tokens], 0.0)
            laws.append(self.space.along(here))
            work.append(legs * (coefficients(ratios) * scores).sum(axis=1))
        weights = np.array([weight / legs for weight, _, _ in self.points])
        ones = np.ones((len(laws), self.space.count, 1))
        policy = SoftmaxBandit.tabular(weights, np.stack(laws).round(12), ones, ones)
        return WeightedBandit.of(policy, np.stack(work)[..., None], np.zeros((len(laws), 1)))


SPACES = {
    "one token": OutputSpace(4, 1),
    "two tokens": OutputSpace(2, 2),
    "up to three tokens": OutputSpace(2, 3, end=True),
}
"""Spaces with outputs of one token, of two tokens, and of unequal lengths."""


def penalised(suite: Suite) -> Iterator[Entry[TokenPath]]:
    """Drawn references, and policies that prefer one token. For bandits, the uniform policy
    and a classifier of digits.
    """
    rng = np.random.default_rng(TURNED_SEED)
    for name, space in SPACES.items():
        path = _turned(space, rng)
        if suite.size != "smoke" or name != "two tokens":
            yield Entry(name, "made-up", path)
    kind = "up to three tokens"
    for name, origin, rng in streams(kind, suite.seed, max(suite.generated // 2, 1), 47):
        yield Entry(name, origin, _turned(SPACES[kind], rng))
    if suite.on != "bandit":
        return
    logits = suite.digits_rows(1).problem.policy.logits.round(6)
    path = TokenPath.between(OutputSpace(logits.shape[1], 1), logits, np.zeros(logits.shape))
    yield Entry("a digit", "real", path)


def _turned(space: OutputSpace, rng: np.random.Generator) -> TokenPath:
    """The path to a policy that prefers the first token, with different logits at the start and later: equal
    prefixes would give little work around a loop.
    """
    reference, end = rng.normal(scale=0.3, size=(2, space.prefixes, space.symbols)).round(6)
    end[:2, 0] += 3.0
    return TokenPath.between(space, reference, end)


def around_a_loop(
    problem: SoftmaxBandit,
    lengths: Array,
    divisor: Divisor,
    group_size: int,
    first: Array,
    second: Array,
) -> tuple[WeightedBandit, float]:
    """A problem with the points of a loop around a parallelogram as prompts, and the predicted work of the
    mean, point by point.
    """
    around = np.array([(-1, -1), (1, -1), (1, 1), (-1, 1), (-1, -1)])
    corners = around @ np.stack([first, second]) / 2
    places, shares = _points(POINTS_OF_A_SIDE)
    chances, logs, scores, work = [], [], [], 0.0
    for begin, end in pairwise(corners):
        for place, share in zip(places, shares, strict=True):
            there = problem.with_theta(problem.policy.theta + begin + place * (end - begin))
            mean_tokens = float(there.context_probs @ there.policy.probs @ lengths)
            weights = 1 / divisor(lengths, mean_tokens)
            of_prompts = map(there.policy.scores, range(there.contexts))
            along = np.stack([score @ (end - begin) for score in of_prompts])
            chances.append(share / 4 * there.context_probs)
            logs.append(there.policy.logits.round(12))
            scores.append(4 * weights * along)
            moments = there.length_moments(tuple(lengths))
            how, times = ("sequence-mean", 1) if np.ptp(weights) else ("sequence-sum", weights[0])
            mean = aggregated_mean(moments, how, "grpo", group_size) * times
            work += float(share * mean @ (end - begin))
    count = len(logs)
    policy = SoftmaxBandit.tabular(
        np.concatenate(chances),
        np.concatenate(logs),
        np.tile(problem.reward_values, (count, 1, 1)),
        np.tile(problem.reward_probs, (count, 1, 1)),
    )
    vectors = np.concatenate(scores)[..., None]
    return WeightedBandit.of(policy, vectors, np.zeros((len(vectors), 1))), work
