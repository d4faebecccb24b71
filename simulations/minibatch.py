"""Proposition 3: over a minibatch of B prompts,

MSE = (1/B) [ f tr Cov_X g(X) + E tr Σ/G + E(σ² tr F + ‖g‖²)/(G(G-1)) ],

f = 1 for prompts drawn i.i.d., 0 for a fixed set used once each, (N-B)/(N-1) without replacement.

The checks use problems of several prompts (unequally likely if the design allows it), three designs, and also
minibatches larger than the set of prompts. They cover the MSE of every estimator with a closed form, its
covariance matrix along fixed random directions, and its mean. The enumeration covers whole minibatches,
including the choice of prompts. The claim is falsified by any difference.

Cost: seconds; enumeration of minibatches uses only a few rows of the digits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from ustat_pg.engines import Estimator, GradientCell, Projection, SquaredProjection
from ustat_pg.engines.gradients.cell import direction
from ustat_pg.moments.record import Moments
from ustat_pg.predictions import covariance_parts, gradient_mse, mse_constants

from .evidence import Check, Linear, equal, mean_of
from .problems import BanditEntry, Suite, mse_of
from .shared.margins import COARSE
from .shared.peers import Setting, along, error, error_of, label, mean, peers, scale

RIVALS = (
    "prompt term divided by G",
    "no prompt term",
    "inner terms not divided by B",
    "fixed-set formula for i.i.d. prompts",
    "(N-B)/N for (N-B)/(N-1)",
)


def rivals(m: Moments, group_size: int, batch_size: int, design: str) -> dict[str, float]:
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


MOST_PARAMETERS = 100
"""The number of parameters of the largest problem with checked matrices."""

Case = tuple[BanditEntry, int, int, str]
"""Problem, G, B, design."""


def _cases(suite: Suite) -> Iterator[Case]:
    """The problems and designs that can be enumerated; the first two have B > N."""
    yield suite.several, 2, 3, "iid"
    yield suite.uneven, 2, 4, "iid"
    yield suite.repeated, 3, 2, "iid"
    yield suite.features, 2, 2, "iid"
    for group_size, batch in ((2, 2), (3, 2), (2, 3)):
        yield suite.features, group_size, batch, "without-replacement"
    yield suite.features, 2, 4, "fixed"
    if suite.size != "smoke":
        yield suite.several, 3, 1, "iid"
        yield suite.features, 3, 3, "without-replacement"
    for entry in suite.rates():
        yield entry, 2, 4, "iid"
    every = (("iid", 2), ("without-replacement", 2), ("fixed", 3))
    for entry in (*suite.spreads(), *suite.random("uniform-contexts")):
        for design, batch in every:
            yield entry, 2, batch, design
    for entry in suite.random("plain"):
        yield entry, 2, 2, "iid"
    rows = suite.digits_rows(3)
    for design, batch in every:
        yield rows, 2, batch, design


def _drawn(suite: Suite) -> Iterator[Case]:
    """The cases that are too large to enumerate: many prompts in a minibatch, or in the set."""
    yield suite.uneven, 2, 16, "iid"
    yield suite.features, 8, 4, "fixed"
    yield suite.digits, 2, 1, "iid"
    if suite.size != "smoke":
        yield suite.digits, 2, 4, "without-replacement"
        yield suite.digits, 4, 4, "iid"
    for entry in suite.wide(contexts=4):
        yield entry, 16, 8, "iid"


def errors(cases: Iterable[Case]) -> Iterator[Check]:
    """The checks of grpo with its rivals, and of vanilla, in every case."""
    for entry, group_size, batch_size, design in cases:
        moments = entry.problem.moments()
        cell = GradientCell(entry.problem, group_size, batch_size, design)
        for estimator in ("grpo", "vanilla"):
            what = f"G={group_size} B={batch_size} {design}: {estimator}"
            wrong = rivals(moments, group_size, batch_size, design) if estimator == "grpo" else {}
            size = scale(cell, Estimator(estimator))
            # The bound on a minibatch is that on a prompt, so intervals narrow slowly for large B.
            share = 0.1 if batch_size <= 8 else COARSE
            yield error_of(entry, what, cell, estimator, wrong, scale=size, relative_margin=share)


def matrices(cases: Iterable[Case]) -> Iterator[Check]:
    """Checks of other estimators' errors, and of each estimator's matrix and mean along fixed directions."""
    for entry, group_size, batch_size, design in cases:
        at = Setting(entry, group_size, batch_size, design)
        for peer in peers(entry.problem):
            if peer.name not in ("grpo", "vanilla"):
                yield error(at, peer)
            if entry.problem.d > MOST_PARAMETERS:
                continue
            yield along(at, peer, 0)
            if peer.name in ("grpo", "group-mean"):
                yield along(at, peer, 1)
                yield mean(at, peer, 0)
        if design == "iid":
            yield from _constants(entry, at.cell)


def _part(entry: BanditEntry) -> Check:
    """The mean over two of several prompts, which is that of the whole problem if the others do not count."""
    kept, moments = [0, 1], entry.problem.moments()
    share = moments.context_probs[kept].sum()
    counts = np.isin(np.arange(len(moments)), kept) / share
    part, unit = entry.problem.restrict(kept), direction(entry.problem, 0)
    cell, grpo = GradientCell(part, 2), Estimator("grpo")
    value = float(moments.weighted_gradient(counts) @ unit)
    return entry.check(
        f"{label(cell)}: mean of grpo over two prompts along direction 0",
        Linear(cell, ((Projection(grpo, 0), 1.0),), float(part.gradient() @ unit)),
        equal(value, scale=(cell.group_size * scale(cell, grpo, unit)) ** 0.5),
    )


def _constants(entry: BanditEntry, cell: GradientCell) -> Iterator[Check]:
    """Checks of the law of group sizes, (c₁ + c₂/G + c₃/(G(G-1)))/B, and of its constants' matrices."""
    moments, grpo, group = entry.problem.moments(), Estimator("grpo"), cell.group_size
    constants, unit = mse_constants(moments), direction(entry.problem, 2)
    parts = covariance_parts(moments, unit[:, None])
    shares = 1, 1 / group, 1 / (group * (group - 1))
    terms_of = {
        "grpo by c1, c2, c3": (mse_of("grpo"), (constants.c1, constants.c2, constants.c3), None),
        "grpo along direction 2 by C1, C2, C3": (
            SquaredProjection(grpo, 2),
            [float(part[0, 0]) for part in parts],
            unit,
        ),
    }
    for what, (quantity, terms, where) in terms_of.items():
        value = sum(a * b for a, b in zip(terms, shares, strict=True)) / cell.batch_size
        statement = equal(value, scale=scale(cell, grpo, where), relative_margin=COARSE)
        yield entry.check(f"{label(cell)}: {what}", mean_of(cell, quantity), statement)


def checks(suite: Suite) -> Iterator[Check]:
    """The checks of the formula in every design, by enumeration over whole minibatches."""
    enumerated = list(_cases(suite))
    yield from errors([*enumerated, *_drawn(suite)])
    yield from matrices(enumerated)
    yield from map(_part, (suite.uneven, *suite.rates()))


MOST_FIXED = 64
"""The number of prompts of the largest fixed set."""


def on_networks(suite: Suite) -> Iterator[Check]:
    """The checks of the formula in every design that a problem allows."""
    for entry in suite.token_problems:
        contexts = entry.problem.contexts
        cases = [(entry, 2, 1, "iid"), (entry, 2, 2, "iid")]
        if entry.problem.uniform and contexts > 1:
            cases.append((entry, 2, 2, "without-replacement"))
            if contexts <= MOST_FIXED:
                cases.append((entry, 2, contexts, "fixed"))
        yield from errors(cases)
