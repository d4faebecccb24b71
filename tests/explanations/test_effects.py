"""``ustat-pg explain``, and ``ustat-pg predict`` for the estimators that people run."""

import json
from math import comb, sqrt

import numpy as np
import pytest

from tests.support import commands
from tests.support.refusals import refuses
from ustat_pg.catalogue import catalogue
from ustat_pg.cli import main
from ustat_pg.engines import Estimator, GradientCell, SquaredError, enumerate_mse
from ustat_pg.explanations import explain, explain_scheme
from ustat_pg.predictions import gradient_mse
from ustat_pg.problems import (
    SoftmaxBandit,
    example_problem,
    problem_from_mapping,
    save_problem,
)
from ustat_pg.registry import ALIASES
from ustat_pg.sampling.plans import SCHEMES, Plan
from ustat_pg.validation import typed

KEYS = {
    *("estimator", "unbiased", "weight", "scale", "frac_reward_zero_std"),
    *("mse", "noise_to_signal", "cosine", "best_table"),
}
EXAMPLE = problem_from_mapping(example_problem())
BINARY = SoftmaxBandit.tabular(
    [0.5, 0.5],
    [[0.7, 0.0, 0.0], [0.0, 0.7, 0.3]],
    np.broadcast_to([1.0, 0.0], (2, 3, 2)),
    [[[1.0, 0.0], [0.3, 0.7], [0.0, 1.0]], [[0.2, 0.8], [0.0, 1.0], [0.9, 0.1]]],
)


@pytest.fixture
def file(tmp_path):
    save_problem(BINARY, tmp_path / "problem.json")
    return str(tmp_path / "problem.json")


@pytest.fixture
def graded(tmp_path):
    save_problem(EXAMPLE, tmp_path / "graded.json")
    return str(tmp_path / "graded.json")


def out_of(capsys, *words):
    return commands.out_of(capsys, main, *words)


def found_by(capsys, *words):
    """What ``explain --json`` prints, in one line."""
    text = out_of(capsys, "explain", *words, "--json")
    assert text.count("\n") == 1
    return commands.strict(text)


def weight_of_std(p, size):
    """w(p) of the estimator divided by the sample deviation, E[√(n(G-n))]/(G p q) √((G-1)/G)."""
    n = np.arange(size + 1)
    chance = np.array([comb(size, k) for k in n]) * p**n * (1 - p) ** (size - n)
    mean = chance @ np.sqrt(n * (size - n)) / (size * p * (1 - p))
    return mean * sqrt((size - 1) / size)


# ------------------------------------------------------------------------------------------ explain


def test_trls_default_by_its_options(capsys):
    spec = "trl scale_rewards=group loss_type=dr_grpo num_generations=8"
    result = found_by(capsys, spec, "--pass-rate", ".2")
    assert set(result) >= KEYS
    assert (result["estimator"], result["unbiased"], result["scale"]) == (
        "std-ddof1",
        False,
        1 / 512,
    )
    assert result["mean_factor"] == [pytest.approx(weight_of_std(0.2, 8))]
    for p, w in zip(result["weight"]["pass_rate"], result["weight"]["w"], strict=True):
        if 0 < p < 1:
            assert w == pytest.approx(weight_of_std(p, 8))
    assert 0.2 in result["weight"]["pass_rate"]
    assert result["frac_reward_zero_std"] == pytest.approx(0.2**8 + 0.8**8)
    # The advantages' squares add up to G - 1 in every group that is not silent.
    mse = (1 - result["frac_reward_zero_std"]) * 7 / 8 / 8
    assert result["mse"] == pytest.approx(mse)
    assert result["noise_to_signal"] == pytest.approx(mse / weight_of_std(0.2, 8) ** 2)


def test_shrinkage_is_drawn_to_the_mean_reward(capsys, file):
    result = found_by(capsys, "shrinkage:.25", "--group-size", "3", "--problem", file)
    mean = float(BINARY.context_probs @ BINARY.moments().value)
    own = gradient_mse(BINARY.moments(), f"shrinkage:.25,{mean!r}", 3)
    assert result["mse"] == pytest.approx(own.mse)


def multiple_of(name, factor):
    estimator = Estimator(name)
    return lambda rewards, draws: factor * estimator.advantages(BINARY, draws)


def test_a_constant_that_multiplies_is_in_all_numbers():
    """verl's pass@k is a multiple of the unbiased one: 1/G, or 1/√G where it is divided."""
    spec = "verl adv_estimator=grpo_passk rollout.n=3"
    for moments in (None, BINARY.moments()):
        plain = explain("pass-at-k:3", group_size=3, moments=moments)
        for words, factor in (("norm_adv_by_std_in_grpo=false", 1 / 3), ("", 1 / sqrt(3))):
            result = explain(f"{spec} {words}", moments=moments)
            assert result.weight["w"] == pytest.approx(factor * np.array(plain.weight["w"]))
            assert result.noise_to_signal == pytest.approx(plain.noise_to_signal)
            assert result.cosine == pytest.approx(plain.cosine)
            if moments is None:
                assert result.mse == pytest.approx(factor**2 * plain.mse)
            else:
                scaled = Estimator("scaled", function=multiple_of("pass-at-k:3", factor))
                cell = GradientCell(BINARY, 3)
                exact = cell.measure("exact", [SquaredError(scaled)]).mean[0]
                assert result.mse == pytest.approx(exact)


def test_prompts_of_pass_rates_are_those_of_a_problem_with_a_small_gradient():
    """Many arms of which few count: ‖s‖² hardly depends on the reward, and ‖g‖² is small."""
    arms, right = 4000, (400, 2800)
    rewards = np.zeros((2, arms, 1))
    for x, count in enumerate(right):
        rewards[x, :count] = 1
    bandit = SoftmaxBandit.tabular([0.5, 0.5], np.zeros((2, arms)), rewards, np.ones_like(rewards))
    for name in ("std", "maxrl", "nemo", "bayes:2,1"):
        near = explain(name, group_size=4, moments=bandit.moments())
        assumed = explain(name, group_size=4, pass_rates=[0.1, 0.7])
        assert near.noise_to_rloo == pytest.approx(assumed.noise_to_rloo, rel=2e-3)
        assert near.cosine == pytest.approx(assumed.cosine)
        assert near.mse == pytest.approx(assumed.mse, rel=2e-3)


@pytest.mark.parametrize(
    ("name", "least", "reached", "most"),
    [
        ("std", 1, 1.05, 1.1),
        ("std-ddof1", 1, 1.05, 1.1),
        ("maxrl", 1, 1.3, 1.4),
        ("nemo", 0.9, 1.8, 1.9),
    ],
)
def test_the_catalogues_words_on_noise(name, least, reached, most):
    ratios = [
        explain(name, group_size=size, pass_rates=[p]).noise_to_rloo
        for size in (2, 3, 4, 8, 32, 64)
        for p in (0.01, 0.03, 0.2, 0.5, 0.8, 0.97, 0.99)
    ]
    assert min(ratios) > least - 1e-9
    assert reached < max(ratios) <= most


@pytest.mark.parametrize("spec", ["verl adv_estimator=opo rollout.n=4", "trl scale_rewards=batch"])
def test_what_has_no_closed_form_says_what_it_is(capsys, spec):
    result = found_by(capsys, spec)
    assert set(result) >= KEYS
    assert [result[key] for key in ("unbiased", "weight", "mse", "noise_to_signal", "cosine")] == [
        None
    ] * 5
    assert len(result["best_table"]) == result["group_size"]
    text = out_of(capsys, "explain", spec)
    assert "not a table" in " ".join(text.split())
    assert any(line.startswith("Advice: ") for line in text.splitlines())
    assert "w(p)" not in text


def test_a_picture(capsys, tmp_path):
    pytest.importorskip("matplotlib")
    path = tmp_path / "w.svg"
    out_of(capsys, "explain", "std", "--group-size", "8", "--plot", path)
    assert "<svg" in path.read_text()
    words = ("explain", "trl scale_rewards=batch", "--plot", path)
    assert "cannot be plotted" in commands.refusal_of(capsys, main, *words)


def test_graded_rewards_turn_what_is_a_learning_rate_with_rewards_0_and_1():
    """The words of the catalogue, on three arms: no division is one factor, and RLOO needs no word."""
    graded = SoftmaxBandit.tabular(
        [0.5, 0.5],
        np.log([[0.5, 0.3, 0.2], [0.1, 0.2, 0.7]]),
        np.array([[[0.0], [0.5], [1.0]]] * 2),
        np.ones((2, 3, 1)),
    )
    for family in catalogue().families.values():
        if family.name not in ("std", "std-ddof1", "maxrl", "grpo", "group-mean", "vanilla"):
            continue
        result = enumerate_mse(graded, family.name, 2)
        turned = np.ptp(result.mean_factor) > 0.01 and result.cosine < 0.9999
        assert turned == bool(family.graded), family.name


@pytest.mark.parametrize("name", ["std", "grpo", "rloo", "pass-at-k:2", "bayes:1,1"])
def test_an_estimators_name_alone_is_an_estimator(capsys, name):
    known = explain(name, group_size=4)
    with typed():
        assert out_of(capsys, "explain", name, "--group-size", "4") == f"{known}\n"
    assert explain([name], group_size=4).estimator == known.estimator


def test_grpo_means_two_things(capsys):
    text = " ".join(explain("grpo", group_size=8).text(all=True).split())
    assert "leave-one-out mean" in text
    assert "also divide by the group's standard deviation: here that is std-ddof1" in text
    # What a trainer's own options mean needs no such word.
    assert "here that is std-ddof1" not in out_of(capsys, "explain", "trl-rloo")


def test_a_name_is_a_frameworks_or_an_estimators_before_it_is_a_files(tmp_path, monkeypatch):
    assert "nemo" in ALIASES
    assert explain("nemo").meaning.framework.name == "nemo-rl"
    (tmp_path / "std").mkdir()
    (tmp_path / "std" / "trl.yaml").write_text("num_generations: 4")
    monkeypatch.chdir(tmp_path)
    assert explain("std", group_size=4).meaning is None
    assert explain("trl std/trl.yaml").group_size == 4


def test_python_and_the_command_line_are_refused_each_in_its_words(capsys):
    refuses(r"not given: write group_size=G$", explain, "std")
    refuses(r"write gconfig\.n_samples=G or group_size=G$", explain, "areal")
    text = commands.refusal_of(capsys, main, "explain", "std")
    assert "not given: write --group-size G" in text
    words = ("explain", "trl num_generations=4", "--against", "std", "--group-size", "4")
    assert "an estimator's name has no options" in commands.refusal_of(capsys, main, *words)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "estimator is empty: write its name, or a framework and its options"),
        (("areal",), "group size is not given: write gconfig.n_samples=G or --group-size G"),
        (("rloo", "--group-size", "1"), "at least 2: group size is 1"),
        (
            ("oracle", "--group-size", "4"),
            "oracle is not a table by the number of successes",
        ),
        (("pass-at-k:5", "--group-size", "4"), "at least k = 5: group size is 4"),
        (("trl scale_reward=group",), "did you mean scale_rewards"),
        (("trl", "--pass-rate", "1.5"), "pass rate is 1.5: it must lie in [0, 1]"),
        (("trl", "--pass-rates", "/no/file"), "No such file"),
    ],
)
def test_explain_refuses_in_one_line(capsys, words, message):
    assert message in commands.refusal_of(capsys, main, "explain", *words)


def test_explain_refuses_other_rewards_and_two_sources(capsys, file, graded):
    text = commands.refusal_of(capsys, main, "explain", "trl", "--problem", graded)
    assert "rewards that are 0 or 1" in text
    words = ("explain", "trl", "--problem", file, "--pass-rate", ".2")
    assert "give one of the two" in commands.refusal_of(capsys, main, *words)


def test_pass_rates_come_from_a_list_or_from_a_log(capsys, tmp_path):
    (tmp_path / "rates.json").write_text("[0.75, 0.25]")
    rows = ({"prompt": p, "rewards": r} for p, r in (("a", [1, 1, 0, 1]), ("b", [0, 0, 1, 0])))
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    shown = [
        found_by(capsys, "trl num_generations=4", option, tmp_path / name)
        for option, name in (("--pass-rates", "rates.json"), ("--rollouts", "log.jsonl"))
    ]
    assert shown[0] == shown[1]


def test_pass_rates_where_nothing_can_be_learned(capsys):
    result = found_by(capsys, "trl", "--pass-rate", "0,1")
    assert result["frac_reward_zero_std"] == 1
    assert result["mse"] == 0
    assert result["noise_to_signal"] is result["noise_to_rloo"] is result["cosine"] is None


# ---------------------------------------------------------------------------------- ways of sampling


@pytest.mark.parametrize("name", SCHEMES)
def test_a_scheme_s_curve_goes_through_its_prompts(name):
    rates = [0.13, 0.5, 0.81]
    found = explain_scheme(name, rates)
    assert (found.name, found.scheme, found.pass_rates) == (name, SCHEMES[name], rates)
    grid = sorted({*rates, *(k / 20 for k in range(1, 20))})
    assert found.weight["pass_rate"] == grid
    places = np.searchsorted(grid, rates)
    assert np.array(found.weight["w"])[places] == pytest.approx(found.mean_factor, rel=1e-9)
    may_stop_at_one = Plan.parse(found.scheme.plan).looks[0] == 1
    assert (found.unbiased_noise_to_rloo is None) == may_stop_at_one


def test_a_batch_that_is_refilled_by_hand():
    """DAPO's: silent groups of 16 are replaced, so that each prompt counts as often as it is not silent."""
    rates = [0.1, 0.5, 0.8]
    found, p = explain_scheme("dapo", rates), np.array(rates)
    spread, kept = p * (1 - p), 1 - p**16 - (1 - p) ** 16
    w = np.array([weight_of_std(rate, 16) for rate in rates]) / kept.mean()
    drawn = 16 / kept.mean()
    assert found.mean_factor == pytest.approx(w)
    assert found.sizes == pytest.approx([drawn] * 3)
    # The squares of a group's advantages add up to 15; c of each prompt is ‖g‖²/(p q).
    size = round(drawn)
    own = drawn * 15 / 16**2 / (w**2 * spread).sum()
    rloo = size * spread.mean() / (size - 1) / spread.sum()
    assert found.noise_to_rloo == pytest.approx(own / rloo)
    assert found.unbiased_noise_to_rloo == pytest.approx(16 / 15 / (size / (size - 1)))
    text = str(found)
    for words in ("dapo: 16, refill silent, advantages std-ddof1", "1.03 times", "needs 1 times"):
        assert words in " ".join(text.split())


# ------------------------------------------------------------------------------------------ predict


def predicted(capsys, *words):
    return commands.strict(out_of(capsys, "predict", *words, "--json"))


def test_predict_enumerates_where_it_is_asked(capsys, graded):
    words = (graded, "--estimator", "norm-weighted", "--group-size", "4")
    result = predicted(capsys, *words, "--enumerate")
    assert result["mse"] == enumerate_mse(EXAMPLE, "norm-weighted", 4).mse
    assert result["table"] is None
    # Where there is a closed form it is that.
    assert predicted(capsys, graded, "--group-size", "4", "--enumerate")["paper_bound"] is not None


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--estimator", "std"), "std has no closed form for these rewards: try --enumerate"),
        (("--estimator", "best", "--enumerate"), "rewards that are 0 or 1"),
        (("--estimator", "norm-weighted", "--group-size", "300", "--enumerate"), "smaller group"),
        (("--estimator", "std", "--covariance", "--enumerate"), "its covariance is not"),
        (("--estimator", "shrinkage"), "it is written shrinkage:amount"),
    ],
)
def test_predict_refuses_in_one_line(capsys, graded, words, message):
    sized = words if "--group-size" in words else (*words, "--group-size", "4")
    assert message in commands.refusal_of(capsys, main, "predict", graded, *sized)


def test_what_is_assumed_of_several_gradients_is_said_and_can_be_given(capsys):
    """The cosine by hand: orthogonal gradients of these lengths, each times its w."""
    words = "explain", "std", "--group-size", "8", "--pass-rate", ".1,.5,.8"
    plain = commands.out_of(capsys, main, *words)
    given = commands.out_of(capsys, main, *words, "--gradient-norms", "1,2,1")
    plain, given = (" ".join(text.split()) for text in (plain, given))
    assert "gradients g that are orthogonal, with ‖g‖² proportional to p(1-p)" in plain
    assert "gradients g that are orthogonal, with the given norms" in given
    rates = np.array([0.1, 0.5, 0.8])
    for norms in (None, [1.0, 2.0, 1.0], [30.0, 60.0, 30.0]):
        found = explain("std", group_size=8, pass_rates=rates, gradient_norms=norms)
        square = rates * (1 - rates) if norms is None else np.square(norms)
        w = np.array(found.mean_factor)
        cosine = w @ square / sqrt((w**2 @ square) * square.sum())
        assert found.cosine == pytest.approx(cosine, rel=1e-9)
    assert explain("std", group_size=8, pass_rates=[0.2]).gradient_norms is None
    assert "orthogonal" not in str(explain("std", group_size=8, pass_rates=[0.2]))
    for said, options in (
        ("1 gradient norms and 3 pass rates", {"pass_rates": rates, "gradient_norms": [1]}),
        ("need pass rates", {"gradient_norms": [1]}),
        ("must be 0 at pass rates 0 and 1", {"pass_rates": [0, 0.5], "gradient_norms": [1, 1]}),
        ("one must be positive", {"pass_rates": [0.2, 0.5], "gradient_norms": [0, 0]}),
    ):
        refuses(said, explain, "std", group_size=8, **options)
    said = commands.refusal_of(capsys, main, *words, "--gradient-norms", "x")
    assert "gradient norms are 'x': it must be numbers with commas between" in said
