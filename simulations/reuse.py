"""Beyond the paper: several steps on the same outputs. With the exact ratio of whole outputs the second step
is biased: its bias is Cov(M̂, ĝ) with M = s sᵀ + ∇s, Theorem 2 with M for one of the scores. It grows by this
amount with every pass.

The checks use problems of several prompts, and outputs of several tokens. Batches are enumerated, and used
again at rates ±η; differences give the slope of the bias at rate 0. They cover this slope along a direction,
along the gradient, in minibatches of one and two prompts, in three designs and at the third pass; the first
pass over disjoint minibatches; the token's ratio; and the noise of several passes together.

Falsified by an enumerated slope that differs by more than rounding, or a simulated one whose interval misses.

Cost: some 10⁵ batches, of which only different ones are computed.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ustat_pg.moments.record import ReuseMoments
from ustat_pg.predictions import reuse_bias
from ustat_pg.problems import SoftmaxBandit, reuse_moments
from ustat_pg.validation import Array, changed

from .engines import ReusedBatch, Rule, StepSlope, SumNoise
from .evidence import Check, equal, mean_of
from .problems import BanditEntry, Suite
from .problems.batches import batches
from .shared.peers import telling

FREE = "the ratio makes it unbiased"
SEVERAL = "several passes are several batches"
FROZEN = "scores held still: s sᵀ for M"
SINGLE = "no second-order term"
NO_PRODUCT = "Q g missing in it"
WHOLE = "the bias not divided by B"
PROMPTS = "no prompt term"
TOWARDS = "a push towards less noise"
ONCE = "every later pass has the bias of the second"
SPLIT = "minibatches of one pass bias each other"
TOKENS = "the token's ratio adds no bias of its own"
RIVALS = (
    *(FREE, SEVERAL, FROZEN, SINGLE, NO_PRODUCT, WHOLE),
    *(PROMPTS, TOWARDS, ONCE, SPLIT, TOKENS),
)


def checks(suite: Suite) -> Iterator[Check]:
    """Checks on bandits with rewards 0 and 1 or graded rewards, and on outputs of several tokens."""
    for entry in suite.few_outcomes:
        for group_size in suite.sized((3,), (2, 4), (2, 3, 4, 6)):
            yield from slopes(entry, group_size)
        yield from passes(entry)
        yield from noise(entry)
    for entry in suite.lopsided[:3]:
        yield from in_minibatches(entry)
    yield from slopes(suite.features, 2, 2, "without-replacement")
    yield from slopes(suite.few_outcomes[-1], 2, 3, "fixed")
    for batch in batches("tokens", suite.generated, suite.seed):
        # At G = 2 the two terms with Q g cancel.
        yield from slopes(batch.entry, 3)
        yield by_token(batch.entry)


def with_still_scores(problem: SoftmaxBandit) -> ReuseMoments:
    """The moments with s sᵀ for M."""
    rows, rho = [], problem.context_probs
    for x in range(problem.contexts):
        scores, law = problem.policy.scores(x), problem.policy.probs[x]
        values, chances = problem.reward_values[x], problem.reward_probs[x]
        deviations = values - law @ (values * chances).sum(axis=1)
        first, second = (law * (chances * deviations**k).sum(axis=1) for k in (1, 2))
        norms, own = (scores**2).sum(axis=1), scores @ (first @ scores)
        weights = second * norms, law * norms, first * own, first * (scores @ problem.gradient())
        rows.append([each @ scores for each in weights])
    square, score, product, across = (np.array(each) for each in zip(*rows, strict=True))
    parts = {"square": square, "score": score, "product": product}
    return changed(reuse_moments(problem), **parts, between=rho @ (product - across))


def slope(moments: ReuseMoments, group_size: int, batch_size: int, design: str) -> Array:
    """The predicted slope of the bias of a second pass, (d,)."""
    return reuse_bias(moments, group_size, batch_size, rate=1.0, design=design).slope


def rivals(problem: SoftmaxBandit, g: int, b: int, design: str) -> dict[str, Array]:
    """Wrong slopes of the second pass, by rival."""
    moments, rho = reuse_moments(problem), problem.context_probs
    known, variance = moments.moments, moments.moments.reward_variance
    right, product = slope(moments, g, b, design), rho @ moments.product
    pair = rho @ (variance[:, None] * moments.score) + product
    wrong = {
        FREE: 0 * right,
        TOWARDS: -right,
        FROZEN: slope(with_still_scores(problem), g, b, design),
        SINGLE: right - pair / (b * g * (g - 1)),
        NO_PRODUCT: right - product / (b * g * (g - 1)),
    }
    if b > 1:
        wrong[WHOLE] = b * right
    if design != "fixed" and len(known) > 1:
        wrong[PROMPTS] = slope(changed(moments, between=0 * right), g, b, design)
    return wrong


def slopes(
    entry: BanditEntry, group_size: int, batch_size: int = 1, design: str = "iid"
) -> Iterator[Check]:
    """The second pass, along the direction that tells the rivals apart, and along the gradient."""
    wrong = rivals(entry.problem, group_size, batch_size, design)
    moments = reuse_moments(entry.problem)
    found = reuse_bias(moments, group_size, batch_size, rate=1.0, design=design)
    cell = ReusedBatch(entry.problem, group_size, batch_size, design=design)
    direction = telling(entry.problem, (vector - found.slope for vector in wrong.values()))
    setting = f"G={group_size} B={batch_size} {design}"
    says = equal(
        direction.along(found.slope),
        {rival: direction.along(vector) for rival, vector in wrong.items()},
        scale=float(np.linalg.norm(found.slope)),
    )
    yield entry.check(
        f"{setting}: bias of the second pass", mean_of(cell, StepSlope(2, direction.number)), says
    )
    gradient = entry.problem.gradient()
    length = float(np.linalg.norm(gradient))
    assert found.along_gradient is not None
    yield entry.check(
        f"{setting}: the same along the gradient",
        mean_of(cell, StepSlope(2, None)),
        equal(found.along_gradient * length, scale=float(np.linalg.norm(found.slope))),
    )


def passes(entry: BanditEntry) -> Iterator[Check]:
    """The third pass, and two prompts a step."""
    moments = reuse_moments(entry.problem)
    third = reuse_bias(moments, 2, rate=1.0, passes=3).slope
    direction = telling(entry.problem, [third])
    says = equal(direction.along(third), {ONCE: direction.along(third) / 2, FREE: 0.0})
    cell = ReusedBatch(entry.problem, 2)
    yield entry.check(
        "G=2 B=1 iid: bias of the third pass", mean_of(cell, StepSlope(3, direction.number)), says
    )
    yield from slopes(entry, 2, 2)


def noise(entry: BanditEntry) -> Iterator[Check]:
    """The noise of three passes together, along the gradient."""
    found = reuse_bias(reuse_moments(entry.problem), 2, rate=1.0, passes=3)
    assert found.noise_along is not None
    one = (found.noise_along * float(np.linalg.norm(entry.problem.gradient()))) ** 2
    yield entry.check(
        "G=2 B=1 iid: noise of three passes",
        mean_of(ReusedBatch(entry.problem, 2), SumNoise(3, None)),
        equal(9 * one, {SEVERAL: 3 * one}),
    )


def in_minibatches(entry: BanditEntry) -> Iterator[Check]:
    """Two minibatches of a batch: the second step of the first pass, and the last of the second pass."""
    moments, cell = reuse_moments(entry.problem), ReusedBatch(entry.problem, 2, minibatches=2)
    first, second = (
        reuse_bias(moments, 2, rate=1.0, passes=count, minibatches=2).slope for count in (1, 2)
    )
    direction = telling(entry.problem, [second])
    size = float(np.linalg.norm(second))
    for what, step, value, wrong in (
        ("the first pass", 2, first, {SPLIT: second}),
        ("the second pass", 4, second, {FREE: first}),
    ):
        along = {rival: direction.along(vector) for rival, vector in wrong.items()}
        yield entry.check(
            f"G=2 B=1 iid, two minibatches: bias of the last step of {what}",
            mean_of(cell, StepSlope(step, direction.number)),
            equal(direction.along(value), along, scale=size),
        )


def by_token(entry: BanditEntry) -> Check:
    """The second pass with the token's ratio, clipped at a distance that it does not reach."""
    whole, token = (
        reuse_bias(reuse_moments(entry.problem, ratio), 2, rate=1.0).slope
        for ratio in ("sequence", "token")
    )
    own = token - reuse_moments(entry.problem, "token").ratio_slope
    direction = telling(entry.problem, (token - whole, token - own))
    return entry.check(
        "G=2 B=1 iid: bias of the second pass with the token's ratio",
        mean_of(
            ReusedBatch(entry.problem, 2), StepSlope(2, direction.number, Rule("token", clip=0.2))
        ),
        equal(
            direction.along(token),
            {TOKENS: direction.along(own)},
            scale=float(np.linalg.norm(token)),
        ),
    )
