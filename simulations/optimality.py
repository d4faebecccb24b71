"""Corollary 5: under Assumption 2, V minimises the MSE among baselines of the prompt only, so that
grpo's MSE is asymptotically the least; without the assumption, and in finite G, it can fail.

Under the assumption: the MSE of other baselines exceeds the oracle's by exactly tr F (V - b)²/G.
Outside it: the minimum-variance baseline b* is better than V, by tr F (V - b*)²/G, and the wrong
b* is worse. In finite G: grpo loses to vanilla where V² tr F + 2 V E[‖s‖² a] is below
(σ² tr F + ‖g‖²)/(G-1), and for uniform arms, one rewarded, the threshold is p = 1/(G-1).

The figures of THEORY, Corollary 5, are reproduced, among them those of the norm-weighted
leave-one-out baseline, which has no closed form.

Falsified by a difference of the other sign or another size.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

import numpy as np

from ustat_pg.checks import equal, positive
from ustat_pg.engines import Cell
from ustat_pg.experiment import Check, Claim, Linear
from ustat_pg.predictions import gradient_mse
from ustat_pg.problems import SoftmaxBandit

from .problems import Entry, Suite, mse_of, two_valued

STEM = "optimality"

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
"""MSE x 1e3 on the skewed problem, as THEORY prints it."""


def wrong_baseline(problem: SoftmaxBandit) -> float:
    """E[‖s‖ z]/E‖s‖ at the first prompt: the norm where its square belongs."""
    norms = np.sqrt(problem.policy.squared_norms[0]) * problem.policy.probs[0]
    return float(norms @ problem.mean_rewards[0] / norms.sum())


def _less(
    entry: Entry,
    size: int,
    worse: tuple[str, float | None],
    better: tuple[str, float | None],
    rivals: tuple[str, ...],
) -> Check | None:
    """MSE(worse) - MSE(better) > 0, of the size predicted; None where the win is under 1%."""
    moments = entry.problem.moments()
    high, low = (gradient_mse(moments, *((b, size)), constant=c).mse for b, c in (worse, better))
    if not high - low > 0.01 * high:
        return None
    functional = Linear(Cell(entry.problem, size), ((mse_of(*worse), 1.0), (mse_of(*better), -1.0)))
    name = f"{entry.name} G={size}: {better[0]} beats {worse[0]}"
    if worse[1] is not None:
        name += f" {worse[1]:.4g}"
    return Check(name, entry.group, functional, positive(high - low, rivals, scale=high))


def _inside(entry: Entry, size: int) -> Iterator[Check]:
    """Under Assumption 2: the excess over the oracle is tr F (V - b)²/G, for vanilla and constants."""
    moments = entry.problem.moments()
    value, trace = float(moments.value[0]), float(moments.fisher_trace[0])
    for constant in (0.0, value / 2, 1.5 * value):
        quantity = mse_of("constant", constant) if constant else mse_of("vanilla")
        excess = trace * (value - constant) ** 2 / size
        yield Check(
            f"{entry.name} G={size}: baseline {constant:.4g} exceeds the oracle",
            entry.group,
            Linear(Cell(entry.problem, size), ((quantity, 1.0), (mse_of("oracle"), -1.0))),
            equal(excess, scale=excess),
        )


def _outside(entry: Entry, size: int) -> Iterator[Check | None]:
    """Without it: b* beats V, and beats the wrong b*."""
    yield _less(entry, size, ("oracle", None), ("minimum-variance", None), (V_ALWAYS,))
    wrong = ("constant", wrong_baseline(entry.problem))
    yield _less(entry, size, wrong, ("minimum-variance", None), (WRONG_B,))


def _uniform(arms: int, group: str) -> Entry:
    return Entry(f"uniform-{arms}", group, two_valued([1 / arms] * arms, [1] + [0] * (arms - 1)))


def _thresholds(arms: int, group: str) -> Iterator[Check | None]:
    """Uniform arms, one rewarded, p = 1/arms: vanilla wins below G - 1 = arms, grpo above."""
    entry = _uniform(arms, group)
    yield _less(entry, max(2, arms - 1), ("grpo", None), ("vanilla", None), (GRPO_ALWAYS,))
    yield _less(entry, 2 * arms + 1, ("vanilla", None), ("grpo", None), (HALF,))


def _figures(entry: Entry) -> Iterator[Check]:
    for (size, baseline), figure in FIGURES.items():
        digits = 0.05 if figure > 11 else 0.0005
        yield Check(
            f"{entry.name} G={size}: {baseline} x 1e3 = {figure}",
            entry.group,
            Linear(Cell(entry.problem, size), ((mse_of(baseline), 1e3),)),
            equal(figure, relative_margin=0.05, digits=digits),
        )
    at_two = Linear(
        Cell(entry.problem, 2), ((mse_of("norm-weighted"), 1.0), (mse_of("grpo"), -1.0))
    )
    yield Check(
        f"{entry.name} G=2: norm-weighted = grpo",
        entry.group,
        at_two,
        equal(0.0, scale=gradient_mse(entry.problem.moments(), "grpo", 2).mse),
    )


def _checks(suite: Suite) -> Iterator[Check | None]:
    if suite.user is not None:
        for entry in suite.single_prompts:
            yield from _outside(entry, 4)
            for size in (2, 8, 32):
                yield _less(entry, size, ("grpo", None), ("vanilla", None), (GRPO_ALWAYS,))
            moments = entry.problem.moments()
            if abs(moments.norm_advantage[0]) <= 1e-9 * abs(moments.norm_reward[0]):
                yield from _inside(entry, 4)
        return
    few = suite.size == "smoke"
    yield from _outside(suite.skewed, 4)
    for entry in (suite.balanced, _uniform(4, "made-up")):
        yield from _inside(entry, 4)
    yield from _thresholds(4, "made-up")
    yield from _figures(suite.skewed)
    for number, entry in enumerate(suite.random("assumption-2", contexts=1)):
        yield from _inside(entry, 3)
        yield from _thresholds(3 + (suite.seed + number) % 3, "generated")
    for kind in ("plain", "binary", "negative-rewards"):
        for entry in chain.from_iterable(suite.prompts(e, 1) for e in suite.random(kind)):
            yield from _outside(entry, 3)
    for entry in suite.prompts(suite.digits, 1 if few else 3):
        yield from _outside(entry, 2)
        yield _less(entry, 2, ("grpo", None), ("vanilla", None), (GRPO_ALWAYS,))


def claim(suite: Suite) -> Claim:
    """The corollary where it holds, its failures where it does not, and the printed figures."""
    named = {check.name: check for check in _checks(suite) if check is not None}
    return Claim(STEM, RIVALS, tuple(named.values()))
