"""What an advantage function of one's own climbs with rewards 0 and 1."""

import re
from itertools import product

import numpy as np
import pytest

from tests.support.advantages import dr_grpo, failure, neighbour, normalised, rloo
from tests.support.refusals import refuses
from ustat_pg import estimators, explain
from ustat_pg.testing import assert_unbiased
from ustat_pg.testing.function import UnderTest
from ustat_pg.testing.tables import groups, namesake, table_of

RATES = [0.1, 0.35, 0.5, 0.9]


def clamped(z):
    return np.clip(normalised(z), -1, 1)


def lone(z):
    """A success counts where it is the only one."""
    return z * (z.sum(-1, keepdims=True) == 1)


def undivided(z):
    """maxrl without the mean subtracted where some succeed."""
    mean = z.mean(-1, keepdims=True)
    return np.where(mean > 0, z / np.where(mean > 0, mean, 1.0) - 1, 0.0)


def shifted(z):
    """Twice std's weight, with a baseline that no table of the catalogue has."""
    spread = z.std(-1, keepdims=True)
    return np.where(spread > 0, 2 * (z - 0.5) / np.where(spread > 0, spread, 1.0), 0.0)


def first_alone(z):
    """The first output of a group, against the last."""
    a = np.zeros_like(z)
    a[..., 0] = z[..., 0] * (1 + z[..., -1])
    return a


def weight(function, size, p):
    """E ĝ over g of one prompt with two outputs, of which one succeeds: every group, by its probability."""
    outcomes = np.array(list(product([0.0, 1.0], repeat=size)))
    chance = np.where(outcomes == 1, p, 1 - p).prod(axis=1)
    scores = outcomes - p
    return chance @ (function(outcomes) * scores).mean(axis=1) / (p * (1 - p))


@pytest.mark.parametrize(
    "function", [normalised, clamped, lone, shifted, undivided, first_alone, neighbour, dr_grpo]
)
@pytest.mark.parametrize("size", [2, 3, 5])
def test_weight_matches_the_enumeration_of_groups(function, size):
    table, apart = table_of(UnderTest(function, "batched", ("rewards",), None), size)
    own = [weight(function, size, p) for p in RATES]
    np.testing.assert_allclose(table.weight(RATES), own, rtol=1e-10)
    if function not in (first_alone, neighbour):
        assert apart < 1e-12
        result = explain(function, group_size=size, pass_rates=RATES)
        np.testing.assert_allclose(result.mean_factor, own, rtol=1e-10)
        assert result.estimator == function.__name__


@pytest.mark.parametrize(
    ("function", "size", "name", "factor", "whole"),
    [
        (rloo, 8, "grpo", 1, True),
        (dr_grpo, 8, "group-mean", 1, True),
        (normalised, 8, "std-ddof1", 1, True),
        (normalised, 64, "std-ddof1", 1, True),
        (lambda z: 3 * estimators.standardised(z), 8, "std", 3, True),
        (lone, 5, "pass-at-k:5", 1 / 5, True),
        (undivided, 6, "maxrl", 1, True),
        (lambda z: z + z.mean(-1, keepdims=True), 4, "grpo", 5 / 4, False),
    ],
)
def test_a_function_that_the_catalogue_has_is_named(function, size, name, factor, whole):
    found = explain(function, group_size=size).alike
    assert (found.name, found.whole) == (name, whole)
    assert found.factor == pytest.approx(factor, rel=2e-3)
    assert found.apart < 1e-3


@pytest.mark.parametrize(
    "function", [clamped, shifted, lambda z: z * (z.mean(-1, keepdims=True) < 0.5)]
)
def test_a_function_outside_the_catalogue_gets_no_name(function):
    result = explain(function, group_size=8)
    assert result.alike is None
    assert result.family.name == "count-table"
    assert "is a new table, not a multiple of any in the catalogue." in " ".join(
        str(result).split()
    )


def test_a_function_and_its_estimator_have_the_same_explanation():
    def mine(z):
        return estimators.standardised(z)

    ours, named = explain(mine, group_size=6), explain("std", group_size=6)
    for field in (
        "mse",
        "noise_to_signal",
        "cosine",
        "mean_factor",
        "frac_reward_zero_std",
        "noise_to_rloo",
    ):
        np.testing.assert_allclose(getattr(ours, field), getattr(named, field), rtol=1e-9)
    text = str(ours)
    assert text.startswith("mine: group mean over the group's standard deviation, divisor G\n")
    assert "On groups of 6 rewards 0 and 1 it is std." in text
    assert named.family.climbs in " ".join(text.split())
    recorded = ours.to_dict()
    assert recorded["alike"]["name"] == "std"
    assert "alike" not in named.to_dict()
    weight_only = str(explain(lambda z: z + z.mean(-1, keepdims=True), group_size=4))
    assert "with the weight of grpo times 1.25. The expected reward itself" in " ".join(
        weight_only.split()
    )


def test_functions_that_do_not_depend_on_counts_alone_are_refused():
    refuses(
        "first_alone depends on the places of outputs in a group",
        explain,
        first_alone,
        group_size=4,
    )
    refuses("not finite", explain, lambda z: z / z.std(-1, keepdims=True), group_size=4)
    refuses("mixes the groups", explain, lambda z: z - z.mean(), group_size=4)
    refuses("group size is not given", explain, rloo)
    refuses("group size is 1", explain, rloo, group_size=1)


def test_torch_functions_are_explained():
    torch = pytest.importorskip("torch")

    def mine(z):
        return torch.softmax(z, -1) - 1 / z.shape[-1]

    assert explain(mine, group_size=4).mean_factor[0] > 0


def said(function, **how):
    message = failure(assert_unbiased, function, **how)
    found = re.search(r" \(with rewards 0 and 1 (it .*?)\); ", message)
    return None if found is None else found[1]


def test_the_message_names_what_a_biased_function_climbs():
    w = [weight(normalised, 4, p) for p in (0.1, 0.5, 0.9)]
    shown = ", ".join(f"{each:.3g} at p = {p}" for each, p in zip(w, (0.1, 0.5, 0.9), strict=True))
    words = said(normalised, group_size=4)
    assert words.startswith(
        f"it climbs w(p) times a prompt's gradient: w = {shown}, that of std-ddof1"
    )
    assert (
        said(normalised, group_size=3)
        == f"it is the gradient times {w_of(3):.4g}, whatever the pass rate"
    )
    assert "that of" not in said(clamped, group_size=5)
    # At larger groups the worst is named, and at G = 2 a square is the reward itself.
    assert said(lambda z: rloo(z**2), group_size=2) == "it is the gradient, whatever the pass rate"
    assert said(first_alone, group_size=3).startswith("it climbs w(p)")


def w_of(size):
    return weight(normalised, size, 0.5)


def test_the_message_is_silent_if_a_factor_suffices_or_rewards_do_not():
    for function in (dr_grpo, lambda z: -rloo(z), lambda z: 0 * z):
        assert said(function) is None
    assert said(normalised, layout="minibatch", group_size=3) is None
    both = ("rewards", "squared_norms")
    assert said(lambda z, norms: normalised(z) * norms, inputs=both, group_size=3) is None

    def refuses_zeros(z):
        assert (z != 0).all()
        return normalised(z)

    from ustat_pg.problems import SoftmaxBandit

    graded = SoftmaxBandit.tabular(
        [1.0], [[0.3, -0.5, 0.9]], [[[1.0], [2.0], [4.0]]], np.ones((1, 3, 1))
    )
    assert said(refuses_zeros, problems=graded, group_size=3) is None


def test_groups_cover_all_outcomes_or_every_count():
    assert len(np.unique(groups((0.0, 1.0), 12), axis=0)) == 4096
    many = groups((0.0, 1.0), 20)
    assert set(many.sum(axis=1)) == set(range(21))
    nothing = table_of(UnderTest(lambda z: 0 * z, "batched", ("rewards",), None), 4)[0]
    assert namesake(nothing) is None
