"""Proposition 3: over a minibatch of B prompts,

MSE = (1/B) [ f tr Cov_X g(X) + E tr Σ/G + E(σ² tr F + ‖g‖²)/(G(G-1)) ],

f = 1 for prompts drawn i.i.d., 0 for a fixed set used once each, (N-B)/(N-1) without replacement.

Checked on problems of several prompts in the three designs, grpo and vanilla. Enumeration goes
over whole minibatches jointly, choice of prompts included. Falsified by any difference.

Cost: seconds; a few rows of the digits stand for them where minibatches are enumerated.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ustat_pg.checks import equal
from ustat_pg.engines import GradientCell
from ustat_pg.experiment import Check, Claim, Linear, Point, mean_of
from ustat_pg.moments import Moments
from ustat_pg.predictions import gradient_mse

from .problems import BanditEntry, Suite, mse_of

STEM = "minibatch"

RIVALS = (
    "prompt term divided by G",
    "no prompt term",
    "inner terms not divided by B",
    "fixed-set formula for i.i.d. prompts",
    "(N-B)/N for (N-B)/(N-1)",
)


def rivals(m: Moments, group_size: int, batch_size: int, design: str) -> dict[str, float]:
    """The wrong values of grpo's MSE in a minibatch."""
    p = gradient_mse(m, "grpo", group_size, batch_size, design)
    inner, prompts = p.first_order_term + p.second_order_term, len(m)
    wrong = {"inner terms not divided by B": p.prompt_term + batch_size * inner}
    if design != "fixed":
        wrong["prompt term divided by G"] = p.prompt_term / group_size + inner
        wrong["no prompt term"] = inner
    if design == "iid":
        wrong["fixed-set formula for i.i.d. prompts"] = inner * batch_size / prompts
    if design == "without-replacement" and prompts > 1:
        wrong["(N-B)/N for (N-B)/(N-1)"] = p.prompt_term * (prompts - 1) / prompts + inner
    return wrong


Case = tuple[BanditEntry, int, int, str]
"""Problem, G, B, design."""


def _cases(suite: Suite) -> Iterator[Case]:
    yield suite.several, 2, 3, "iid"
    for design, batch in (("iid", 2), ("without-replacement", 2), ("fixed", 4)):
        yield suite.features, 2, batch, design
    if suite.size != "smoke":
        yield suite.several, 3, 1, "iid"
        yield suite.features, 3, 3, "without-replacement"
    for entry in (*suite.spreads(), *suite.random("uniform-contexts")):
        for design, batch in (("iid", 2), ("without-replacement", 2), ("fixed", 3)):
            yield entry, 2, batch, design
    for entry in suite.random("plain"):
        yield entry, 2, 2, "iid"
    rows = suite.digits_rows(3)
    for design, batch in (("iid", 2), ("without-replacement", 2), ("fixed", 3)):
        yield rows, 2, batch, design
    for batch in (1, 4):
        yield suite.digits, 2, batch, "iid"
    if suite.size != "smoke":
        yield suite.digits, 2, 4, "without-replacement"
        yield suite.digits, 8, 8, "iid"


def checks(cases: Iterable[Case]) -> Iterator[Check]:
    """Grpo with its rivals, and vanilla, in every case."""
    for entry, group_size, batch_size, design in cases:
        moments = entry.problem.moments()
        cell = GradientCell(entry.problem, group_size, batch_size, design)
        for baseline in ("grpo", "vanilla"):
            value = gradient_mse(moments, baseline, group_size, batch_size, design).mse
            wrong = rivals(moments, group_size, batch_size, design) if baseline == "grpo" else {}
            yield entry.check(
                f"G={group_size} B={batch_size} {design}: {baseline}",
                mean_of(cell, mse_of(baseline)),
                equal(value, wrong, scale=value),
            )


def claim(suite: Suite) -> Claim:
    """The formula in every design, by enumeration over whole minibatches."""
    return Claim(STEM, RIVALS, tuple(checks(_cases(suite))))


def curves(suite: Suite) -> Iterator[Point]:
    """B times the MSE against B in the three designs, and what two rivals say of it."""
    entry, group_size = suite.digits_rows(16), 4
    problem, moments = entry.problem, entry.problem.moments()
    for batch in (1, 2, 4, 6, 8, 10, 12, 14, 16):
        at = {"problem": entry.name, "group_size": group_size, "batch_size": batch}
        for design in ("iid", "without-replacement", "fixed"):
            if design == "fixed" and batch != problem.contexts:
                continue
            cell = GradientCell(problem, group_size, batch, design)
            value = batch * gradient_mse(moments, "grpo", group_size, batch, design).mse
            yield Point("designs", design, at, value, Linear(cell, ((mse_of("grpo"), batch),)))
        for rival in ("(N-B)/N for (N-B)/(N-1)", "no prompt term"):
            wrong = rivals(moments, group_size, batch, "without-replacement")[rival]
            yield Point("designs", f"rival: {rival}", at, batch * wrong)
