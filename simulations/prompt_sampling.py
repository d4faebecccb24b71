"""Beyond the paper: which prompts to draw. Any law of prompts leaves the gradient unbiased if each prompt is
weighted by ρ/q; the law and the group sizes with the least outputs times variance are known, and so is what
is climbed without these weights.

The checks use problems of several prompts. They cover the mean along a direction and the error under a law,
with and without weights, in a minibatch too; the cost of the best law at one group size and at one for each
prompt; the mean if weights are divided by their mean over the minibatch; a law that undoes the weights of
std; and prompts that earlier rollouts drop.

Falsified by an enumerated mean or cost that differs by more than rounding, or a simulated one whose interval
misses.

Cost: some 10⁵ groups; the compiled engine draws those of one group size.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ustat_pg.engines import Estimator, GradientCell, GroupSize, SquaredError
from ustat_pg.predictions import (
    PromptLaw,
    best_law,
    gradient_mse,
    known_rates_bound,
    normalised_factor,
    sampled_error,
    screened_share,
    unweighted_law,
)
from ustat_pg.problems import SoftmaxBandit, WeightedBandit
from ustat_pg.validation import Array

from .engines import NormalisedCell, ScreenedCell, SizedCell
from .evidence import Check, Linear, equal, mean_of
from .problems import BanditEntry, Suite
from .shared.margins import COARSE
from .shared.peers import scale, telling
from .shared.runs import GRPO

FORGOTTEN = "without weights it is unbiased too"
AS_DATA = "the weights enter the error once, not squared"
MIDDLE = "q ~ ρ p(1-p) is the best law"
DATA = "drawing by the data's law costs no more"
SIZES = "sizes by pass rates save as much"
NORMALISED = "weights over their mean in the batch leave it unbiased"
STD = "std climbs the same under every law"
EXACT = "dropped by estimated rates as by exact ones"
HARMLESS = "dropping solved prompts changes nothing"
RIVALS_ON_NETWORKS = (FORGOTTEN, AS_DATA, NORMALISED)
"""The pass rates of a network's prompts may be too alike for the best law to save much."""

RIVALS = (FORGOTTEN, AS_DATA, MIDDLE, DATA, SIZES, NORMALISED, STD, EXACT, HARMLESS)

G, BATCH = 3, 2
"""The group size and the number of prompts of a minibatch."""
ODDS = (1.0, 4.0, 0.5)
"""The odds at which prompts are drawn, over those of the data, in turn."""
LARGEST = 5
"""The largest group, if each prompt has its own size."""
STD_SIZE = 5
"""The group size for std, whose weights differ between prompts only from 4 on."""
SCREENED, KEPT, USED = 2, (0, 1), 2
"""Screening rollouts, the successes with which a prompt is kept, and the outputs that are used then."""
CLEAR = 0.05
"""The least distance of a rival, as a share of the value, for a check that names it; smaller ones need 10⁶
draws.
"""


def checks(suite: Suite) -> Iterator[Check]:
    """All checks on bandits of few outputs."""
    for entry in suite.drawn_unequally:
        yield from under_a_law(entry)
        yield from least_cost(entry)
        yield from own_sizes(entry)
        yield from shared_weights(entry)
        yield from levelled(entry)
        yield from screened(entry)


def on_networks(suite: Suite) -> Iterator[Check]:
    """The laws and their cost on problems of several prompts."""
    for entry in suite.token_problems:
        if entry.problem.contexts > 1:
            yield from under_a_law(entry)
            yield from least_cost(entry, denied=())
            yield from shared_weights(entry)


@dataclass(frozen=True)
class Drawn:
    """A problem with prompts drawn by a law, and the factors on their estimates; errors are from ∇J."""

    entry: BanditEntry
    law: Array
    weights: Array

    @cached_property
    def problem(self) -> WeightedBandit:
        own = self.entry.problem
        drawn = SoftmaxBandit(own.policy, self.law, own.reward_values, own.reward_probs)
        weights = np.broadcast_to(self.weights[:, None], (own.contexts, own.arms))
        return WeightedBandit.of(drawn, weights, np.tile(own.gradient(), (own.contexts, 1)))


def weighted(entry: BanditEntry, law: Array) -> Drawn:
    """The prompts drawn by a law and weighted by ρ/q, which is computed here from the definition."""
    return Drawn(entry, law, entry.problem.context_probs / law)


def tilted(entry: BanditEntry) -> Array:
    """A law other than the data's."""
    probs = entry.problem.context_probs
    law = probs * np.resize(ODDS, len(probs))
    return np.asarray(law / law.sum())


def far(value: float, rivals: dict[str, float]) -> dict[str, float]:
    """The rivals whose distance from a value is clear."""
    return {name: wrong for name, wrong in rivals.items() if abs(wrong - value) > CLEAR * value}


def under_a_law(entry: BanditEntry) -> Iterator[Check]:
    """The mean and the error of a law with weights and without."""
    law, g = tilted(entry), entry.problem.gradient()
    moments = entry.problem.moments()
    ones = np.ones(len(law))
    plain = sampled_error(moments, law, G, weights=ones)
    mean = moments.weighted_gradient(plain.mean_factor)
    root = np.sqrt(entry.problem.context_probs / law)
    between = moments.weighted_gradient(sampled_error(moments, law, G, weights=root).mean_factor)
    direction = telling(entry.problem, [mean - g])
    for how, drawn, of, wrong in (
        ("weighted", weighted(entry, law), g, {FORGOTTEN: mean}),
        ("without weights", Drawn(entry, law, ones), mean, {FORGOTTEN: g}),
        ("root of the weights", Drawn(entry, law, root), between, {FORGOTTEN: g}),
    ):
        for batch in (1, BATCH):
            cell = GradientCell(drawn.problem, G, batch)
            given = None if of is g else drawn.weights
            found = sampled_error(moments, law, G, batch, weights=given)
            once = sampled_error(moments, entry.problem.context_probs, G, batch).mse
            errors = far(found.mse, {AS_DATA: once} if given is None else {})
            size = scale(cell, GRPO)
            what = f"{how} B={batch}"
            yield entry.check(
                f"{what}: error", mean_of(cell, SquaredError(GRPO)),
                equal(found.mse, errors, scale=size, relative_margin=COARSE),
            )  # fmt: skip
            if batch == 1:
                yield direction.check(
                    entry, f"{what}: mean", cell, GRPO, of, wrong,
                    scale=size**0.5, relative_margin=COARSE,
                )  # fmt: skip


def least_cost(entry: BanditEntry, denied: tuple[str, ...] = (DATA, MIDDLE)) -> Iterator[Check]:
    """The cost of the best law at one group size, below that of the laws that are ``denied``."""
    moments, probs = entry.problem.moments(), entry.problem.context_probs
    best = best_law(moments, G)
    others = {DATA: probs, MIDDLE: probs * moments.reward_variance}
    laws = {name: others[name] / others[name].sum() for name in denied}
    costs = {name: sampled_error(moments, law, G).cost for name, law in laws.items()}
    cell = GradientCell(weighted(entry, best.law).problem, G)
    yield entry.check(
        "best law: outputs times error",
        Linear(cell, ((SquaredError(GRPO), float(G)),)),
        equal(best.cost, far(best.cost, costs), scale=best.cost),
    )
    yield from balanced(entry, best, "best law")


def balanced(entry: BanditEntry, best: PromptLaw, what: str) -> Iterator[Check]:
    """At a least cost C each prompt has v² E‖ĝₓ‖² = ‖g‖² + C n/N², because C is stationary in q."""
    signal, outputs = entry.problem.moments().mean_gradient_sq, float(best.law @ best.sizes)
    for x, size in enumerate(best.sizes.tolist()):
        alone = entry.problem.restrict([x])
        weights = np.full((1, alone.arms), best.weights[x])
        cell = GradientCell(WeightedBandit.of(alone, weights, np.zeros((1, alone.d))), size)
        value = signal + best.cost * size / outputs**2
        says = equal(value, scale=value, relative_margin=COARSE)
        yield entry.check(f"{what}: square of prompt {x}", mean_of(cell, SquaredError(GRPO)), says)


def own_sizes(entry: BanditEntry) -> Iterator[Check]:
    """The cost of the best law with a group size for each prompt."""
    moments = entry.problem.moments()
    best = best_law(moments, largest_group=LARGEST)
    cell = SizedCell(
        weighted(entry, best.law).problem, int(best.sizes.max()), sizes=tuple(best.sizes.tolist())
    )
    found = sampled_error(moments, best.law, best.sizes)
    outputs = found.expected_size
    rivals = {SIZES: known_rates_bound(moments, LARGEST)[0], DATA: best.data_cost}
    for value in (best.cost, found.cost):
        yield entry.check(
            f"own sizes: outputs times error{' of the law' * (value is found.cost)}",
            Linear(cell, ((SquaredError(GRPO), float(best.law @ best.sizes)),)),
            equal(value, far(value, rivals), scale=value),
        )
    yield entry.check(
        "own sizes: outputs drawn", mean_of(cell, GroupSize()), equal(outputs, scale=outputs)
    )
    yield from balanced(entry, best, "own sizes")
    data = min(
        range(2, LARGEST + 1), key=lambda size: size * gradient_mse(moments, "grpo", size).mse
    )
    yield entry.check(
        "the data's law at its best size",
        Linear(GradientCell(entry.problem, data), ((SquaredError(GRPO), float(data)),)),
        equal(best.data_cost, scale=best.data_cost),
    )


def shared_weights(entry: BanditEntry) -> Iterator[Check]:
    """The mean if weights are divided by their mean over the minibatch."""
    law, probs, g = tilted(entry), entry.problem.context_probs, entry.problem.gradient()
    drawn = weighted(entry, law)
    plain = Drawn(entry, law, np.ones(len(law))).problem
    cell = NormalisedCell(plain, 2, BATCH, weights=tuple(drawn.weights.tolist()))
    mean = entry.problem.moments().weighted_gradient(normalised_factor(probs, law, BATCH))
    yield telling(entry.problem, [mean - g]).check(
        entry, "weights over their mean: mean", cell, GRPO, mean, {NORMALISED: g},
        scale=scale(cell, GRPO) ** 0.5, relative_margin=COARSE,
    )  # fmt: skip


def levelled(entry: BanditEntry) -> Iterator[Check]:
    """The mean of std without weights under the law that undoes its own."""
    moments, ones = entry.problem.moments(), np.ones(entry.problem.contexts)
    law, std = unweighted_law(moments, "std", STD_SIZE), Estimator("std")
    for how, drawn in (("its own law", law), ("the data's law", entry.problem.context_probs)):
        found = sampled_error(moments, drawn, STD_SIZE, estimator="std", weights=ones)
        mean = moments.weighted_gradient(found.mean_factor)
        cell = GradientCell(Drawn(entry, drawn, ones).problem, STD_SIZE)
        # A multiple of ∇J, with the length that std has under the data's law.
        level = float(found.mean_factor @ entry.problem.context_probs)
        along = level * entry.problem.gradient()
        mean, wrong = (along, {}) if drawn is law else (mean, {STD: along})
        size = float(found.second_moment.max()) ** 0.5
        yield telling(entry.problem, [w - mean for w in wrong.values()] or [mean]).check(
            entry, f"std under {how}: mean", cell, std, mean, wrong, scale=size
        )


def screened(entry: BanditEntry) -> Iterator[Check]:
    """The mean over prompts that earlier rollouts do not drop, and their share."""
    moments, g = entry.problem.moments(), entry.problem.gradient()
    least, most = KEPT
    shares = {
        rollouts: screened_share(moments, least / SCREENED, most / SCREENED, rollouts)
        for rollouts in (SCREENED, None)
    }
    cell = ScreenedCell(entry.problem, SCREENED + USED, screened=SCREENED, kept=KEPT)
    kept = float(entry.problem.context_probs @ shares[SCREENED])
    mean, exact = (moments.weighted_gradient(share) for share in shares.values())
    wrong = {HARMLESS: kept * g, EXACT: exact}
    yield telling(entry.problem, [vector - mean for vector in wrong.values()]).check(
        entry, "screened: mean", cell, GRPO, mean, wrong,
        scale=scale(cell, GRPO) ** 0.5, relative_margin=COARSE,
    )  # fmt: skip
    yield entry.check(
        "screened: share kept",
        Linear(cell, ((GroupSize(), 1 / USED),)),
        equal(kept, scale=kept),
    )
