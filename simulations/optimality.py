"""Corollary 5: under Assumption 2, V minimises the MSE among baselines of the prompt only; without
the assumption, and for grpo in finite G, it can fail. (That grpo's MSE tends to the oracle's is
Corollary 4.)

Under the assumption: the MSE of other baselines exceeds the oracle's by exactly tr F (V - b)²/G.
Outside it: b* is better than V by tr F (V - b*)²/G, better than the wrong b*, and a step δ away
from it on either side costs tr F δ²/G, which it would not if b* were elsewhere. In finite G: grpo
loses to vanilla below the G where V² tr F + 2 V E[‖s‖² a] = (σ² tr F + ‖g‖²)/(G-1), wins above it,
and for uniform arms, one rewarded, the two are equal at p = 1/(G-1) exactly.

The table of theory/optimality.md is reproduced, with the errors of the norm-weighted
leave-one-out baseline, which has no closed form.

Falsified by a difference of the other sign or another size.

Cost: some millions of groups in all.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

import numpy as np

from ustat_pg.checks import equal, positive
from ustat_pg.engines import GradientCell
from ustat_pg.experiment import Check, Claim, Linear, Point, Ratio, mean_of
from ustat_pg.predictions import gradient_mse
from ustat_pg.problems import SoftmaxBandit

from .problems import BanditEntry, Entry, Suite, mse_of, two_valued
from .problems.bandits import prompts

STEM = "optimality"

Named = tuple[str, float | None]
"""A baseline by name, with its constant if it has one."""

V_ALWAYS = "V minimises without Assumption 2"
GRPO_ALWAYS = "grpo <= vanilla at every G"
HALF = "threshold p > 1/2"
WRONG_B = "b* = E[||s|| z]/E||s||"
RIVALS = (V_ALWAYS, GRPO_ALWAYS, HALF, WRONG_B)

FIGURES = {
    (3, "norm-weighted"): 74.9,
    (3, "grpo"): 68.1,
    (4, "norm-weighted"): 49.3,
    (4, "grpo"): 47.3,
    (8, "norm-weighted"): 12.9,
    (8, "grpo"): 21.5,
    (16, "vanilla"): 0.550,
    (16, "grpo"): 10.327,
    (16, "oracle"): 9.950,
    (16, "minimum-variance"): 0.199,
    (16, "norm-weighted"): 1.737,
}
"""MSE x 1e3 on the skewed problem, as theory/optimality.md has it."""


def wrong_baseline(problem: SoftmaxBandit) -> float:
    """E[‖s‖ z]/E‖s‖ at the first prompt: the norm where its square belongs."""
    norms = np.sqrt(problem.policy.squared_norms[0]) * problem.policy.probs[0]
    return float(norms @ problem.mean_rewards[0] / norms.sum())


def _difference(
    entry: BanditEntry, group_size: int, worse: Named, better: Named
) -> tuple[Linear, float, float]:
    """MSE(worse) - MSE(better) as a functional, its predicted value, and MSE(worse)."""
    moments = entry.problem.moments()
    high, low = (
        gradient_mse(moments, baseline, group_size, constant=constant).mse
        for baseline, constant in (worse, better)
    )
    weights = ((mse_of(*worse), 1.0), (mse_of(*better), -1.0))
    return Linear(GradientCell(entry.problem, group_size), weights), high - low, high


def _beats(
    entry: BanditEntry, group_size: int, better: Named, worse: Named, rival: str
) -> Iterator[Check]:
    """MSE(worse) - MSE(better) > 0, and of the size predicted; nothing where that is under 1%."""
    functional, gain, high = _difference(entry, group_size, worse, better)
    if not gain > 0.01 * high:
        return
    name = f"{entry.name} G={group_size}: {_word(better)} beats {_word(worse)}"
    yield Check(name, entry.origin, functional, positive(gain, [rival], scale=high))
    yield Check(f"{name}: by how much", entry.origin, functional, equal(gain, scale=high))


def _word(baseline: Named) -> str:
    return baseline[0] if baseline[1] is None else f"{baseline[0]} {baseline[1]:.4g}"


def inside(entry: BanditEntry, group_size: int) -> Iterator[Check]:
    """Under Assumption 2: the excess over the oracle is tr F (V - b)²/G, for vanilla and constants."""
    moments = entry.problem.moments()
    value, trace = float(moments.value[0]), float(moments.fisher_trace[0])
    for constant in dict.fromkeys((0.0, value / 2, 1.5 * value)):
        functional, _, high = _difference(
            entry, group_size, ("constant", constant), ("oracle", None)
        )
        yield Check(
            f"{entry.name} G={group_size}: constant {constant:.4g} exceeds the oracle",
            entry.origin,
            functional,
            equal(trace * (value - constant) ** 2 / group_size, scale=high),
        )


def outside(entry: BanditEntry, group_size: int) -> Iterator[Check]:
    """b* beats V and the wrong b*, where they differ; and a step away from b* costs tr F δ²/G."""
    moments, best = entry.problem.moments(), ("minimum-variance", None)
    if not moments.fisher_trace[0] > 0:
        return
    yield from _beats(entry, group_size, best, ("oracle", None), V_ALWAYS)
    yield from _beats(entry, group_size, best, ("constant", wrong_baseline(entry.problem)), WRONG_B)
    low, high = moments.reward_range
    for step in (-(high - low) / 2, (high - low) / 2) if high > low else ():
        constant = float(moments.optimal_baseline[0]) + step
        functional, _, scale = _difference(entry, group_size, ("constant", constant), best)
        yield Check(
            f"{entry.name} G={group_size}: b* {step:+.4g}",
            entry.origin,
            functional,
            equal(float(moments.fisher_trace[0]) * step**2 / group_size, scale=scale),
        )


def thresholds(entry: BanditEntry) -> Iterator[Check]:
    """grpo against vanilla on both sides of the G where they are equal."""
    moments = entry.problem.moments()
    value, trace = moments.value[0], moments.fisher_trace[0]
    gain = value**2 * trace + 2 * value * moments.norm_advantage[0]
    cost = moments.reward_variance[0] * trace + moments.gradient_sq[0]
    if not gain > 0:
        return
    balance = float(min(1 + cost / gain, 1e6))
    grpo, vanilla = ("grpo", None), ("vanilla", None)
    for group_size in sorted({2, max(2, min(int(balance) - 1, 64))}):
        yield from _beats(entry, group_size, vanilla, grpo, GRPO_ALWAYS)
    if value < 0.5 and balance < 30:
        yield from _beats(entry, 2 * int(balance) + 1, grpo, vanilla, HALF)
    if balance < 30 and abs(balance - round(balance)) < 1e-9 and balance >= 2:
        functional, _, high = _difference(entry, round(balance), grpo, vanilla)
        yield Check(
            f"{entry.name} G={round(balance)}: grpo = vanilla",
            entry.origin,
            functional,
            equal(0.0, scale=high),
        )


def _figures(entry: BanditEntry) -> Iterator[Check]:
    """Figures worked out by hand on the skewed problem, as printed; norm-weighted is grpo at G = 2."""
    for (group_size, baseline), figure in FIGURES.items():
        digits = 0.05 if figure > 11 else 0.0005
        yield Check(
            f"{entry.name} G={group_size}: {baseline} x 1e3 = {figure}",
            entry.origin,
            Linear(GradientCell(entry.problem, group_size), ((mse_of(baseline), 1e3),)),
            equal(figure, relative_margin=0.05, digits=digits),
        )
    cell = GradientCell(entry.problem, 2)
    yield Check(
        f"{entry.name} G=2: norm-weighted = grpo",
        entry.origin,
        Linear(cell, ((mse_of("norm-weighted"), 1.0), (mse_of("grpo"), -1.0))),
        equal(0.0, scale=gradient_mse(entry.problem.moments(), "grpo", 2).mse),
    )


def _checks(suite: Suite) -> Iterator[Check]:
    """Fixed problems inside and outside Assumption 2, generated ones of both kinds, digits."""
    uniform = Entry("uniform", "made-up", two_valued([0.25] * 4, [1, 0, 0, 0]))
    yield from outside(suite.skewed, 4)
    yield from _figures(suite.skewed)
    for entry in (suite.balanced, uniform):
        yield from inside(entry, 4)
        yield from thresholds(entry)
    for entry in suite.random("assumption-2", contexts=1):
        yield from inside(entry, 3)
    for entry in suite.alike():
        yield from inside(entry, 3)
        yield from thresholds(entry)
    for entry in suite.strong():
        yield from outside(entry, 3)
    for kind in ("plain", "binary", "negative-rewards"):
        for entry in chain.from_iterable(prompts(e, 1) for e in suite.random(kind)):
            yield from outside(entry, 3)
    for entry in prompts(suite.digits, 1 if suite.size == "smoke" else 3):
        yield from outside(entry, 2)
        yield from thresholds(entry)


def claim(suite: Suite) -> Claim:
    """The corollary where it holds, its failures where it does not, and the printed figures."""
    return Claim(STEM, RIVALS, tuple(_checks(suite)))


def curves(suite: Suite) -> Iterator[Point]:
    """Where grpo beats no baseline, over (pass rate, G); and the map of Assumption 2."""
    yield from _frontier()
    yield from _map()


def _frontier() -> Iterator[Point]:
    """MSE_grpo / MSE_vanilla for 64 equal arms, some of them rewarded; measured on every third."""
    arms = 64
    group_sizes = (2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64)
    rewarded = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 16, 19, 22, 26, 30, 36, 42, 48, 54, 60)
    for i, count in enumerate(rewarded):
        problem = two_valued([1 / arms] * arms, [1] * count + [0] * (arms - count))
        moments = problem.moments()
        for j, group_size in enumerate(group_sizes):
            prediction = gradient_mse(moments, "grpo", group_size)
            functional = None
            if i % 3 == 0 and j % 3 == 0:
                cell = GradientCell(problem, group_size)
                functional = Ratio(
                    mean_of(cell, mse_of("grpo")),
                    mean_of(cell, mse_of("vanilla")),
                    prediction.vanilla_mse,
                )
            at = {"pass_rate": count / arms, "group_size": group_size}
            yield Point(
                "frontier", "ratio", at, prediction.mse / prediction.vanilla_mse, functional
            )


def _map() -> Iterator[Point]:
    """MSE against the correlation of ‖s‖² and reward, pass rate 1/2 throughout.

    One arm of probability 1/2 and four of 1/8: ‖s‖² takes two values, with probability 1/2 each, and
    success chances (1 ∓ ρ)/2 on them give the correlation ρ.
    """
    group_size = 8
    for correlation in np.linspace(-1, 1, 21).round(2).tolist():
        chances = [(1 - correlation) / 2, *[(1 + correlation) / 2] * 4]
        problem = two_valued([0.5, 0.125, 0.125, 0.125, 0.125], chances)
        moments, cell = problem.moments(), GradientCell(problem, group_size)
        at = {"correlation": correlation, "group_size": group_size}
        for baseline in ("vanilla", "grpo", "oracle", "minimum-variance"):
            value = gradient_mse(moments, baseline, group_size).mse
            yield Point("map", baseline, at, value, mean_of(cell, mse_of(baseline)), True)
        # It has no closed form; its curve is enumerated.
        functional = mean_of(cell, mse_of("norm-weighted"))
        yield Point("map", "norm-weighted", at, None, functional, True)
