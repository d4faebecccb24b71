"""Theorem 12: the error of practical GRPO is the variance of its estimate and a squared bias of order η².

The checks run Algorithm 2 on token problems of one, two and three tokens and of unequal lengths, with the
policy at given distances from the sampling policy, and after drawn steps. The squared bias of the token ratio
is of order η², that of a penalty without ratio of order β² η², with amounts in closed form; one-token outputs
have only the penalty's bias. The mean of the sequence ratio is the gradient. The errors of the token ratio,
the ratio up to a token, GSPO's geometric mean, the sequence ratio and PPO's clipping are compared.

The claim is falsified if enumeration or an interval excludes a slope or an amount, or if the leading variance
is tr Σ/σ².

Cost: some 10⁵ groups of 2 to 8.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from ustat_pg.predictions import (
    WeightedPrediction,
    count_table,
    leading_ratio_bias,
    normalised_limit_of,
    practical_mse,
)
from ustat_pg.problems import token_outcomes

from .engines import PracticalCell, PracticalError, RatioBias, Rule, TargetBias
from .evidence import Check, Linear, equal, mean_of, positive
from .problems import BanditEntry, Suite
from .problems.batches import Batch, batches, graded_prompts, one_token_prompts
from .shared.margins import ROUGH

LINEAR = "a squared bias of order η"
QUARTIC = "a squared bias of order η⁴"
UNBIASED = "token ratios are unbiased at any length"
UP_TO = "the ratio up to a token is unbiased"
GEOMETRIC = "GSPO's geometric mean is unbiased"
ONE_TOKEN = "one-token outputs of an old policy are biased too"
RATIOLESS = "the penalty needs no ratio"
FREE = "a penalty's bias that does not depend on β"
LIMIT = "the mean is ∇V/σ at every G"
NO_COST = "a sequence ratio costs no noise"
ONLY_NOISE = "clipping lowers the noise and adds no bias"
MEAN_STEP = "the drift is the mean step"
NAIVE = "tr Σ/σ² leads the error"
BOUND = "tr Σ/σ² bounds the leading variance"
RIVALS = (
    *(LINEAR, QUARTIC, UNBIASED, UP_TO, GEOMETRIC, ONE_TOKEN, RATIOLESS, FREE),
    *(LIMIT, NO_COST, ONLY_NOISE, MEAN_STEP, NAIVE, BOUND),
)

GROUP, BETA, CLIP = 8, 0.2, 0.2
UNEQUAL = (0.1, 0.28)
"""Clipping that is wider above than below, as in DAPO."""
NEAR = (1 / 64, 1 / 4)
"""The distances for slopes, in standard deviations of the change of log-probability."""
FAR = NEAR[-1]
"""The distance at which rules are compared."""
BETAS = (BETA / 8, BETA)
BY_BETA = [(FAR, beta) for beta in BETAS]
"""The weights of a penalty for its slope."""
PROMPTS, LARGE = 2, 64
"""The number of prompts in a larger minibatch; the group size that is used as a large one."""

TOKEN, SEQUENCE = Rule("token", kl_ratio="sequence"), Rule("sequence", kl_ratio="sequence")
"""A rule without bias of the penalty, because it has the sequence ratio."""
PENALTY = Rule("sequence")
"""A rule with only the penalty's bias."""


def predicted(batch: Batch, distance: float, rule: Rule, beta: float = 0.0) -> WeightedPrediction:
    return practical_mse(
        batch.away(distance),
        "std",
        GROUP,
        ratio=rule.ratio,
        clip=rule.clip,
        beta=beta,
        kl_ratio=rule.kl_ratio,
    )


def checks(suite: Suite) -> Iterator[Check]:
    """Checks of outputs of several tokens with a changing policy, and of one token."""
    lone = (suite.skewed, *suite.strong(), suite.lopsided[-1])
    return checks_on(suite, batches("tokens", suite.generated, suite.seed), lone)


def checks_on(
    suite: Suite, several: Iterable[Batch], lone: Iterable[BanditEntry]
) -> Iterator[Check]:
    """The checks on problems of several tokens, and prompts whose outputs have one."""
    for batch in several:
        for part in (slopes, amounts, in_pairs, *((drawn,) if batch.most_tokens == 2 else ())):
            yield from part(batch)
    for entry in lone:
        yield from one_token(entry)
    yield from map(bound, graded_prompts(suite))


def weights_of(batch: Batch) -> tuple[float, ...]:
    """The weight w of std, by prompt."""
    return tuple(count_table("std", GROUP).weight(batch.problem.moments().value))


def slopes(batch: Batch) -> Iterator[Check]:
    """The checks of both squared biases' orders, in the distance and in β."""
    orders, weights = {LINEAR: 1.0, QUARTIC: 4.0}, weights_of(batch)
    near = [(distance, BETA) for distance in NEAR]
    for what, rule, predicted_at, settings, places, rivals in (
        ("token ratio's squared bias", TOKEN, [(d, 0.0) for d in NEAR], near, NEAR, orders),
        ("penalty's squared bias", PENALTY, near, near, NEAR, orders),
        ("penalty's squared bias in β", PENALTY, BY_BETA, BY_BETA, BETAS, {FREE: 0.0}),
    ):
        cells = [batch.cell(GROUP, d, beta=beta, weights=weights) for d, beta in settings]
        yield batch.entry.slope(
            f"slope of the {what}",
            np.log(places).tolist(),
            [mean_of(cell, RatioBias(rule)) for cell in cells],
            [predicted(batch, d, rule, beta).squared_bias for d, beta in predicted_at],
            rivals,
            relative_margin=ROUGH,
        )


def amounts(batch: Batch) -> Iterator[Check]:
    """The checks of the squared biases at one distance, and of the errors."""
    moments = batch.problem.moments()
    cell = batch.cell(GROUP, FAR, beta=BETA, weights=(float(weights_of(batch)[0]),))
    for rule, beta, rival in (
        (TOKEN, 0.0, UNBIASED),
        (Rule("prefix", kl_ratio="sequence"), 0.0, UP_TO),
        (Rule("gspo", kl_ratio="sequence"), 0.0, GEOMETRIC),
        (PENALTY, BETA, RATIOLESS),
        (Rule(), BETA, UNBIASED),
    ):
        value = predicted(batch, FAR, rule, beta).squared_bias
        says = equal(value, {rival: 0.0}, relative_margin=ROUGH)
        what = f"squared bias of {rule.ratio}{' with penalty' if beta else ''}"
        yield batch.entry.check(what, mean_of(cell, RatioBias(rule)), says)
    sigma = float(moments.norm_squared_advantage[0] - moments.gradient_sq[0])
    naive = sigma / float(moments.reward_variance[0]) / GROUP
    token = predicted(batch, FAR, TOKEN)
    clipped = (Rule(clip=CLIP), Rule("sequence", CLIP), Rule(clip=UNEQUAL))
    for rule in (Rule(), Rule("gspo"), SEQUENCE, *clipped):
        error, sides = predicted(batch, FAR, rule, BETA), ""
        if rule.sides is not None:
            wrong = {ONLY_NOISE: error.variance}
            sides = " clipped at " + " and ".join(f"{s:g}" for s in dict.fromkeys(rule.sides))
        elif rule == SEQUENCE:
            wrong = {NO_COST: token.variance}
        else:
            wrong = {NAIVE: naive + error.squared_bias}
        measured = mean_of(cell, PracticalError(rule))
        yield batch.entry.check(f"error of {rule.ratio}{sides}", measured, equal(error.mse, wrong))


def in_pairs(batch: Batch) -> Iterator[Check]:
    """The checks of the mean in groups of two, where w = 1 is far from 1/σ, and of the error."""
    apart = float(batch.problem.moments().reward_variance[0] ** -0.5 - 1)
    there = batch.problem.with_theta(batch.problem.policy.theta + FAR * batch.drift).gradient()
    limit = apart**2 * float(there @ there)
    pair = batch.cell(2, FAR, beta=BETA, batch_size=2)
    yield batch.entry.check(
        "G=2 B=2: mean of sequence",
        mean_of(pair, TargetBias(SEQUENCE)),
        equal(0.0, {LIMIT: limit}, scale=limit, relative_margin=ROUGH),
    )
    error = practical_mse(batch.away(FAR), "std", 2, 2, beta=BETA).mse
    measured = mean_of(pair, PracticalError(Rule()))
    yield batch.entry.check("G=2 B=2: error of token", measured, equal(error))


def drawn(batch: Batch) -> Iterator[Check]:
    """The checks of the mean squared bias after one and two small steps of Algorithm 2 itself."""
    rate = float(np.linalg.norm(batch.drift) / np.linalg.norm(batch.problem.gradient())) / 2048
    at = token_outcomes(batch.problem, None, batch.reference)
    settings: list[tuple[int, int, float, Rule]] = [
        *((1, 1, BETA, Rule()), (2, 1, 0.0, Rule()), (1, PROMPTS, BETA, Rule())),
        *((1, 1, BETA, rule) for rule in (PENALTY, Rule("prefix"), Rule("gspo", None, "token"))),
    ]
    for steps, prompts, beta, rule in settings:
        usual = (prompts, rule) == (1, Rule())
        drift = steps * rate * practical_mse(at, "std", 2, beta=beta).mean
        leading = leading_ratio_bias(
            *(at, "std", 2, prompts),
            learning_rate=rate,
            minibatch=1 + steps,
            ratio=rule.ratio,
            beta=beta,
            kl_ratio=rule.kl_ratio,
        )
        cell = PracticalCell(
            *(batch.problem, 2, rate, prompts),
            minibatch=1 + steps,
            beta=beta,
            reference=batch.reference,
        )
        what = "" if usual else f" with B={prompts}, {rule.ratio} and {rule.kl_ratio} ratio"
        yield batch.entry.check(
            f"G=2: squared bias after steps: {steps}{what}",
            mean_of(cell, RatioBias(rule)),
            equal(
                leading,
                {MEAN_STEP: batch.squared_bias(drift, 2, beta, rule)} if usual else {},
                # The omitted terms are of third order in the drift, and the rest is a share of that. The mean
                # of several prompts' steps is not longer than one step.
                digits=2 * steps**3 * batch.next_order(rate, beta, rule),
                relative_margin=ROUGH if usual else 4.0,
            ),
        )


def one_token(entry: BanditEntry) -> Iterator[Check]:
    """The checks that the ratio has no bias, and of the penalty's bias."""
    batch = Batch(entry, 1)
    cell = batch.cell(GROUP, FAR, beta=BETA)
    rules = (Rule("none"), 0.0), (Rule(), BETA)
    old, penalty = (predicted(batch, FAR, rule, beta).squared_bias for rule, beta in rules)
    for what, rule, value, rivals, size in (
        ("token", TOKEN, 0.0, {ONE_TOKEN: old}, old),
        ("the penalty", Rule(), penalty, {RATIOLESS: 0.0}, penalty),
        ("the penalty with a token ratio", Rule(kl_ratio="token"), 0.0, {}, penalty),
    ):
        statement = equal(value, rivals, scale=size, relative_margin=ROUGH)
        yield entry.check(f"squared bias of {what}", mean_of(cell, RatioBias(rule)), statement)


def bound(entry: BanditEntry) -> Check:
    """The check of a leading variance above tr Σ/σ² with graded rewards."""
    problem, outcomes = entry.problem, entry.problem.outcomes
    moments = problem.moments()
    square = float(moments.reward_variance[0])
    naive = float(moments.norm_squared_advantage[0] - moments.gradient_sq[0]) / square
    scores = problem.policy.scores(0)[outcomes.arms[0]]
    limit = normalised_limit_of(outcomes.probs[0], outcomes.rewards[0], scores)
    cell = PracticalCell(problem, LARGE, 0.0, minibatch=1, weights=(square**-0.5,))
    return entry.check(
        f"G={LARGE}: error above tr Σ/σ²",
        Linear(cell, ((PracticalError(Rule()), LARGE),), -naive),
        positive(limit - naive, [BOUND], scale=limit),
    )


def on_networks(suite: Suite) -> Iterator[Check]:
    """The claim on a prefix softmax, or a transformer whose parameters all tokens share."""
    several = batches(suite.on, suite.generated, suite.seed)
    return checks_on(suite, several, one_token_prompts(suite.on, suite.generated, suite.seed))
