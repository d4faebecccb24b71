"""An explanation's numbers, on a problem and of pass rates alone, and the words that they choose."""

from html import escape

import numpy as np
import pytest

from tests.support.commands import jsonl, out_of, refusal_of, strict
from ustat_pg.catalogue import catalogue
from ustat_pg.cli import main
from ustat_pg.engines import enumerate_mse
from ustat_pg.explanations.effects import GRID, PASS_RATES, explain, moments_of_pass_rates
from ustat_pg.predictions import best_table, frac_reward_zero_std, gradient_mse
from ustat_pg.problems import SoftmaxBandit, named_problem

UNEVEN = named_problem("uneven").problem.moments()
RATES = [0.07, 0.41, 0.88]


def noise(moments, name, size=5):
    return gradient_mse(moments, name, size).noise_to_signal


@pytest.mark.parametrize("name", ["grpo", "std", "maxrl", "bayes:1,2"])
def test_numbers_of_a_problem_are_its_own(name):
    result, exact = explain(name, group_size=5, moments=UNEVEN), gradient_mse(UNEVEN, name, 5)
    assert not result.assumed
    assert (result.mse, result.cosine) == (exact.mse, exact.cosine)
    assert result.noise_to_signal == exact.noise_to_signal
    assert result.noise_to_rloo == pytest.approx(noise(UNEVEN, name) / noise(UNEVEN, "grpo"))
    assert result.noise_to_oracle == pytest.approx(noise(UNEVEN, name) / noise(UNEVEN, "oracle"))
    assert result.best_noise_to_rloo == pytest.approx(noise(UNEVEN, "best") / noise(UNEVEN, "grpo"))
    assert result.frac_reward_zero_std == frac_reward_zero_std(UNEVEN, 5)
    assert result.best_table == best_table(UNEVEN, 5).baseline.tolist()
    assert result.mean_factor == exact.mean_factor.tolist()
    text = str(result)
    assert str(result) == text
    assert result._repr_html_() == f"<pre>{escape(text)}</pre>"
    assert f"noise over signal {exact.noise_to_signal:.4g}." in " ".join(text.split())
    assert "Pass rates alone" not in text


@pytest.mark.parametrize("name", ["grpo", "std-ddof1", "maxrl"])
def test_numbers_of_pass_rates_are_those_of_equal_norms_and_a_small_gradient(name):
    result = explain(name, group_size=5, pass_rates=RATES)
    p = np.array(RATES)
    assert result.assumed
    assert result.frac_reward_zero_std == pytest.approx(np.mean(p**5 + (1 - p) ** 5))
    # E‖s‖² = 1: RLOO's error at one prompt is p (1-p)/(G-1), and a mean over prompts drawn at random.
    rloo = explain("grpo", group_size=5, pass_rates=RATES)
    assert rloo.mse == pytest.approx(np.mean(p * (1 - p)) / 4, rel=1e-9)
    # ‖∇J‖² is 1 in the units of noise over signal: mean gradients are orthogonal, of squares as p (1-p).
    w, square = np.array(result.mean_factor), p * (1 - p) / 9
    signal = w**2 @ square / square.sum()
    bias = np.sum((w - 1) ** 2 * square) * 1e-12
    assert result.noise_to_signal == pytest.approx((result.mse - bias) / signal, rel=1e-6)
    assert result.cosine == pytest.approx(
        w @ square / np.sqrt(w**2 @ square * square.sum()), rel=1e-9
    )
    assert f"noise over signal {result.noise_to_signal:.4g} E‖s‖²/‖∇J‖²" in " ".join(
        str(result).split()
    )


def test_a_gradient_of_zero_has_no_direction():
    equal = SoftmaxBandit.tabular([1.0], [[0.0, 0.0]], [[[1.0, 0.0]] * 2], [[[0.5, 0.5]] * 2])
    found = enumerate_mse(equal, "grpo", 3)
    assert found.cosine is None
    assert found.mse == pytest.approx(gradient_mse(equal.moments(), "grpo", 3).mse, rel=1e-12)


def test_the_usual_prompts_and_the_grid():
    result = explain("maxrl", group_size=3)
    assert result.pass_rates == list(PASS_RATES) == pytest.approx(np.linspace(0.1, 0.9, 9))
    assert pytest.approx(np.linspace(0, 1, 21)) == GRID
    shown = explain("maxrl", group_size=3, pass_rates=RATES).weight
    assert shown["pass_rate"] == sorted({*GRID, *RATES})
    p = np.array(shown["pass_rate"])
    np.testing.assert_allclose(shown["w"], 1 + (1 - p), rtol=1e-12)


def test_moments_of_pass_rates():
    moments = moments_of_pass_rates(RATES)
    p = np.array(RATES)
    np.testing.assert_allclose(moments.context_probs, 1 / 3)
    np.testing.assert_allclose(moments.gradient_sq, 1e-12 * p * (1 - p), rtol=1e-12)
    assert moments.mean_gradient_sq == pytest.approx(1e-12 * np.sum(p * (1 - p)) / 9)
    np.testing.assert_allclose(moments.optimal_baseline, p)


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        (
            "trl num_generations=1",
            "The advantage in a group of one output is not defined, because groups have at least 2 outputs.",
        ),
        ("verl adv_estimator=grpo_passk n=4", "Here it is multiplied by 1/sqrt(G) = 0.5."),
        ("verl adv_estimator=grpo_passk norm_adv_by_std_in_grpo=false n=4", "1/G = 0.25."),
        ("trl", "0.0001 is added to the divisor"),
        ("verl adv_estimator=grpo n=4", "1e-6 is added to the divisor"),
        ("trl scale_rewards=batch", "0.0001 is added to the divisor"),
        ("verl adv_estimator=grpo", "G = 1: there are no other outputs to compare an output with."),
    ],
)
def test_a_rows_numbers_are_said(spec, said):
    assert said in " ".join(explain(spec).text(all=True).split())


def test_what_was_passed_over_is_named_where_there_is_something():
    assert "Ignored, because" not in str(explain("trl"))
    names = [f"own_{k:02d}" for k in range(13)]
    mine = {"scale_rewards": "group", "num_generations": 4} | dict.fromkeys(names, 1)
    text = " ".join(str(explain(mine | {"beta": 0.04})).split())
    said = text.split("the catalogue has no such option: ")[1].split(".")[0]
    assert said == ", ".join(names[:12]) + " and 1 more"
    twelve = {name: mine[name] for name in ("scale_rewards", "num_generations", *names[:12])}
    text = " ".join(str(explain(twelve)).split())
    assert f"no such option: {', '.join(names[:12])}." in text


def test_a_curve_is_drawn_to_scale():
    """w = 1 + (1-p) from 2 at 0 to 1 at 1; prompts are marked below."""
    lines = str(explain("maxrl", group_size=3, pass_rates=[0.0, 0.5, 1.0])).splitlines()
    (base,) = (i for i, line in enumerate(lines) if line.strip().startswith("w(p)"))
    rows = [line.partition("|") for line in lines[base - 8 : base]]
    levels = [float(label) for label, _, _ in rows]
    np.testing.assert_allclose(levels, np.linspace(2, 0, 8), atol=5e-3)
    stars = {
        column: 7 - row
        for row, (_, _, marks) in enumerate(rows)
        for column, mark in enumerate(marks)
        if mark == "*"
    }
    assert sorted(stars) == list(range(61))
    for column, height in stars.items():
        assert abs(height * 2 / 7 - (2 - column / 60)) < 1 / 7 + 1e-9
    ticks = lines[base].partition("w(p)")[2][2:]
    assert [place for place, mark in enumerate(ticks) if mark == "^"] == [0, 30, 60]
    assert set(ticks) == {"-", "^"}


@pytest.fixture
def log(tmp_path):
    rows = [
        {"uid": f"u{x}", "right": float(i <= x), "odd": 1.0} for x in range(3) for i in range(4)
    ]
    return jsonl(tmp_path / "log.jsonl", *rows)


def test_pass_rates_of_a_log_by_its_columns(capsys, log):
    words = (
        "explain",
        "trl",
        "--pass-rates",
        log,
        "--group-by",
        "uid",
        "--reward",
        "right",
        "--json",
    )
    assert strict(out_of(capsys, main, *words))["pass_rates"] == [0.25, 0.5, 0.75]


@pytest.mark.parametrize(
    ("words", "owner"),
    [
        ("--budget 64", "advise"),
        ("--budget=64", "advise"),
        ("--population 8", "advise"),
        ("--stage-cost 3", "advise"),
        ("--group-sizes 4,8", "rewards"),
        ("--csv", "advise"),
        ("--estimator std", "predict"),
        ("--plan dapo", "predict"),
        ("--covariance", "predict"),
    ],
)
@pytest.mark.parametrize("spec", ["trl", "trl num_generations=8", "std --group-size 4"])
def test_an_option_of_another_command_is_refused(capsys, words, owner, spec):
    said = refusal_of(capsys, main, "explain", *spec.split(), *words.split())
    flag = words.split()[0].split("=")[0]
    assert f"explain has no option {flag} (it belongs to ustat-pg {owner}): leave it out" in said


@pytest.mark.parametrize("spec", ["trl", "trl==0.19.1", "std"])
@pytest.mark.parametrize(("flag", "meant"), [("--jsn", "json"), ("--agianst=trl", "against")])
def test_a_typing_error_of_an_option_is_refused(capsys, spec, flag, meant):
    said = refusal_of(capsys, main, "explain", spec, flag)
    assert f"no option {flag.split('=')[0]}: did you mean --{meant}? If it is" in said
    # The options of a program are its own.
    assert "did you mean" not in refusal_of(capsys, main, "explain", "python", "x.py", flag)


def test_steps_for_which_the_numbers_hold_are_printed_before_what_is_left_out(capsys):
    words = ("verl", "adv_estimator=grpo", "rollout.n=5", "use_kl_loss=true")
    said = out_of(capsys, main, "explain", *words)
    assert "take 4 optimizer steps on the same outputs" in said


def test_options_of_explain_are_none_of_the_others(capsys, log):
    for command in (
        ("rewards", log, "--group-by", "uid", "--reward", "right", "--pass-rate", ".2"),
        ("predict", "ustat:uneven", "--group-size", "4", "--pass-rates", log),
        ("advise", "ustat:uneven", "--budget", "64", "--against", "trl"),
        ("problems", "--group-size", "4"),
    ):
        said = refusal_of(capsys, main, *command)
        assert "unrecognized arguments" in said or "leave out --against" in said


def test_a_trainers_own_flags_are_read_or_passed_over_and_named(capsys):
    line = "ms-swift --rlhf_type grpo --num_generations 4 --model Qwen --seed 3"
    result = strict(out_of(capsys, main, "explain", *line.split(), "--json"))
    assert (result["group_size"], result["passed_over"]) == (4, ["--model", "--seed"])
    batch = "prime-rl --group-size 8 --batch-size 256"
    assert "K = 256" in out_of(capsys, main, "explain", *batch.split())
    both = out_of(capsys, main, "explain", *line.split(), "--against", "trl")
    assert "Ignored, because the catalogue has no such option: --model, --seed." in both


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("trl --reward right", "these options need a log: leave out --reward"),
        ("trl --pass-rates RATES --group-by uid", "is not a log: leave out --group-by"),
        ("dapo --against trl --group-size 4", "leave out --against, --group-size"),
        ("trl --against verl --plot x.svg", "--against compares two: leave out --plot"),
        ("trl --rate 1e-6", "here there is one pass"),
        ("std --group-size 4 --rate 1e-6", "here there is one pass"),
        ("trl num_iterations=2 --rate 0", "rate"),
    ],
)
def test_an_option_that_nothing_would_read_is_refused(capsys, tmp_path, words, said):
    rates = tmp_path / "rates.json"
    rates.write_text("[0.1, 0.2]")
    given = [str(rates) if word == "RATES" else word for word in words.split()]
    assert said in refusal_of(capsys, main, "explain", *given)


def test_two_specifications_are_compared_on_the_same_problem(capsys):
    words = ("explain", "trl num_generations=4", "--against", "verl adv_estimator=grpo rollout.n=4")
    result = strict(out_of(capsys, main, *words, "--problem", "ustat:uneven", "--json"))
    assert "silent groups" not in result


def test_the_cost_of_a_stage_is_of_two_stages(capsys):
    words = ("advise", "ustat:uneven", "--budget", "64", "--stage-cost", "3")
    assert "write --adaptive too" in refusal_of(capsys, main, *words)
    out_of(capsys, main, *words, "--adaptive")


PASSES = "tunix num_generations=8 rl_training_config.mini_batch_size=4 num_iterations=4"


def test_several_passes_have_a_bias_in_words_and_numbers(capsys):
    """(passes - 1)(1 - 2p)/K with K = 32 outputs; at rate 1e-3 it is 1% at E‖s‖² = .01/(1e-3 · .05625)."""
    words = ("explain", *PASSES.split(), "--pass-rate", ".2,.7")
    text = " ".join(out_of(capsys, main, *words, "--rate", "1e-3", "--all").split())
    assert "4 passes are one step of rate 4 η" in text
    assert "With K = 32 outputs a step this is +0.0562 η E‖s‖² at p = 0.2, -0.0375 η E‖s‖²" in text
    assert "At η = 0.001 it is below 1% of the gradient while E‖s‖² < 178," in text
    found = strict(out_of(capsys, main, *words, "--json"))
    assert (found["passes"], found["rate"]) == (4, None)
    assert found["reuse_bias"] == pytest.approx([3 * 0.6 / 32, -3 * 0.4 / 32], rel=1e-12)


def test_one_pass_says_nothing_of_later_ones(capsys):
    words = ("explain", *PASSES.replace("num_iterations=4", "").split())
    assert "One pass at" not in out_of(capsys, main, *words)
    found = strict(out_of(capsys, main, *words, "--json"))
    assert (found["passes"], found["reuse_bias"]) == (1, None)


def test_without_the_outputs_of_a_step_one_group_bounds_the_bias(capsys):
    text = out_of(
        capsys,
        main,
        "explain",
        "roll adv_estimator=grpo ppo_epochs=2",
        "--group-size",
        "4",
        "--all",
    )
    assert "With K = 4 outputs a step (one group, the least)" in " ".join(text.split())
    even = ("explain", "roll adv_estimator=grpo ppo_epochs=2", "--group-size", "4")
    assert "below 1%" not in out_of(capsys, main, *even, "--pass-rate", ".5")


SPECS = [
    f"{framework.name} {row.written()} {framework.of_kind('group size')[0].name}=8"
    for framework in catalogue().frameworks.values()
    for row in framework.rows
]


@pytest.mark.parametrize("spec", SPECS)
def test_the_answer_comes_first_and_the_rest_on_request(spec):
    found = explain(spec)
    brief, whole = str(found), found.text(all=True)
    assert len(brief.splitlines()) <= 40
    titles = [line for line in brief.splitlines() if line in ("Answer", "The rest of the loss")]
    assert titles[0] == "Answer"
    place = [brief.index(words) for words in ("\nAnswer\n", "\nAdvice: ")]
    assert place == sorted(place)
    shown, _, left = brief.rpartition("More with all=True: ")
    # Nothing is in the brief text alone, and the end names what it lacks.
    assert all(part in whole for part in shown.strip().split("\n\n")[:3])
    assert "the definition" in " ".join(left.split())
    assert len(whole) > len(shown)
