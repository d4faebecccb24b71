"""Advantages by hand, in NumPy, torch and the strict array API; what is refused; degenerate groups."""

from fractions import Fraction

import numpy as np
import pytest

from tests.support.arrays import LIBRARIES, ROUNDING, WAYS, host, maker
from tests.support.refusals import refuses
from ustat_pg import estimators
from ustat_pg.registry import record_of

REWARDS = [[1.0, 0.0, 0.0, 0.5], [0.25, -1.0, 2.0, 0.25]]
BINARY = [[1.0, 0.0, 0.0, 1.0], [0.0, 0.0, 1.0, 0.0]]
NORMS = [[1.0, 2.0, 3.0, 4.0], [0.5, 0.5, 1.0, 0.0]]


def over(divisor, *values):
    return [value / divisor for value in values]


# Row 0: the others' means are 1/6, 1/2, 1/2, 1/3; row 1: 5/12, 5/6, -1/6, 5/12.
EXPECTED = {
    "vanilla": ({}, REWARDS),
    "grpo": ({}, [[5 / 6, -0.5, -0.5, 1 / 6], [-1 / 6, -11 / 6, 13 / 6, -1 / 6]]),
    "group-mean": ({}, [[0.625, -0.375, -0.375, 0.125], [-0.125, -1.375, 1.625, -0.125]]),
    "oracle": ({"value": [0.5, 0.25]}, [[0.5, -0.5, -0.5, 0.0], [0.0, -1.25, 1.75, 0.0]]),
    "constant": ({"constant": 0.5}, [[0.5, -0.5, -0.5, 0.0], [-0.25, -1.5, 1.5, -0.25]]),
    "minimum-variance": (
        {"optimal_baseline": [0.0, 1.0]},
        [[1.0, 0.0, 0.0, 0.5], [-0.75, -2.0, 1.0, -0.75]],
    ),
    "critic": (
        {"predicted_value": [1.0, -1.0]},
        [[0.0, -1.0, -1.0, -0.5], [1.25, 0.0, 3.0, 1.25]],
    ),
    # Row 0: the others weigh 9, 8, 7, 6 and bring 2, 3, 3, 1.
    # Row 1: they weigh 1.5, 1.5, 1, 2 and bring 1.5, 2.125, -0.375, 1.625.
    "norm-weighted": (
        {"squared_norms": NORMS},
        [
            [1 - 2 / 9, -3 / 8, -3 / 7, 0.5 - 1 / 6],
            [0.25 - 1.0, -1 - 2.125 / 1.5, 2.375, 0.25 - 1.625 / 2],
        ],
    ),
    # The same with one reward of 1/2, of weight 1.
    "shrunk-norm-weighted:1,0.5": (
        {"squared_norms": NORMS},
        [
            [1 - 2.5 / 10, -3.5 / 9, -3.5 / 8, 0.5 - 1.5 / 7],
            [0.25 - 2 / 2.5, -1 - 2.625 / 2.5, 2 - 0.125 / 2, 0.25 - 2.125 / 3],
        ],
    ),
    # The others' sums are .5, 1.5, 1.5, 1; 1.25, 2.5, -.5, 1.25; two earlier rewards bring 1.5; -1.
    "memory:2": (
        {"earlier": [[1.0, 0.5], [-1.0, 0.0]]},
        [[0.6, -0.6, -0.6, 0.0], [0.2, -1.3, 2.3, 0.2]],
    ),
    # A quarter of the earlier mean, 3/4 or -1/2, and three quarters of the others' mean.
    "weighted-memory:2,.25": (
        {"earlier": [[1.0, 0.5], [-1.0, 0.0]]},
        [
            [1 - 5 / 16, -9 / 16, -9 / 16, 1 / 16],
            [1 / 16, -1.5, 2.25, 1 / 16],
        ],
    ),
    # A quarter of 1/2 and three quarters of the others' mean.
    "shrinkage:0.25,0.5": ({}, [[0.75, -0.5, -0.5, 0.125], [-0.1875, -1.75, 2.0, -0.1875]]),
    # The others' sums are .5, 1.5, 1.5, 1; 1.25, 2.5, -.5, 1.25; one more and a half count as outputs.
    "bayes:1,0.5": ({}, [[2 / 3, -5 / 9, -5 / 9, 1 / 18], [-0.25, -16 / 9, 17 / 9, -0.25]]),
    # Means 3/8, deviations √11/8 and √73/8.
    "std": ({}, [over(11**0.5, 5, -3, -3, 1), over(73**0.5, -1, -11, 13, -1)]),
    "std-ddof1": (
        {},
        [over((44 / 3) ** 0.5, 5, -3, -3, 1), over((292 / 3) ** 0.5, -1, -11, 13, -1)],
    ),
    # Variances of the others: 1/12, 1/4, 1/4, 1/3; 327/144, 147/144, 75/144, 327/144.
    "others-std": (
        {},
        [
            [5 / 6 * 12**0.5, -1.0, -1.0, 3**0.5 / 6],
            [-2 / 327**0.5, -22 / 147**0.5, 26 / 75**0.5, -2 / 327**0.5],
        ],
    ),
    "maxrl": ({}, [over(3, 5, -3, -3, 1), over(3, -1, -11, 13, -1)]),
    # Greatest of two, own with another less two others: 1 - 1/3, 1/2 - 5/6, again, 2/3 - 2/3;
    # 5/6 - 17/12, again, 2 - 1/4, 5/6 - 17/12.
    "pass-at-k:2": ({}, [[4 / 3, -2 / 3, -2 / 3, 0.0], [-7 / 6, -7 / 6, 3.5, -7 / 6]]),
    # Gains over each of the others: 1, 1, .5; none; none; 0, .5, .5;
    # 1.25, 0, 0; none; 1.75, 3, 1.75; as the first.
    "gain-at-k:2": ({}, [[5 / 3, 0.0, 0.0, 2 / 3], [5 / 6, 0.0, 13 / 3, 5 / 6]]),
    # For the binary rewards: the others have 1, 2, 2, 1; 1, 1, 0, 1 successes.
    "loo-table:.2,.3,.6,.7": ({}, [[0.7, -0.6, -0.6, 0.7], [-0.3, -0.3, 0.8, -0.3]]),
    # For the binary rewards: 2 and 1 successes in the group.
    "count-table:.9,.8,.6,.5,-.1,-.2,-.3,-.4": (
        {},
        [[0.8, -0.3, -0.3, 0.8], [-0.2, -0.2, 0.9, -0.2]],
    ),
    "best": (
        {"best_table": (0.2, 0.3, 0.6, 0.7)},
        [[0.7, -0.6, -0.6, 0.7], [-0.3, -0.3, 0.8, -0.3]],
    ),
}

TABLES = ("loo-table:.2,.3,.6,.7", "count-table:.9,.8,.6,.5,-.1,-.2,-.3,-.4", "best")


def rewards_for(name):
    """What the advantages in ``EXPECTED`` are of."""
    return BINARY if name in TABLES else REWARDS


def known(name, make):
    """The keyword argument of an estimator, arrays made by ``make``."""
    return {
        key: make(value) if isinstance(value, list) else value
        for key, value in EXPECTED[name][0].items()
    }


def test_every_estimator_is_covered():
    assert {record_of(name).name for name in EXPECTED} == set(estimators.FUNCTIONS)


@pytest.mark.parametrize(("library", "dtype", "device"), WAYS)
@pytest.mark.parametrize("name", EXPECTED)
def test_advantages_by_hand_in_every_library(name, library, dtype, device):
    make = maker(library, dtype, device)
    rewards = make(rewards_for(name))
    result = estimators.advantages(name, rewards, **known(name, make))
    assert type(result) is type(rewards)
    assert (result.dtype, result.device) == (rewards.dtype, rewards.device)
    assert tuple(result.shape) == (2, 4)
    assert np.allclose(host(result), EXPECTED[name][1], rtol=0, atol=ROUNDING[dtype])


@pytest.mark.parametrize("number", [0.5, np.float64(0.5), 1, np.float32(0.5), np.array(0.5)])
def test_single_precision_is_kept_beside_a_number(number):
    rewards = np.asarray(REWARDS, dtype=np.float32)
    result = estimators.oracle(rewards, value=number)
    assert result.dtype == np.float32
    assert np.allclose(result, rewards - float(number))


def test_gradients_flow_through_scores_in_torch():
    torch = pytest.importorskip("torch")
    scores = torch.ones(2, 3, requires_grad=True, dtype=torch.float64)
    rewards = torch.tensor([1.0, 0.0], dtype=torch.float64)
    estimators.gradient(scores, estimators.grpo(rewards)).sum().backward()
    assert scores.grad.tolist() == [[0.5] * 3, [-0.5] * 3]


SHARED = ("constant", "best_table")
"""What is one for all prompts."""


@pytest.mark.parametrize("shape", [(), (2,), (2, 3)])
@pytest.mark.parametrize("name", EXPECTED)
def test_leading_axes_are_batches(name, shape):
    generator = np.random.default_rng(0)
    rewards = generator.normal(size=(*shape, 4))
    if name in TABLES:
        rewards = (rewards > 0).astype(np.float64)
    key = next(iter(EXPECTED[name][0]), None)
    extra = {}
    if key == "squared_norms":
        extra = {key: generator.exponential(size=rewards.shape)}
    elif key == "earlier":
        extra = {key: generator.normal(size=(*shape, 2))}
    elif key in SHARED:
        extra = {key: EXPECTED[name][0][key]}
    elif key is not None:
        extra = {key: generator.normal(size=shape)}
    result = estimators.advantages(name, rewards, **extra)
    assert result.shape == rewards.shape
    for where in np.ndindex(*shape):
        one = {k: v if k in SHARED else np.asarray(v[where]) for k, v in extra.items()}
        assert np.allclose(result[where], estimators.advantages(name, rewards[where], **one))


@pytest.mark.parametrize("name", ["oracle", "critic", "minimum-variance", "norm-weighted"])
@pytest.mark.parametrize("torch_rewards", [False, True])
def test_arrays_of_two_libraries_are_refused(name, torch_rewards):
    ours, theirs = maker("numpy"), maker("torch")
    if torch_rewards:
        ours, theirs = theirs, ours
    refuses("the same library", estimators.advantages, name, ours(REWARDS), **known(name, theirs))


WRONG = {
    **{
        f"{name} without": (name, {}, next(iter(more)))
        for name, (more, _) in EXPECTED.items()
        if more
    },
    **{
        f"{name} of {value}": (name, {next(iter(EXPECTED[name][0])): value}, name)
        for name in ("oracle", "critic", "minimum-variance", "constant")
        for value in (float("nan"), float("inf"), np.array([0.0, np.nan]), None)
    },
    **{
        f"oracle of shape {shape}": ("oracle", {"value": np.zeros(shape)}, r"leading shape \(2,\)")
        for shape in ((2, 1), (2, 4), (4,), (1,), (1, 2))
    },
    "a string": ("oracle", {"value": "0.5"}, "oracle"),
    "one too many": ("oracle", {"value": 0.0, "temperature": 1.0}, "temperature"),
    "not its own": ("grpo", {"value": 0.5}, "value"),
    "a table too short": ("loo-table:.2,.7", {}, "2 values: a group of 4 needs as many"),
    "a table of successes alone": ("count-table:.2,.7,.8,.9", {}, "4 values: a group of 4 needs 8"),
    "a best table too short": ("best", {"best_table": [0.5]}, "1 values: a group of 4"),
    "a table of rewards that are not 0 or 1": (TABLES[0], {}, "rewards that are 0 or 1"),
    "more attempts than outputs": ("pass-at-k:5", {}, "at least k = 5: group size is 4"),
    "no attempt": ("pass-at-k:0", {}, "k is 0"),
    "no prior successes": ("bayes:0,1", {}, "successes is 0"),
    "too much shrinkage": ("shrinkage:1.5,0", {}, "amount of shrinkage is 1.5"),
    "a prior mean of NaN": ("shrinkage:.5,nan", {}, "mean value holds nan"),
    "a prior weight below 0": (
        "shrunk-norm-weighted:-1,0",
        {"squared_norms": np.ones((2, 4))},
        "prior weight is -1",
    ),
    "norms too few": (
        "norm-weighted",
        {"squared_norms": np.ones((2, 3))},
        r"has shape \(2, 3\): it must have the rewards' shape \(2, 4\)",
    ),
    "norms below 0": ("norm-weighted", {"squared_norms": -np.ones((2, 4))}, "not be negative"),
}


@pytest.mark.parametrize(("name", "words", "message"), WRONG.values(), ids=WRONG)
def test_an_estimators_arguments_that_are_refused(name, words, message):
    refuses(message, estimators.advantages, name, np.asarray(REWARDS), **words)


@pytest.mark.parametrize("name", EXPECTED)
@pytest.mark.parametrize(
    "bad",
    [
        np.array([[1.0, np.nan, 0.0, 0.0]] * 2),
        np.array([[1.0, np.inf, 0.0, 0.0]] * 2),
        np.array([[1.0, -np.inf, 0.0, 0.0]] * 2),
        np.array([[1j, 0, 0, 1]] * 2),
        np.array([["1", "0", "0", "1"]] * 2),
        [["1", "0", "0", "1"]] * 2,
        [[1.0, 0.0, 0.0, 1.0], [1.0]],
        1.0,
        np.float64(1.0),
        None,
        np.ones((2, 0)),
    ],
)
def test_rewards_that_are_refused(name, bad):
    refuses("reward", estimators.advantages, name, bad, **known(name, np.asarray))


@pytest.mark.parametrize(("bad", "size"), [(1.0, 0), ([1.0], 1), (np.ones((2, 0)), 0)])
def test_a_group_that_is_too_small_is_told_its_size(bad, size):
    refuses(f"at least 2 rewards .* group size {size}$", estimators.grpo, bad)


@pytest.mark.parametrize("library", LIBRARIES[1:])
def test_other_libraries_rewards_are_refused_too(library):
    make = maker(library)
    refuses("NaN or infinity", estimators.grpo, make([1.0, float("nan")]))
    refuses("group size 1", estimators.grpo, make([1.0]))


COUNTED = [[1, 0, 0, 1], [0, 0, 1, 0]]


@pytest.mark.parametrize("name", EXPECTED)
def test_whole_numbers_truth_values_and_lists_are_rewards(name):
    expected = estimators.advantages(name, np.array(COUNTED, float), **known(name, np.asarray))
    for rewards in (COUNTED, np.array(COUNTED), np.array(COUNTED) > 0, np.array(COUNTED, "u1")):
        result = estimators.advantages(name, rewards, **known(name, np.asarray))
        assert result.dtype == np.float64
        np.testing.assert_array_equal(result, expected)


def test_norm_weighted_zero_over_zero_is_zero():
    rewards = np.array([2.0, 1.0, 4.0])
    # Only output 0 has a score: it has no baseline, the others have its reward.
    result = estimators.norm_weighted(rewards, squared_norms=np.array([3.0, 0.0, 0.0]))
    assert result.tolist() == [2.0, -1.0, 2.0]
    assert estimators.norm_weighted(rewards, squared_norms=np.zeros(3)).tolist() == [2.0, 1.0, 4.0]


@pytest.mark.parametrize("big", [1e17, 1e30, 1e200])
def test_norm_weighted_survives_a_norm_that_dwarfs_the_others(big):
    rewards = np.array([5.0, 1.0, 3.0])
    result = estimators.norm_weighted(rewards, squared_norms=np.array([big, 1.0, 3.0]))
    assert result[0] == pytest.approx(5 - (1 + 9) / 4, rel=1e-15)
    assert result[1] == pytest.approx(1 - 5, rel=1e-14)
    tiny = estimators.norm_weighted(rewards, squared_norms=np.array([1.0, 1 / big, 3 / big]))
    assert tiny[0] == pytest.approx(5 - (1 + 9) / 4, rel=1e-14)


@pytest.mark.parametrize("largest", [0, 2, 4])
@pytest.mark.parametrize(
    "norms", [[1e300, 1, 3e-300, 0, 1], [1e-300, 2e-300, 0, 2e-300, 0], [7, 7, 7, 7, 7]]
)
def test_norm_weighted_keeps_all_digits_whatever_the_norms(norms, largest):
    rewards = np.array([5.0, -1.0, 3.0, 0.1, 1e5])
    weights = np.roll(np.array(norms, dtype=float), largest)
    result = estimators.norm_weighted(rewards, squared_norms=weights)
    exact = [(Fraction(z), Fraction(w)) for z, w in zip(rewards, weights, strict=True)]
    for i, (own, _) in enumerate(exact):
        others = exact[:i] + exact[i + 1 :]
        total = sum(w for _, w in others)
        baseline = sum(w * z for z, w in others) / total if total else 0
        assert result[i] == pytest.approx(float(own - baseline), rel=1e-13)


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_group_whose_square_would_fill_the_memory(library):
    """The first of 100,000 is a failure beside 10,000 successes."""
    make, size, won = maker(library), 100_000, 10_000
    rewards = make((np.arange(size) % 10 == 9) * 1.0)
    share, lost = won / (size - 1), size - 1 - won
    one_of_two = 1 - lost * (lost - 1) / ((size - 1) * (size - 2))
    for advantages, first in (
        (estimators.norm_weighted(rewards, squared_norms=make(np.ones(size))), -share),
        (
            estimators.others_standardised(rewards),
            -share / (won * (1 - share) / (size - 2)) ** 0.5,
        ),
        (estimators.pass_at_k(rewards, k=2), 2 * (share - one_of_two)),
    ):
        assert float(advantages[0]) == pytest.approx(first, rel=1e-9)


@pytest.mark.parametrize("library", LIBRARIES)
def test_others_deviation_loses_no_digits_to_an_offset_or_one_large_reward(library):
    make = maker(library)
    plain = np.asarray(estimators.others_standardised(make([0.0, 1.0, 2.0, 4.0])))
    far = np.asarray(estimators.others_standardised(make([1e9, 1e9 + 1, 1e9 + 2, 1e9 + 4])))
    assert far == pytest.approx(plain, rel=1e-14)
    one = np.asarray(estimators.others_standardised(make([1e17, 1.0, 2.0, 3.0])))
    assert one[0] == pytest.approx(1e17, rel=1e-15)


@pytest.mark.parametrize("unit", [1e-60, 1e60])
def test_norms_beyond_the_range_of_the_rewards_type_keep_their_ratios(unit):
    """A policy that is nearly sure has norms that single precision takes for 0."""
    rewards = np.array([5.0, 1.0, 3.0], dtype=np.float32)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        result = estimators.norm_weighted(rewards, squared_norms=unit * np.array([2.0, 1.0, 3.0]))
    assert result == pytest.approx([5 - 10 / 4, 1 - 19 / 5, 3 - 11 / 3], rel=1e-6)


@pytest.mark.parametrize("library", LIBRARIES)
def test_gradient_by_hand_in_every_library(library):
    make = maker(library)
    scores = make([[[1.0, 0.0, 2.0], [0.0, 1.0, -1.0]]])
    result = estimators.gradient(scores, make([[3.0, -1.0]]))
    assert type(result) is type(scores)
    assert np.asarray(result).tolist() == [[1.5, -0.5, 3.5]]


@pytest.mark.parametrize(
    ("scores", "advantages"),
    [
        *(
            (np.ones(scores), np.ones(advantages))
            for scores, advantages in (
                ((2, 3), (3,)), ((4, 2, 3), (2,)), ((2, 3), (2, 3)), ((2,), (2,)), ((1, 2, 3), (4, 2)),
            )
        ),
        (np.zeros((0, 2)), np.zeros(0)),
        ([["1", "0"]], [1.0]),
    ],
)  # fmt: skip
def test_a_gradient_refuses_what_does_not_match(scores, advantages):
    message = r"\(\.\.\., G, d\) and \(\.\.\., G\)|array|empty|group"
    refuses(message, estimators.gradient, scores, advantages)


# What no list by hand says of the estimators that people run.


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_group_without_spread_is_silent_whatever_rounding_says(library):
    """The mean of three times .1 is not .1: a deviation of 1e-17 would make advantages of 1."""
    make = maker(library)
    for name in ("std", "std-ddof1", "others-std"):
        assert not np.asarray(estimators.advantages(name, make([0.1, 0.1, 0.1]))).any()
    alone = np.asarray(estimators.others_standardised(make([0.1, 0.1, 0.1, 0.7])))
    assert alone[3] == pytest.approx(0.6, rel=1e-14)  # the others have no spread: undivided
    assert alone[0] == pytest.approx(-0.2 / 0.12**0.5, rel=1e-14)
    assert not np.asarray(estimators.maxrl(make([0.0, 0.0]))).any()
    assert not np.asarray(estimators.maxrl(make([-1.0, 0.5]))).any()


def test_a_group_of_one_teaches_a_normalised_estimator_nothing():
    one = np.array([[2.0], [3.0]])
    for function in (estimators.standardised, estimators.unbiased_std, estimators.maxrl):
        assert not function(one).any()
    assert np.array_equal(estimators.pass_at_k(one, k=1), one)
    assert estimators.bayes(np.ones((1, 1)), successes=1, failures=1).tolist() == [[0.5]]


def test_epsilon_is_added_to_the_deviation():
    rewards = np.array([1.0, 0.0])
    assert estimators.standardised(rewards, epsilon=0.5).tolist() == [0.5, -0.5]
    for words in ({"ddof": 2}, {"epsilon": -1.0}, {"epsilon": np.nan}):
        refuses(next(iter(words)), estimators.standardised, rewards, **words)
