"""Advantage functions as trainers write them, under the checks that users put in their CI."""

from __future__ import annotations

import functools
import itertools
import subprocess
import sys

import array_api_strict
import hypothesis
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ustat_pg import estimators, testing
from ustat_pg.engines.base import Cell, Estimator, SquaredError
from ustat_pg.engines.gradients.exact import ExactEngine
from ustat_pg.problems import SoftmaxBandit, random_problem
from ustat_pg.testing import (
    assert_finite,
    assert_invariances,
    assert_unbiased,
    default_problems,
    exact_mse,
)
from ustat_pg.validation import InputError

BOTH = ("rewards", "squared_norms")


# Advantage functions in the style of trainers.


def rloo(z):
    """TRL's RLOO trainer: the mean of the others."""
    size = z.shape[-1]
    return z - (z.sum(axis=-1, keepdims=True) - z) / (size - 1)


def dr_grpo(z):
    return z - z.mean(axis=-1, keepdims=True)


def normalised(z):
    """TRL's GRPO trainer: divided by the group's deviation (ddof 1, as torch's) and an epsilon."""
    return (z - z.mean(axis=-1, keepdims=True)) / (z.std(axis=-1, ddof=1, keepdims=True) + 1e-4)


def normalised_without_epsilon(z):
    return (z - z.mean(axis=-1, keepdims=True)) / z.std(axis=-1, keepdims=True)


def batch_normalised(z):
    return (z - z.mean(axis=-1, keepdims=True)) / (z.std() + 1e-4)


def stale(z):
    """The mean reward of the prompt before; 0 for the first."""
    before = np.concatenate([[0.0], z.mean(axis=-1)[:-1]])
    return z - before[:, None]


def other_prompts(z):
    total = z.mean(axis=-1).sum()
    return z - ((total - z.mean(axis=-1)) / (len(z) - 1))[:, None]


def whole_minibatch(z):
    return z - z.mean()


def maximum_reward(z):
    """RLOO, but the baseline of a group is never below 0.2 (prompt-independent, own reward unused)."""
    return z - np.maximum(z - rloo(z), 0.2)


def neighbour(z):
    return z - np.roll(z, 1, axis=-1)


def norm_weighted(z, norms):
    return estimators.norm_weighted(z, squared_norms=norms)


def own_norm_weighted(z, norms):
    return z - (norms * z).sum(-1, keepdims=True) / norms.sum(-1, keepdims=True)


def signed_wrongly(z):
    return -rloo(z)


def own_reward_in_the_sum(z):
    return z - z.sum(axis=-1, keepdims=True) / (z.shape[-1] - 1)


def others_over_g(z):
    return z - (z.sum(axis=-1, keepdims=True) - z) / z.shape[-1]


def failure(check, *args, **kwargs):
    """The one line that a check fails with."""
    with pytest.raises(AssertionError) as found:
        check(*args, **kwargs)
    assert type(found.value) is AssertionError
    assert found.value.__context__ is None
    message = str(found.value)
    assert "\n" not in message
    return message


# Unbiasedness.


@pytest.mark.parametrize(
    "function", [rloo, maximum_reward, neighbour, estimators.grpo, estimators.vanilla]
)
def test_unbiased_functions_pass(function):
    assert_unbiased(function)


@pytest.mark.parametrize("layout", ["group", "minibatch"])
def test_every_layout_serves_a_function_of_any_leading_axes(layout):
    assert_unbiased(rloo, layout=layout, group_size=3)
    assert "(G-1)/G" in failure(assert_unbiased, dr_grpo, layout=layout, group_size=3)


def test_layouts_call_with_the_shapes_they_promise():
    seen = {}
    for layout in testing.LAYOUTS:
        seen[layout] = set()

        def function(z, norms, contexts, layout=layout):
            assert z.shape == norms.shape
            assert z.shape[:-1] == contexts.shape
            seen[layout].add(z.shape if layout != "batched" else (z.ndim, z.shape[-1]))
            return rloo(z)

        inputs = ("rewards", "squared_norms", "contexts")
        problem = default_problems()["a prompt rarely solved"]
        assert_unbiased(function, layout=layout, inputs=inputs, group_size=2, problems=problem)
    assert seen == {"batched": {(2, 2)}, "minibatch": {(1, 2), (2, 2)}, "group": {(2,)}}


def test_flat_arrays_by_the_wrapper_of_the_docstring():
    def flat(z, size):
        assert z.ndim == 1
        return rloo(z.reshape(-1, size)).ravel()

    assert_unbiased(lambda z: flat(z.reshape(-1), z.shape[-1]).reshape(z.shape))


@pytest.mark.parametrize(
    ("function", "factor", "words"),
    [
        (dr_grpo, "(G-1)/G", "a rescaled learning rate, that of the full group mean"),
        (signed_wrongly, "-1", "the sign is wrong"),
        (own_reward_in_the_sum, "(G-2)/(G-1)", "the own reward is in a sum"),
        (lambda z: -dr_grpo(z), "-(G-1)/G", "the sign is wrong"),
        (lambda z: rloo(z) * z.shape[-1], "G", "a sum over the group"),
        (lambda z: rloo(z) / z.shape[-1], "1/G", "divided by the group size twice"),
        (lambda z: 0 * z, "0", "no signal"),
        (lambda z: rloo(z) * 1.5, "1.5 at G = 2, 1.5 at G = 3, 1.5 at G = 4", "a rescaled"),
        (lambda z: rloo(z) * (2.5 - z.shape[-1]), "0.5 at G = 2, -0.5 at G = 3", "not always up"),
    ],
)
def test_multiples_of_the_gradient_are_named(function, factor, words):
    message = failure(assert_unbiased, function)
    assert "on every problem E ĝ is c times the gradient" in message
    assert f"c = {factor}" in message
    assert words in message


def test_the_message_names_problem_size_and_bias():
    message = failure(assert_unbiased, dr_grpo, group_size=4)
    assert message.startswith("dr_grpo is biased: at G = 4 on problem 'three rewards, two prompts")
    assert "‖E ĝ - g‖ is 0.25 times ‖g‖, the worst of 4 failures in 4 enumerations" in message
    assert "(0.75 at G = 4)" in message


def test_rescaled_functions_pass_where_that_is_allowed():
    assert_unbiased(dr_grpo, up_to_scale=True)
    assert_unbiased(lambda z: rloo(z) * 7, up_to_scale=True)
    for function in (signed_wrongly, normalised, lambda z: 0 * z):
        failure(assert_unbiased, function, up_to_scale=True)


@pytest.mark.parametrize("layout", ["batched", "group"])
def test_normalisation_is_more_than_a_rescaled_learning_rate(layout):
    message = failure(assert_unbiased, normalised, layout=layout)
    assert "E ĝ is no multiple of the gradient" in message
    assert "more than a rescaled learning rate" in message
    assert "c =" not in message


def test_a_factor_that_changes_with_the_problem_is_no_learning_rate():
    # One prompt and two arms: every E ĝ is parallel to g there, so that one problem shows nothing.
    two_arms = {str(s): random_problem(s, "two-arms", contexts=1) for s in range(2)}
    message = failure(assert_unbiased, normalised, problems=two_arms, group_size=3)
    assert "the factor changes from problem to problem" in message
    alone = failure(assert_unbiased, normalised, problems=two_arms["0"], group_size=3)
    assert "on this problem E ĝ is c times the gradient" in alone


def test_functions_that_mix_prompts_are_sent_to_the_minibatch_layout():
    message = failure(assert_unbiased, batch_normalised)
    assert "mixes the groups of a batch" in message
    assert "layout='minibatch'" in message
    message = failure(assert_unbiased, batch_normalised, layout="minibatch", group_size=3)
    assert "more than a rescaled learning rate" in message
    assert_unbiased(stale, layout="minibatch")
    assert "mixes" in failure(assert_unbiased, stale)


def test_batch_sizes_are_the_users_to_choose():
    assert_unbiased(other_prompts, layout="minibatch", batch_size=2)
    message = failure(assert_unbiased, whole_minibatch, layout="minibatch", group_size=(2, 3))
    assert "c = (BG-1)/(BG)" in message
    assert "0.8333 at G = 3, B = 2" in message
    assert "c = B: " in failure(
        assert_unbiased, lambda z: len(z) * rloo(z), layout="minibatch", group_size=(2, 3)
    )
    with pytest.raises(InputError, match="batch_size is given with layout 'batched'"):
        assert_unbiased(rloo, batch_size=2)


def test_functions_of_squared_norms():
    assert_unbiased(norm_weighted, inputs=BOTH)
    assert_unbiased(lambda norms, z: norm_weighted(z, norms), inputs=BOTH[::-1])
    assert "no multiple" in failure(assert_unbiased, own_norm_weighted, inputs=BOTH)


def test_a_critic_is_a_function_of_the_contexts():
    values = np.array([0.3, -2.0])

    def critic(z, contexts):
        return z - values[contexts][..., None]

    assert_unbiased(critic, inputs=("rewards", "contexts"))
    assert_unbiased(critic, inputs=("rewards", "contexts"), layout="minibatch", group_size=2)


def test_random_functions_and_functions_with_memory_are_refused():
    rng = np.random.default_rng(0)
    running = [0.0]

    def remembers(z):
        running[0] = 0.9 * running[0] + 0.1 * z.mean()
        return z - running[0]

    for function in (lambda z: rloo(z) + rng.normal(size=z.shape), remembers):
        for layout in testing.LAYOUTS:
            message = failure(assert_unbiased, function, layout=layout, group_size=2)
            assert "is random or remembers earlier calls" in message


def test_functions_may_write_into_what_they_are_given():
    def in_place(z):
        z -= (z.sum(axis=-1, keepdims=True) - z) / (z.shape[-1] - 1)
        return z

    def in_place_with_norms(z, norms):
        out = norm_weighted(z.copy(), norms.copy())
        z[...], norms[...] = 7, 7
        return out

    assert_unbiased(in_place)
    assert_unbiased(in_place_with_norms, inputs=BOTH)
    assert_invariances(in_place, examples=10)


def test_a_gradient_of_zero_has_a_scale_still():
    equal = random_problem(0, "equal-rewards")
    assert_unbiased(rloo, problems=equal)
    # Rewards that differ though their means do not: g = 0 again, and 3 z³ has another mean.
    values = np.broadcast_to([[[1.0, -1.0], [2.0, -1.0]]], (1, 2, 2))
    probs = np.array([[[0.5, 0.5], [1 / 3, 2 / 3]]])
    level = SoftmaxBandit.tabular([1.0], [[0.0, 0.7]], values, probs)
    assert_unbiased(rloo, problems=level)
    message = failure(assert_unbiased, lambda z: rloo(z**3), problems=level)
    assert "times (E‖s‖² E z²)^½" in message
    assert "there the gradient is 0 and E ĝ is not" in message


def test_single_precision_is_named():
    def single(z):
        return rloo(z.astype(np.float32) / 3) * 3

    message = failure(assert_unbiased, single)
    assert "rounding at most" in message
    assert "rtol=1e-05 allows for that" in message
    assert_unbiased(single, rtol=1e-5)
    assert "single precision" not in failure(assert_unbiased, lambda z: dr_grpo(z) * np.float32(1))


@settings(max_examples=15, derandomize=True, database=None, deadline=None)
@given(testing.problems(max_contexts=2), st.integers(2, 3))
def test_unbiased_on_any_problem(problem, size):
    assert_unbiased(rloo, problems=[problem], group_size=size)
    assert_unbiased(norm_weighted, problems=[problem], group_size=size, inputs=BOTH)


# Planted mutants: each must fail at least one of the checks that a user would write.


@pytest.mark.parametrize(
    ("mutant", "unbiased"),
    [
        (dr_grpo, False),  # 1/G for 1/(G-1) in the U-statistic
        (others_over_g, True),  # 1/G for 1/(G-1) in the baseline: unbiased all the same
        (own_reward_in_the_sum, False),
        (signed_wrongly, False),
        (normalised, False),
        (lambda z: rloo(z) + z.mean(), False),
        (lambda z: np.clip(rloo(z), -0.5, 0.5), False),
        (lambda z: rloo(np.sort(z, axis=-1)), False),
        (neighbour, True),
    ],
)
def test_mutants_of_rloo_fail(mutant, unbiased):
    if unbiased:
        assert_unbiased(mutant)
        failure(assert_invariances, mutant)
    else:
        failure(assert_unbiased, mutant)


# The MSE.


def brute_force_mse(function, problem, size):
    """E ĝ and E‖ĝ - g‖² at one prompt, one outcome after the other."""
    mean, mse, target = 0.0, 0.0, problem.gradient()
    for x, chance in enumerate(problem.context_probs):
        table = problem.policy.scores(x)
        rollouts = [
            (p * q, table[k], z)
            for k, p in enumerate(problem.policy.probs[x])
            for q, z in zip(problem.reward_probs[x, k], problem.reward_values[x, k], strict=True)
        ]
        for group in itertools.product(rollouts, repeat=size):
            probability = chance * np.prod([p for p, _, _ in group])
            advantages = function(np.array([z for _, _, z in group]))
            estimate = sum(a * s for a, (_, s, _) in zip(advantages, group, strict=True)) / size
            mean = mean + probability * estimate
            mse += probability * np.sum((estimate - target) ** 2)
    return mean, mse


@pytest.mark.parametrize("function", [rloo, dr_grpo, normalised, neighbour, signed_wrongly])
def test_mse_against_brute_force(function):
    problem = random_problem(3, "linear", contexts=2)
    mean, mse = brute_force_mse(function, problem, 2)
    report = exact_mse(function, problem=problem, group_size=2)
    target = problem.gradient()
    assert report.mse == pytest.approx(mse, rel=1e-12)
    assert report.squared_bias == pytest.approx(np.sum((mean - target) ** 2), rel=1e-9, abs=1e-25)
    assert report.variance == pytest.approx(mse - report.squared_bias, rel=1e-12)
    factor = mean @ target / (target @ target)
    assert report.factor == pytest.approx(factor, rel=1e-12)
    if factor > 0:
        rescaled = functools.partial(lambda z, c: function(z) / c, c=factor)
        assert report.rescaled_mse == pytest.approx(
            brute_force_mse(rescaled, problem, 2)[1], rel=1e-12
        )
    else:
        assert np.isnan(report.rescaled_mse)


@pytest.mark.parametrize("batch", [1, 2])
def test_the_known_baselines_are_those_of_the_exact_engine(batch):
    problem = random_problem(5, "two-arms", contexts=2)
    report = exact_mse(rloo, problem=problem, group_size=3, batch_size=batch)
    names = ("grpo", "oracle", "vanilla", "minimum-variance")
    enumerated = ExactEngine().measure(
        Cell(problem, 3, batch), [SquaredError(Estimator(name)) for name in names]
    )
    said = [report.grpo_mse, report.oracle_mse, report.vanilla_mse, report.minimum_variance_mse]
    assert said == pytest.approx(enumerated.mean, rel=1e-12)
    assert report.mse == pytest.approx(report.grpo_mse, rel=1e-12)
    assert report.ratio_to_grpo == pytest.approx(1, rel=1e-12)


def test_shrinking_the_gradient_is_no_gain():
    problem = random_problem(0)
    report = exact_mse(dr_grpo, problem=problem, group_size=3)
    assert report.ratio_to_grpo < 1
    assert report.rescaled_ratio_to_grpo == pytest.approx(1, rel=1e-9)
    assert report.factor == pytest.approx(2 / 3, rel=1e-12)
    assert "biased" in str(report)
    assert "times grpo's" in str(report)
    assert "biased" not in str(exact_mse(rloo, problem=problem, group_size=3))


def test_mse_of_a_neighbour_as_baseline_is_larger():
    report = exact_mse(neighbour, problem=random_problem(0), group_size=4)
    assert report.ratio_to_grpo > 1.05
    assert report.squared_bias < 1e-20


def test_mse_of_the_plainest_bandit():
    # Corollary 5 (optimality): norm-weighted against grpo at G = 4 and G = 8, times 1000.
    arms = np.log([0.8, 0.1, 0.05, 0.05])
    bandit = SoftmaxBandit.tabular(
        [1.0], [arms], [[[1.0], [0.0], [0.0], [0.0]]], np.ones((1, 4, 1))
    )
    for size, ours, grpo in ((3, 74.9, 68.1), (4, 49.3, 47.3), (8, 12.9, 21.5)):
        report = exact_mse(norm_weighted, problem=bandit, group_size=size, inputs=BOTH)
        assert 1e3 * report.mse == pytest.approx(ours, abs=0.05)
        assert 1e3 * report.grpo_mse == pytest.approx(grpo, abs=0.05)


def test_mse_in_the_minibatch_layout_sees_the_other_prompts():
    problem = random_problem(1, "two-arms", contexts=2)
    plain = exact_mse(rloo, problem=problem, group_size=2, batch_size=2)
    same = exact_mse(rloo, problem=problem, group_size=2, batch_size=2, layout="minibatch")
    assert same == plain
    other = exact_mse(
        other_prompts, problem=problem, group_size=2, batch_size=2, layout="minibatch"
    )
    assert other.squared_bias < 1e-25
    assert other.mse != pytest.approx(plain.mse, rel=1e-3)


def test_ratios_where_nothing_has_an_error():
    report = exact_mse(rloo, problem=random_problem(0, "equal-rewards"), group_size=2)
    assert report.grpo_mse == pytest.approx(0, abs=1e-25)
    assert np.isnan(report.factor) or report.squared_bias < 1e-25


# Invariances and degenerate groups.


@pytest.fixture(params=["hypothesis", "seeded"])
def search(request, monkeypatch):
    """Both ways to look for rewards that fail."""
    if request.param == "seeded":
        monkeypatch.setattr(testing, "_has_hypothesis", lambda: False)
    return request.param


@pytest.mark.parametrize("function", [rloo, dr_grpo, estimators.grpo])
def test_leave_one_out_has_every_invariance(function, search):
    assert_invariances(function, examples=10)
    assert_invariances(function, examples=5, layout="group")
    assert_invariances(function, examples=5, layout="minibatch")


@pytest.mark.parametrize(
    ("function", "kept"),
    [
        (normalised, {"shift", "permutation", "zero-sum"}),
        (estimators.vanilla, {"scale", "permutation"}),
        (neighbour, {"shift", "scale", "zero-sum"}),
        (others_over_g, {"scale", "permutation"}),
        (own_reward_in_the_sum, {"scale", "permutation"}),
        (signed_wrongly, set(testing.INVARIANCES)),
        (maximum_reward, {"permutation"}),
    ],
)
def test_which_invariances_hold(function, kept, search):
    assert_invariances(function, kept, examples=10, group_size=(2, 5))
    for name in set(testing.INVARIANCES) - kept:
        message = failure(assert_invariances, function, name, examples=30)
        assert message.startswith(function.__name__)
        said = "do not sum to zero" if name == "zero-sum" else f"is not {name}-"
        assert said in message
        assert "at rewards" in message


def test_invariances_of_functions_of_norms_and_of_minibatches(search):
    assert_invariances(norm_weighted, ["shift", "scale", "permutation"], inputs=BOTH, examples=10)
    message = failure(assert_invariances, norm_weighted, "zero-sum", inputs=BOTH, examples=10)
    assert "sum to zero" in message
    kept = ["shift", "permutation", "zero-sum"]
    assert_invariances(batch_normalised, kept, layout="minibatch", examples=10)
    message = failure(assert_invariances, batch_normalised, "scale", layout="minibatch")
    assert "the advantages are normalised" in message
    assert "mixes the groups" in failure(assert_invariances, batch_normalised, kept)


def test_hypothesis_shrinks_what_no_corner_shows():
    def spoiled(z):
        """Wrong only where the largest reward is above 2.5."""
        return rloo(z) + (z.max(axis=-1, keepdims=True) > 2.5) * (z.max() < 5)

    message = failure(assert_invariances, spoiled, "zero-sum", group_size=3)
    assert "at rewards [0.0, 0.0, 2.5625]" in message


def test_no_search_changes_from_run_to_run(search):
    seen = []

    def watching(z):
        seen[-1].append(z.tobytes())
        return rloo(z)

    for _ in range(2):
        seen.append([])
        assert_invariances(watching, "shift", examples=20)
    assert seen[0] == seen[1]


def test_degenerate_groups():
    for function in (rloo, dr_grpo, normalised):
        for layout in testing.LAYOUTS:
            assert_finite(function, layout=layout)
    assert_finite(batch_normalised, layout="minibatch")
    assert_finite(norm_weighted, inputs=BOTH)
    message = failure(assert_finite, normalised_without_epsilon)
    assert message.startswith("G = 2, all rewards zero: normalised_without_epsilon is not finite")
    assert "the advantages of rewards [0.0, 0.0] are [nan, nan]" in message
    message = failure(assert_finite, own_norm_weighted, inputs=BOTH)
    assert "all scores zero: " in message
    one_over = failure(assert_finite, lambda z: rloo(z) / z.sum(axis=-1, keepdims=True))
    assert "all rewards zero" in one_over


def test_nan_is_refused_by_every_check_with_its_rewards():
    for check in (assert_unbiased, assert_invariances, assert_finite):
        assert "is not finite" in failure(check, normalised_without_epsilon)
    problem = random_problem(0)
    assert "is not finite" in failure(
        exact_mse, normalised_without_epsilon, problem=problem, group_size=2
    )


# Other array kinds.


def test_a_torch_trainer():
    torch = pytest.importorskip("torch")

    def torch_rloo(z):
        size = z.shape[1]
        return z - (z.sum(dim=1, keepdim=True) - z) / (size - 1)

    def torch_dr_grpo(z):
        return z - z.mean(dim=1, keepdim=True)

    def torch_grpo(z):
        return (z - z.mean(dim=1, keepdim=True)) / (z.std(dim=1, keepdim=True) + 1e-4)

    def on_the_graph(z):
        return torch_rloo(z) * torch.ones(1, requires_grad=True, dtype=z.dtype)

    # The five lines of the module's docstring.
    assert_unbiased(torch_rloo, array=torch.tensor)
    assert_finite(torch_rloo, array=torch.tensor)
    assert_invariances(torch_rloo, array=torch.tensor, examples=20)

    assert_unbiased(on_the_graph, array=torch.tensor)
    assert_unbiased(torch_rloo, array=torch.tensor, layout="minibatch", group_size=2)
    assert "(G-1)/G" in failure(assert_unbiased, torch_dr_grpo, array=torch.from_numpy)
    assert "no multiple" in failure(assert_unbiased, torch_grpo, array=torch.tensor)
    assert_finite(torch_grpo, array=torch.tensor)

    def half(z):
        return torch_rloo(z).to(torch.bfloat16)

    assert_unbiased(half, array=torch.tensor, rtol=1e-2)
    single = functools.partial(torch.tensor, dtype=torch.float32)
    assert_unbiased(torch_rloo, array=single, rtol=1e-5)
    assert_invariances(torch_rloo, array=single, rtol=1e-5, examples=30)

    report = exact_mse(torch_rloo, problem=random_problem(0), group_size=3, array=torch.tensor)
    assert report.ratio_to_grpo == pytest.approx(1, rel=1e-12)

    with pytest.raises(TypeError, match="unexpected keyword") as found:
        assert_unbiased(lambda z: z.sum(dim=1, keepdim=True))
    assert "say array=" in found.value.__notes__[0]


def test_an_array_of_the_strict_standard():
    assert_unbiased(estimators.grpo, array=array_api_strict.asarray)
    assert_invariances(estimators.grpo, array=array_api_strict.asarray, examples=10)


# The strategies.


@settings(max_examples=50, derandomize=True, database=None)
@given(st.data())
def test_strategies_draw_what_they_say(data):
    z = data.draw(testing.rewards((2, 5), batch=(2, 3)))
    assert z.shape[:2] == (2, 3)
    assert 2 <= z.shape[2] <= 5
    assert np.array_equal(z * 16, np.round(z * 16))
    assert np.isin(data.draw(testing.rewards(3, values=(0, 1))), (0.0, 1.0)).all()
    s = data.draw(testing.scores(4, parameters=(2, 3), batch=2))
    assert s.shape[:2] == (2, 4)
    assert s.shape[2] in (2, 3)
    problem = data.draw(testing.problems("binary", max_contexts=2))
    assert problem.contexts <= 2
    assert set(np.unique(problem.reward_values)) == {0.0, 1.0}


def test_strategies_shrink_to_the_plainest():
    quiet = settings(database=None, derandomize=True)
    assert hypothesis.find(testing.rewards(), lambda z: True, settings=quiet).tolist() == [0, 0]
    least = hypothesis.find(testing.problems(), lambda p: p.arms >= 2, settings=quiet)
    assert least.digest == random_problem(0, "plain", contexts=1).digest
    assert hypothesis.find(testing.scores(), lambda s: True, settings=quiet).tolist() == [[0], [0]]


def test_only_strategies_need_hypothesis_and_nothing_needs_torch():
    code = """
import sys
from ustat_pg import testing
assert not {"hypothesis", "torch"} & set(sys.modules)
sys.modules["hypothesis"] = None
from ustat_pg.estimators import grpo
testing.assert_unbiased(grpo)
testing.assert_finite(grpo)
testing.assert_invariances(grpo, examples=5)
for strategy in (testing.rewards, testing.scores, testing.problems):
    try:
        strategy()
    except ImportError as error:
        assert "pip install 'ustat_pg[testing]'" in str(error), error
    else:
        raise SystemExit("no ImportError")
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)


# Bad input.


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"function": 3}, "function is 3: it must be callable"),
        ({"group_size": 1}, "group size is 1: it must be a whole number of at least 2"),
        ({"group_size": (2, 1)}, "group size is 1"),
        ({"group_size": ()}, "group size is empty"),
        ({"group_size": "22"}, "group size is '22'"),
        ({"layout": "flat"}, "layout 'flat' is unknown: choose one of batched, minibatch, group"),
        ({"inputs": "rewards"}, "inputs is 'rewards'"),
        ({"inputs": ("squared_norms",)}, "it must hold 'rewards'"),
        ({"inputs": ("rewards", "norms")}, "can hold squared_norms, contexts"),
        ({"array": "torch"}, "array is 'torch': it must be callable"),
    ],
)
@pytest.mark.parametrize("check", [assert_unbiased, assert_invariances, assert_finite])
def test_bad_arguments_are_refused(check, arguments, message):
    with pytest.raises(InputError) as found:
        check(**{"function": rloo, **arguments})
    assert message in str(found.value)


def test_bad_arguments_of_one_check_are_refused():
    problem = random_problem(0)
    for problems, message in (([], "problems is empty"), ([3], "'number 0' is a int")):
        with pytest.raises(InputError, match=message):
            assert_unbiased(rloo, problems=problems)
    for rtol in (-1, 1, np.nan):
        with pytest.raises(InputError, match="rtol"):
            assert_unbiased(rloo, rtol=rtol)
    with pytest.raises(InputError, match="invariance 'rotation' is unknown"):
        assert_invariances(rloo, ["rotation"])
    with pytest.raises(InputError, match="which is empty"):
        assert_invariances(rloo, [])
    with pytest.raises(InputError, match="problem is a list"):
        exact_mse(rloo, problem=[problem], group_size=2)
    with pytest.raises(InputError, match="group size is 1"):
        exact_mse(rloo, problem=problem, group_size=1)
    with pytest.raises(InputError, match="take a smaller group_size"):
        assert_unbiased(rloo, problems=problem, group_size=12)
    with pytest.raises(InputError, match="kinds is"):
        testing.problems(["plain", "odd"])
    with pytest.raises(InputError, match="number or \\(least, greatest\\)"):
        testing.rewards((5, 2))
    with pytest.raises(InputError, match="group size is 1"):
        testing.scores(1)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda z: z.mean(axis=-1), "returned shape"),
        (lambda z: z[..., :1], "they must be equal"),
        (lambda z: None, "returned NoneType: it must return an array of numbers"),
        (lambda z: z.astype(str), "it must return an array of numbers"),
        (lambda z: 1j * z, "it must return an array of numbers"),
        (lambda z: (z, z), "returned shape"),
        (lambda z: [z, z[0]], "it must return an array of numbers"),
        (lambda z: z + np.inf, "is not finite"),
    ],
)
@pytest.mark.parametrize("check", [assert_unbiased, assert_invariances, assert_finite])
def test_bad_answers_are_refused(check, function, message):
    assert message in failure(check, function)


def test_an_assertion_inside_the_function_keeps_its_traceback():
    def guarded(z):
        assert z.max() < 0.75, "not such rewards"
        return rloo(z)

    with pytest.raises(AssertionError, match="not such rewards") as found:
        assert_unbiased(guarded)
    assert found.traceback[-1].name == "guarded"


def test_names_of_what_has_no_name():
    class Advantages:
        def __call__(self, z):
            return dr_grpo(z)

    assert failure(assert_unbiased, Advantages()).startswith("Advantages is biased")
    assert failure(assert_unbiased, functools.partial(dr_grpo)).startswith("dr_grpo is biased")
