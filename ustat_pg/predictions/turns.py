"""Objectives and noise of estimators over turns: closed forms of the means, and of the noise of each turn.

Let qₜ be the chance that turn t is reached, gₜ = E[sₜ Rₜ], μₜ = E[rₜ | reached], and wₜ = 1 - E[1/nₜ |
reached] for the nₜ episodes of a group of G that reach turn t. Then the means are

    episode, to-go, pooled   ∇J = Σₜ gₜ
    episode-mean             (G-1)/G ∇J
    to-go-mean               Σₜ wₜ gₜ,   wₜ = 1 - (1 - (1-qₜ)^G)/(G qₜ)
    summed                   ∇J - Σᵤ μᵤ cᵤ ∇qᵤ, μᵤ fixed, cᵤ = 1 - (1-qᵤ)^(G-1)
    pooled-mean              ∇(J - E[ρ]/G), ρ the group's mean over turns

(result turns). If turns that no other episode reaches are dropped, to-go has Σₜ cₜ gₜ, summed has Σᵤ cᵤ qᵤ
∇μᵤ, and episode and pooled have c₁ ∇J: this is 0 at G = 1, and otherwise ∇J if no episode is empty. The
reason: the baseline of a turn may depend on the other episodes and on the past of the turn, but not on
consequences of the turn's decision.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom

from ..display.numbers import readable
from ..moments.episodes import Episodes, HasEpisodes, episodes_of
from ..rounding import SQUARE
from ..validation import Array, integer, number, one_of, record
from .closed_forms import compared_share, kept_share, turn_push, turn_square

CLIMBS = {
    "episode": "J, the expected return: unbiased",
    "episode-mean": "J, the expected return, times (G-1)/G: the learning rate is rescaled",
    "to-go": "J, the expected return: unbiased",
    "to-go-mean": (
        "each turn's part of J with its own weight: later turns, which fewer episodes reach, have less weight"
    ),
    "summed": (
        "the sum over turns of the mean reward among the episodes that reach the turn, with fixed chances to "
        "reach it (in large groups): it ignores that a decision can keep an episode alive"
    ),
    "pooled": "J, the expected return: unbiased",
    "pooled-mean": (
        "J, the expected return, minus 1/G of the expected mean over the group's turns: the bias falls as 1/G"
    ),
}
"""The objective of each scheme's mean, in words."""

_DISCOUNTED = {
    "to-go": "no objective in general: each turn's discounted return from there on",
    "to-go-mean": "no objective in general: each turn's discounted return, with less weight for later turns",
    "summed": "no objective in general: each turn's discounted rewards, with fixed chances to reach them",
}
"""The objectives under a discount, for schemes that then climb no return."""

_OF_COMPARED = (
    "each turn's part of J times the chance that another episode reaches it: later turns count less"
)
_NOTHING = "nothing, because there is no other episode and lone turns are dropped"


@record()
class TurnMean:
    """The mean of an estimator over turns.

    Arguments:
        scheme: its name.
        group_size: G.
        mean: E ĝ, (d,).
        by_turn: its parts E ĝₜ, ĝₜ = (1/G) Σᵢ sᵢₜ Aᵢₜ, (T, d).
        multiple: c if the mean is c ∇J on this problem; None if it is not a multiple, or ∇J is 0.
        cosine: cosine of the angle between the mean and ∇J; None if one of them is 0.
        climbs: its objective in words.
    """

    scheme: str
    group_size: int
    mean: Array
    by_turn: Array
    multiple: float | None
    cosine: float | None
    climbs: str

    def __str__(self) -> str:
        much = "no multiple of ∇J" if self.multiple is None else f"{readable(self.multiple, 4)} ∇J"
        return f"{self.scheme}, G = {self.group_size}: {much}. It climbs {self.climbs}."


def turn_mean(
    problem: Episodes | HasEpisodes,
    scheme: str,
    group_size: int,
    *,
    discount: float = 1.0,
    lone: str = "reward",
) -> TurnMean:
    """The mean of an estimator over turns, in closed form, and its objective (result turns).

    Arguments:
        problem: a problem with turns, or its list of episodes.
        scheme: one of :data:`~ustat_pg.estimators.TURN_SCHEMES`.
        group_size: G >= 1.
        discount: γ of the returns, in [0, 1]; J stays the undiscounted return.
        lone: "reward" or "zero", as for :func:`~ustat_pg.estimators.turns`.

    >>> from ustat_pg.problems import load_episodes
    >>> problem = load_episodes("ustat:tool")
    >>> turn_mean(problem, "to-go", 4).multiple
    1.0
    >>> problem.gradient()[:2], turn_mean(problem, "summed", 64).mean[:2]
    (array([-0.144,  0.144]), array([ 0.072, -0.072]))
    """
    one_of("scheme", scheme, CLIMBS)
    size = integer("group_size", group_size, minimum=1)
    discount = number("discount", discount, minimum=0.0, maximum=1.0)
    one_of("lone", lone, ("reward", "zero"))
    episodes = episodes_of(problem)
    by_turn = sum(
        (chance * _mean(part, scheme, size, discount, lone) for chance, part in episodes.prompts()),
        np.zeros(episodes.scores.shape[1:]),
    )
    mean, target = by_turn.sum(axis=0), episodes.gradient()
    square, length = float(target @ target), float(mean @ mean)
    terms = episodes.probs @ (_norms(episodes) * episodes.to_go**2).sum(axis=1)
    # A square below this is 0 up to rounding.
    least = SQUARE * float(terms)
    multiple = float(mean @ target) / square if square > least else None
    if multiple is not None and float(((mean - multiple * target) ** 2).sum()) > least:
        multiple = None
    known = square > least and length > least
    cosine = float(mean @ target) / (square * length) ** 0.5 if known else None
    rounded = None if multiple is None else round(multiple, 12)
    climbs = CLIMBS[scheme]
    if lone == "zero" and scheme == "to-go":
        climbs = _OF_COMPARED
    if lone == "zero" and size == 1 and not scheme.endswith("-mean"):
        climbs = _NOTHING
    elif discount < 1:
        climbs = _DISCOUNTED.get(
            scheme, climbs.replace("expected return", "expected discounted return")
        )
    return TurnMean(scheme, size, mean, by_turn, rounded, cosine, climbs)


def _mean(part: Episodes, scheme: str, size: int, discount: float, lone: str) -> Array:
    """The mean E ĝₜ at one prompt, (T, d)."""
    turns = np.arange(part.rewards.shape[1])
    fading = np.triu(discount ** np.maximum(turns - turns[:, None], 0))
    returns = part.rewards @ fading.T * part.reached
    if scheme.startswith(("episode", "pooled")):
        returns = returns[:, :1] * part.reached
    plain = _pull(part, returns)
    reach = _reach(part)
    if scheme == "pooled-mean":
        pool = _Pool(part, returns[:, 0], size)
        return plain - _pull(part, part.reached * pool.mean()[:, None])
    # An entry is present if the whole episode is, or if the turn is.
    there = reach[:1] if scheme.startswith(("episode", "pooled")) else reach
    if scheme.endswith("-mean"):
        return plain * kept_share(there, size)[:, None]
    # The chance that another episode is present.
    compared = compared_share(there, size)
    kept = compared if lone == "zero" else np.ones(len(there))
    if scheme == "summed":
        means = compared * (part.probs @ part.rewards) / reach
        pays = part.rewards * kept - part.reached * means
        return _pull(part, pays @ fading.T)
    return plain * kept[:, None]


def _pull(part: Episodes, advantages: Array) -> Array:
    """E[sₜ Aₜ] of one episode's advantages (E, T), (T, d)."""
    pull: Array = np.einsum("et,etd->td", part.probs[:, None] * advantages, part.scores)
    return pull


def _norms(part: Episodes) -> Array:
    """‖sₜ‖², (E, T), without a copy of the scores."""
    return np.einsum("etd,etd->et", part.scores, part.scores)


def _reach(part: Episodes) -> Array:
    """qₜ, the chance that an episode of the prompt reaches turn t, (T,); 1 if no episode does."""
    # Rounding may put the sum of all probabilities above 1.
    reach = np.minimum(part.probs @ part.reached, 1.0)
    return np.where(reach > 0, reach, 1.0)


class _Pool:
    """The first two moments of the group's mean over turns ρ = S/N, for N turns with returns that add up to
    S.

    1/N = ∫₀¹ tᴺ⁻¹ dt and 1/N² = -∫₀¹ log(t) tᴺ⁻¹ dt, so episodes are independent at each t.
    """

    def __init__(self, part: Episodes, returns: Array, size: int) -> None:
        self.part, self.returns, self.size = part, returns, size
        self.lengths, most = part.reached.sum(axis=1), part.reached.shape[1]
        self.paid = self.lengths * returns
        t, weights = _nodes(size * most)
        self.over, self.over_square = weights / t, -np.log(t) * weights / t
        self.powers = t[:, None] ** np.arange(most + 1)
        self.sums = [
            self.powers @ np.bincount(self.lengths, part.probs * self.paid**k, most + 1)
            for k in range(3)
        ]

    def others(self, count: int) -> tuple[Array, Array, Array]:
        """E tᴺ, E S tᴺ and E S² tᴺ for a number of episodes, at the nodes."""
        one, paid, square = self.sums
        whole, but_one, but_two = (one ** max(count - left, 0) for left in range(3))
        pairs = count * (count - 1) * paid**2 * but_two
        return whole, count * paid * but_one, count * square * but_one + pairs

    def mean(self) -> Array:
        """E[ρ | one episode], (E,), for episodes with turns."""
        whole, paid, _ = self.others(self.size - 1)
        return self.paid * self._at(self.over * whole) + self._at(self.over * paid)

    def square(self) -> Array:
        """E[ρ² | one episode], (E,), for episodes with turns."""
        whole, paid, square = (self._at(self.over_square * of) for of in self.others(self.size - 1))
        return self.paid**2 * whole + 2 * self.paid * paid + square

    def _at(self, weights: Array) -> Array:
        integrals: Array = (weights @ self.powers)[self.lengths]
        return integrals

    def pair(self, turn: int) -> float:
        """E s·s' (R - ρ)(R' - ρ) of two episodes and their scores of a turn."""
        weights = self.part.probs * [
            np.ones(len(self.paid)), self.returns, self.paid, self.returns * self.paid, self.paid**2,
        ]  # fmt: skip
        pulls = np.zeros((len(weights), self.powers.shape[1], self.part.d))
        for length in range(turn + 1, self.powers.shape[1]):
            rows = self.lengths == length
            pulls[:, length] = weights[:, rows] @ self.part.scores[rows, turn]

        def both(one: int, other: int) -> Array:
            grams = pulls[one] @ pulls[other].T
            products: Array = ((self.powers @ grams) * self.powers).sum(axis=1)
            return products

        plain, returns, paid, crossed, squares = range(5)
        whole, of_others, square = self.others(self.size - 2)
        once = (both(crossed, plain) + both(returns, paid)) * whole
        once += both(returns, plain) * of_others
        twice = 2 * (both(squares, plain) + both(paid, paid)) * whole
        twice += 4 * both(paid, plain) * of_others + both(plain, plain) * square
        push = pulls[returns].sum(axis=0)
        return float(push @ push - 2 * self.over @ once + self.over_square @ twice)


def _nodes(degree: int) -> tuple[Array, Array]:
    """Nodes and weights in (0, 1) for polynomials up to a degree with no negative coefficient, also times
    -log t.

    Sixteen of Gauss and Legendre in each of [1/2, 3/4], [3/4, 7/8], ... and in the last, of length h at most
    1/degree. The ellipse around a panel with half-axes that add up to 3 + √8 of its half reaches as far
    as 1, around the last to 1 + h: there such a polynomial is at most e times its value at 1, and the
    error at most 64/15 · e/2 · (3 + √8)⁻³² / (1 - (3 + √8)⁻²) = 2e-24 of that value. Panels also halve
    towards 0 because of the logarithm; the part below 2⁻⁶⁰ is negligible.
    """
    nearest = max(int(degree) - 1, 1).bit_length()
    low, high = 0.5 ** np.arange(60, 0, -1), 1 - 0.5 ** np.arange(2, nearest + 1)
    ends = np.concatenate([[0.0], low, high, [1.0]])
    points, weights = np.polynomial.legendre.leggauss(16)
    half = np.diff(ends)[:, None] / 2
    return (ends[:-1, None] + half * (1 + points)).ravel(), (half * weights).ravel()


def turn_noise(problem: Episodes | HasEpisodes, scheme: str, group_size: int) -> Array:
    """The second moment E‖ĝₜ‖² of each turn's part of one group's gradient, (T,), in closed form (result
    turns).

    ĝₜ = (1/G) Σᵢ sᵢₜ Aᵢₜ is the estimate in turn t's own parameters, if turns share no parameters.

    Arguments:
        problem: a problem with turns, or its list of episodes.
        scheme: "none" (returns Rₜ without a baseline), "to-go", "episode" or "pooled-mean".
        group_size: G >= 1.

    >>> from ustat_pg.problems import load_episodes
    >>> problem = load_episodes("ustat:tool")
    >>> [turn_noise(problem, scheme, 8).round(4) for scheme in ("to-go", "episode")]
    [array([0.0535, 0.0094]), array([0.0535, 0.0052])]
    """
    one_of("scheme", scheme, ("none", "to-go", "episode", "pooled-mean"))
    size = integer("group_size", group_size, minimum=1)
    noise = np.zeros(episodes_of(problem).rewards.shape[1])
    for chance, part in episodes_of(problem).prompts():
        noise += chance * _noise(part, scheme, size)
    return noise


def _noise(part: Episodes, scheme: str, size: int) -> Array:
    probs, norms, reach = part.probs, _norms(part), _reach(part)
    if scheme == "pooled-mean":
        # All returns minus their mean give the same result with less rounding.
        pool = _Pool(part, part.to_go[:, 0] - probs @ part.to_go[:, 0], size)
        squares = pool.returns * (pool.returns - 2 * pool.mean()) + pool.square()
        pairs = [(size - 1) * pool.pair(turn) for turn in range(len(reach))]
        return (probs @ (norms * (squares * (pool.lengths > 0))[:, None]) + pairs) / size
    returns = part.to_go
    if scheme == "episode":
        returns, reach = returns[:, :1], reach[:1]
    value = (probs @ returns) / reach
    variance = (probs @ returns**2) / reach - value**2
    f0 = probs @ norms
    square = (_pull(part, part.to_go) ** 2).sum(axis=1)
    f1 = probs @ (norms * (returns - value))
    f2 = probs @ (norms * (returns - value) ** 2)
    known = (f0, f1, f2), (value, variance)
    if scheme == "none":
        return np.asarray(turn_square(size, *known, alone=1, over=0, push=turn_push(size, square)))
    # The baseline is the mean over the present ones, or 0 if there are none.
    alone = (1 - reach) ** (size - 1)
    one_over = _mean_of(size - 1, reach, lambda k: np.where(k > 0, 1 / np.maximum(k, 1), 0.0))
    twice = _mean_of(size - 2, reach, lambda k: 1 / (k + 1.0) ** 2) if size > 1 else 0.0
    push = turn_push(size, square, twice)
    return np.asarray(turn_square(size, *known, alone, one_over, push))


def _mean_of(count: int, chance: Array, of: Callable[[NDArray[np.int64]], Array]) -> Array:
    """E f(k) for binomial k, for each chance."""
    k = np.arange(count + 1, dtype=np.int64)
    mean: Array = binom.pmf(k, count, chance[:, None]) @ of(k)
    return mean
