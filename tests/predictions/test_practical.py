"""Practical GRPO in exact fractions, from its definition: two policies over token sequences, all groups
of outputs, every ratio. Nothing of the library makes the numbers that it is compared with.
"""

from fractions import Fraction as F
from itertools import product

import numpy as np
import pytest

from simulations.engines import PracticalCell, PracticalError, RatioBias, Rule, TargetBias
from tests.support.refusals import refusals
from ustat_pg.engines import Estimator
from ustat_pg.policies import OutputSpace, PrefixSoftmax
from ustat_pg.predictions import (
    count_table,
    practical_mse,
    ratio_bias_matrix,
)
from ustat_pg.problems import SoftmaxBandit, TokenProblem, token_outcomes

SPACE = OutputSpace(2, 2, end=True)  # lengths 1 and 2: the end token is number 2
# Choices by prefix: none, (0,), (1,); of the old policy, the new one and a reference.
OLD = [[F(1, 2), F(1, 3), F(1, 6)], [F(1, 5), F(3, 5), F(1, 5)], [F(1, 4), F(1, 4), F(1, 2)]]
NEW = [[F(2, 5), F(2, 5), F(1, 5)], [F(1, 3), F(1, 3), F(1, 3)], [F(1, 2), F(1, 4), F(1, 4)]]
REF = [[F(1, 3), F(1, 3), F(1, 3)], [F(1, 2), F(1, 4), F(1, 4)], [F(2, 5), F(1, 5), F(2, 5)]]
PREFIXES = {(): 0, (0,): 1, (1,): 2}


def outputs():
    """Every output as its choices: (end,), (0, end), (1, end), (0, 0), ..."""
    yield (2,)
    for first in (0, 1):
        for second in (0, 1, 2):
            yield first, second


def reward(output):
    return F(output in ((1, 0), (0, 2), (0, 1)))


def steps(output):
    """The prefix before each token, and the token."""
    return [(PREFIXES[output[:t]], token) for t, token in enumerate(output)]


def probability(policy, output):
    chance = F(1)
    for prefix, token in steps(output):
        chance *= policy[prefix][token]
    return chance


def score(policy, prefix, token):
    vector = [F(0)] * 9
    for choice in range(3):
        vector[3 * prefix + choice] = F(choice == token) - policy[prefix][choice]
    return np.array(vector)


def weights(output, ratio):
    each = [NEW[n][a] / OLD[n][a] for n, a in steps(output)]
    whole = probability(NEW, output) / probability(OLD, output)
    upto = [
        probability(NEW, output[: t + 1]) / probability(OLD, output[: t + 1])
        for t in range(len(each))
    ]
    return {
        "none": [F(1)] * len(each),
        "token": each,
        "prefix": upto,
        "sequence": [whole] * len(each),
    }[ratio]


def vector(output, ratio, beta, clip, kl_ratio, advantage):
    """What an output adds to G times the estimate."""
    total, pulling = np.array([F(0)] * 9), weights(output, kl_ratio)
    for (n, a), weight, share in zip(steps(output), weights(output, ratio), pulling, strict=True):
        if clip and (
            (weight > 1 + clip and advantage > 0) or (weight < 1 - clip and advantage < 0)
        ):
            weight = F(0)
        pull = share * (REF[n][a] / NEW[n][a] - 1)
        total = total + (weight * advantage + beta * pull) * score(NEW, n, a)
    return total


def advantages(rewards, name):
    """Exact in groups of two (std) and of any size (grpo)."""
    size, total = len(rewards), sum(rewards)
    if name == "grpo":
        return [z - (total - z) / (size - 1) for z in rewards]
    assert size == 2
    return [F(0) if total in (0, 2) else 2 * z - 1 for z in rewards]


def law(name, size, ratio, beta=F(0), clip=None, kl_ratio="none"):
    """The mean, and E of the squared length, of one group's estimate."""
    mean, square = np.array([F(0)] * 9), F(0)
    for group in product(list(outputs()), repeat=size):
        chance = F(1)
        for output in group:
            chance *= probability(OLD, output)
        own = advantages([reward(output) for output in group], name)
        estimate = sum(
            (vector(y, ratio, beta, clip, kl_ratio, a) for y, a in zip(group, own, strict=True)),
            np.array([F(0)] * 9),
        ) * F(1, size)
        mean, square = mean + chance * estimate, square + chance * (estimate @ estimate)
    return mean, square


def target(beta):
    """∇V under the new policy, and the penalty's mean there: the weight of these advantages is 1."""
    total = np.array([F(0)] * 9)
    for y in outputs():
        for n, a in steps(y):
            part = reward(y) + beta * (REF[n][a] / NEW[n][a] - 1)
            total = total + probability(NEW, y) * part * score(NEW, n, a)
    return total


def tables(policy):
    return np.log(np.array([[float(p) for p in row] for row in policy]))[None]


# A problem with the same rewards: the library's outputs lack the end token.
TASK = TokenProblem(SPACE, [(0,)], lambda prompt, output: float(output in ((1, 0), (0,), (0, 1))))
BANDIT = TASK.at(PrefixSoftmax(SPACE, tables(OLD)))
REFERENCE = PrefixSoftmax(SPACE, tables(REF))
AWAY = token_outcomes(BANDIT, tables(NEW).ravel(), REFERENCE)


def test_missing_policies_default_to_the_sampling_policy():
    drawn = sorted(np.log([float(probability(OLD, y)) for y in outputs()]))
    alone = token_outcomes(BANDIT, tables(NEW).ravel())
    for found in (alone.reference, token_outcomes(BANDIT, None, REFERENCE).new):
        assert sorted(found[0].sum(axis=-1)) == pytest.approx(drawn, rel=1e-12)


def as_floats(fractions):
    return np.array([float(each) for each in fractions])


CASES = [
    ("std", 2, "token", F(0), None, "none"),
    ("std", 2, "none", F(1, 5), None, "none"),
    ("std", 2, "sequence", F(1, 5), None, "none"),
    ("std", 2, "prefix", F(0), F(1, 7), "none"),
    ("std", 2, "token", F(1, 3), F(1, 10), "none"),
    ("grpo", 3, "token", F(1, 5), None, "none"),
    ("std", 2, "token", F(1, 3), None, "token"),
    ("grpo", 2, "none", F(1, 5), F(1, 7), "prefix"),
    ("std", 2, "sequence", F(1, 5), None, "sequence"),
]


@pytest.mark.parametrize(("name", "size", "ratio", "beta", "clip", "kl_ratio"), CASES)
def test_mean_and_error_match_the_definition(name, size, ratio, beta, clip, kl_ratio):
    mean, square = law(name, size, ratio, beta, clip, kl_ratio)
    wanted = target(beta)
    options = {"ratio": ratio, "beta": float(beta), "clip": None if clip is None else float(clip)}
    options["kl_ratio"] = kl_ratio
    result = practical_mse(AWAY, name, size, **options)
    off = mean - wanted
    assert result.mean == pytest.approx(as_floats(mean), abs=1e-14)
    assert result.squared_bias == pytest.approx(float(off @ off), rel=1e-10, abs=1e-28)
    assert result.variance == pytest.approx(float(square - mean @ mean), rel=1e-12)
    # The engines' own sums, at a drift that leads from the one policy to the other.
    drift = tables(NEW).ravel() - BANDIT.policy.theta
    cell = PracticalCell(
        BANDIT, size, 1.0, minibatch=1, drift=drift, estimator=Estimator(name), beta=float(beta),
        reference=REFERENCE,
    )  # fmt: skip
    rule = Rule(ratio, options["clip"], kl_ratio)
    values = cell.measure("exact", [TargetBias(rule), PracticalError(rule)]).mean
    assert values[0] == pytest.approx(float(off @ off), rel=1e-10, abs=1e-28)
    assert values[1] == pytest.approx(
        float(square - 2 * mean @ wanted + wanted @ wanted), rel=1e-12
    )


def test_draws_agree_with_enumeration_after_a_drawn_step():
    cell = PracticalCell(BANDIT, 2, 0.4, beta=0.2, reference=REFERENCE)
    asked = [RatioBias(Rule("gspo")), TargetBias(Rule()), PracticalError(Rule(clip=0.1))]
    exact = cell.measure("exact", asked).mean
    drawn = cell.measure("reference", asked, replications=4096)
    errors = np.sqrt(np.diag(drawn.covariance) / drawn.n)
    assert (np.abs(drawn.mean - exact) < 5 * errors).all()
    for quantity, mean in zip(asked, exact, strict=True):
        low, high = cell.range(quantity)
        assert low <= mean <= high


GRADED = SoftmaxBandit.tabular([1.0], [[0.0, 0.0]], [[[0.5], [0.0]]], [[[1.0], [1.0]]])

test_what_is_refused = refusals(
    (
        lambda: PracticalCell(BANDIT, 2, 0.1).require_quantity(Estimator("std")),
        "not a quantity of a Practical",
    ),
    (
        lambda: PracticalCell(BANDIT, 6, 0.1, minibatch=3).require_exact([RatioBias(Rule())]),
        "outcomes of the steps before",
    ),
    (
        lambda: practical_mse(AWAY, count_table("std", 2).scaled(-1.0), 2, clip=0.1),
        "must have its sign",
    ),
    # A lone success, all of a group, a lone failure and all of a group: one sign is wrong.
    *(
        (
            lambda name=f"count-table:{table}": practical_mse(AWAY, name, 2, clip=0.1),
            "must have its sign",
        )
        for table in ("-1,1,0,-1", "1,-1,0,-1", "1,1,1,-1", "1,1,0,1")
    ),
    (lambda: ratio_bias_matrix(AWAY, "std", 2), "computed at equal policies"),
    (lambda: practical_mse(token_outcomes(GRADED), "std", 2), "use enumeration instead"),
    (lambda: token_outcomes(GRADED, None, REFERENCE), "reference's logits"),
)
