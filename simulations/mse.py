"""Theorem 2: MSE of grpo at one prompt = tr Σ/G + (σ² tr F + ‖g‖²) / (G (G-1)), exactly.

The checks use single prompts, G = 2 to 32, and G = 1 if a baseline needs no group. They cover the MSE of grpo
and of every other estimator with a closed form; their covariance matrices along fixed random directions,
which show an error of any entry; and the explicit bound on the second-order term, with cases that attain it.

The *anchors* of these results are checked too: E s = 0, and the mean of each estimate is the derivative of J,
    computed from values of J without scores.

Falsified by an enumerated MSE that differs by more than rounding, or a simulated one whose interval
misses the prediction. Small G gives the sharpest test: at G = 2 the two orders have equal size.

Cost: half a million groups for most checks, a few million for the nearest rivals.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np

from ustat_pg.engines import Distance, Estimator, GradientCell, Mixed
from ustat_pg.engines.gradients.bounds import largest_norm
from ustat_pg.engines.gradients.cell import direction
from ustat_pg.moments.record import Moments
from ustat_pg.predictions import explicit_bound, gradient_mse
from ustat_pg.problems import SoftmaxBandit

from .evidence import Check, Known, Linear, Statement, at_most, equal, mean_of
from .problems import BanditEntry, Suite, mse_of
from .shared.numerics import Approximate
from .shared.peers import Setting, Weights, along, error, mean, no_mean_score, peers, scale, slope
from .shared.runs import GRPO, ORACLE

TIGHTER = "explicit bound: a quarter of it"
SHORT = "E ghat = (G-1)/G g"

LARGE = 32
"""The largest group size of enumeration on problems of few outcomes."""

LARGE_OUTCOMES = 4

ONE_OUTPUT = ("vanilla", "oracle", "minimum-variance")
"""Estimators that need no other output, in addition to a constant and a critic."""


def rivals(m: Moments, group_size: int) -> dict[str, float]:
    pairs = group_size * (group_size - 1)
    first = float(m.norm_squared_advantage[0] - m.gradient_sq[0]) / group_size
    noise = float(m.reward_variance[0] * m.fisher_trace[0])
    mean_square = float((m.reward_variance[0] + m.value[0] ** 2) * m.fisher_trace[0])
    g2 = float(m.gradient_sq[0])
    return {
        "no second-order term": first,
        "G^2 for G(G-1)": first + (noise + g2) / group_size**2,
        "||g||^2 missing": first + noise / pairs,
        "sigma2 replaced by E z^2": first + (mean_square + g2) / pairs,
        "sigma2 tr F missing": first + g2 / pairs,
        "explicit bound taken as the value": first + explicit_bound(m, group_size),
        "Sigma without - g g^T": first + g2 / group_size + (noise + g2) / pairs,
    }


OF_ERRORS = (
    "no second-order term",
    "G^2 for G(G-1)",
    "||g||^2 missing",
    "sigma2 replaced by E z^2",
    "sigma2 tr F missing",
    "explicit bound taken as the value",
    "Sigma without - g g^T",
    TIGHTER,
)
"""Rivals of an error; the other rival is of a mean, only on bandits."""
RIVALS = (*OF_ERRORS, SHORT)


def checks(suite: Suite) -> list[Check]:
    """The checks of single prompts, and of errors, means and noise on bandits for the remaining cases."""
    return on_networks(suite) + _of_bandits(suite)


RIVALS_ON_NETWORKS = OF_ERRORS


def on_networks(suite: Suite) -> list[Check]:
    """Checks of single prompts at every group size, and of other estimators and matrices at small ones."""
    made: list[Check] = []
    for entry in suite.single_prompts:
        few = entry.problem.outcomes.counts[0] <= LARGE_OUTCOMES
        sizes = dict.fromkeys((*suite.group_sizes, 8, *((LARGE,) if few else ())))
        made += [_grpo(entry, group_size) for group_size in sizes]
        made += _others(entry, suite.group_sizes[0])
    return made


def _grpo(entry: BanditEntry, group_size: int) -> Check:
    at = Setting(entry, group_size)

    def statement() -> Statement:
        moments = entry.problem.moments()
        value = gradient_mse(moments, "grpo", group_size).mse
        return equal(value, rivals(moments, group_size), scale=scale(at.cell, GRPO))

    return at.check("grpo", mse_of("grpo"), statement)


def _others(entry: BanditEntry, group_size: int) -> list[Check]:
    """The checks of the other estimators, the matrices, grpo's second-order term and its explicit bound."""
    at, matrices = Setting(entry, group_size), Setting(entry, group_size + 1)
    grpo, *others = peers(entry.problem)

    def bounded() -> Statement:
        moments = entry.problem.moments()
        bound = explicit_bound(moments, group_size)
        second = gradient_mse(moments, "grpo", group_size).second_order_term
        return at_most(bound, second, {TIGHTER: bound / 4})

    made = [check for peer in others for check in (error(at, peer), along(matrices, peer, 0))]
    made += [along(matrices, grpo, number) for number in (0, 1)]
    return [*made, at.check("explicit bound", Distance(GRPO, ORACLE), bounded)]


def _of_bandits(suite: Suite) -> list[Check]:
    """The checks only for bandits: anchors, records of one prompt of several, bounds."""
    repeated, coins = [suite.repeated, *suite.repeats()], [*suite.coins()]
    made: list[Check] = []
    for entry in (*suite.single_prompts, *repeated):
        made += _anchors(entry, 8)
    made += [_grpo(entry, size) for entry in suite.wide() for size in suite.group_sizes]
    made += map(_bounded, (suite.skewed, *coins, *repeated))
    for entry in (suite.several, *repeated):
        for x, estimator in product(range(entry.problem.contexts), ("grpo", "group-mean")):
            made.append(_alone(entry, x, estimator))
    for entry in (suite.skewed, *repeated, *coins):
        made += _reinforce(entry)
    for entry in (*suite.sure_coins(), *repeated):
        made += _terms(entry, suite.group_sizes[0])
    made += [_mixed(entry, 3) for entry in (suite.skewed, *coins)]
    return made


def _anchors(entry: BanditEntry, group_size: int) -> list[Check]:
    """The checks of E s = 0 and E ĝ = ∇J, along the steepest of a few fixed directions."""
    at, gradient = Setting(entry, group_size), entry.problem.gradient()
    steepest = max(range(4), key=lambda n: abs(gradient @ direction(entry.problem, n)))
    rivals_of = {"grpo": (SHORT,), "group-mean": (), "critic": ()}
    means = [
        mean(at, peer, steepest, *rivals_of[peer.name])
        for peer in peers(entry.problem)
        if peer.name in rivals_of
    ]
    return [no_mean_score(at, 0), *means]


def _bounded(entry: BanditEntry) -> Check:
    """The check that no estimate, of any pair of outputs, is longer than the bound for intervals."""
    size, outcomes = 2, entry.problem.outcomes
    possible = outcomes.probs[0] > 0
    rewards = outcomes.rewards[0][possible]
    scores = entry.problem.policy.scores(0)[outcomes.arms[0][possible]]
    apart = np.linalg.norm(scores[:, None] - scores, axis=-1)
    longest = float((apart * np.abs(np.subtract.outer(rewards, rewards))).max() / 2)
    statement = at_most(largest_norm(entry.problem, GRPO, size), longest)
    return entry.check(f"G={size}: no estimate longer than its bound", Known(longest), statement)


def _alone(entry: BanditEntry, x: int, estimator: str) -> Check:
    """The record of one prompt from the problem's record, compared with the problem of that prompt alone."""
    cell = GradientCell(entry.problem.restrict([x]), 2)
    value = gradient_mse(entry.problem.moments().at(x), estimator, 2).mse
    statement = equal(value, scale=scale(cell, Estimator(estimator)))
    name = f"prompt {x} alone: {estimator}"
    return entry.check(name, mean_of(cell, mse_of(estimator)), statement)


def _terms(entry: BanditEntry, group_size: int) -> Iterator[Check]:
    """Checks of the prediction's terms over two prompts, and of the bounds in cases that attain them."""
    at, moments = Setting(entry, group_size, 2), entry.problem.moments()
    for peer in peers(entry.problem):
        yield along(at, peer, 0)
    of, size = gradient_mse(moments, "grpo", group_size, 2), scale(at.cell, GRPO)
    apart, whole = (Distance(GRPO, ORACLE), 1.0), (mse_of("grpo"), 1.0)
    first: Weights = (whole, (apart[0], -1.0))
    terms: list[tuple[str, Weights, float]] = [
        ("second-order term", (apart,), of.second_order_term),
        ("first-order and prompt terms", first, of.prompt_term + of.first_order_term),
        ("MSE of the oracle beside it", ((mse_of("oracle"), 1.0),), of.oracle_mse),
        ("MSE of no baseline beside it", ((mse_of("vanilla"), 1.0),), of.vanilla_mse),
    ]
    # Two equal arms with sure rewards reach half of the bound: σ² = R²/4 and ‖g‖² = σ² tr F.
    if entry.name.startswith("sure"):
        twice, bound = ((apart[0], 2.0),), explicit_bound(moments, group_size, 2)
        terms.append(("half the explicit bound attained", twice, bound))
        terms.append(("paper's bound attained", (whole, apart), float(of.paper_bound or 0)))
    for what, weights, value in terms:
        yield entry.check(f"{at.name}: {what}", Linear(at.cell, weights), equal(value, scale=size))
    (square, off), noise = _squared_slope(entry.problem), float(of.noise_to_signal or 0)
    yield entry.check(
        f"{at.name}: noise to signal",
        Linear(at.cell, ((mse_of("grpo"), 1 / square),)),
        equal(noise, scale=size / square, digits=noise * off / square),
    )


def _squared_slope(problem: SoftmaxBandit) -> Approximate:
    """‖∇J‖², computed from values of J."""
    slopes = [slope(problem, unit) for unit in np.eye(problem.d)]
    return Approximate(
        sum(value**2 for value, _ in slopes),
        sum(error * (2 * abs(value) + error) for value, error in slopes),
    )


def _reinforce(entry: BanditEntry) -> Iterator[Check]:
    """Checks with one output of one prompt, as in REINFORCE, for estimators that need no other output."""
    at = Setting(entry, 1)
    none, *others = peers(entry.problem, ONE_OUTPUT)

    def statement() -> Statement:
        value = none.squared_error(at.cell)
        wrong = {"Sigma without - g g^T": value + _squared_slope(entry.problem).value}
        return equal(value, wrong, scale=scale(at.cell, none.estimator))

    yield at.check(none.name, mse_of("vanilla"), statement)
    for peer in others:
        yield error(at, peer)


def _mixed(entry: BanditEntry, group_size: int) -> Check:
    """The share of groups whose rewards are not all equal."""
    share = 1 - float(entry.problem.frac_reward_zero_std(group_size)[0])
    at, what = Setting(entry, group_size), "groups with unequal rewards"
    return at.check(what, Mixed(), lambda: equal(share, scale=1.0))
