"""The catalogue's texts and defaults are true: formulas and words against what is computed."""

import json
import re

import numpy as np
import pytest
from scipy.special import comb

from tests.conformance.record import BATCHES, DATA, lengths
from tests.support.estimators import spelled
from tests.support.refusals import refuses
from ustat_pg.catalogue import catalogue, resolve
from ustat_pg.estimators import advantages
from ustat_pg.explanations import explain
from ustat_pg.validation import InputError

FAMILIES, OTHERS = catalogue().families, catalogue().others


def left_out(function):
    """What a function says of the other rewards of each output, and of its own."""
    return lambda r: np.array([function(np.delete(r, i), r[i]) for i in range(len(r))])


def best_of_subsets(r, k):
    """The mean best reward of all k-subsets of rewards 0 and 1."""
    return 1 - comb(np.sum(r == 0), k, exact=True) / comb(len(r), k, exact=True)


READ = {
    "grpo": (
        "Aᵢ = rᵢ - (1/(G-1)) Σ rⱼ over j ≠ i",
        left_out(lambda others, own: own - sum(others) / len(others)),
    ),
    "group-mean": ("Aᵢ = rᵢ - (1/G) Σⱼ rⱼ", lambda r: r - sum(r) / len(r)),
    "std": (
        "Aᵢ = (rᵢ - m)/√((1/G) Σⱼ (rⱼ - m)²)",
        lambda r: (r - r.mean()) / np.sqrt(sum((r - r.mean()) ** 2) / len(r)),
    ),
    "std-ddof1": (
        "Aᵢ = (rᵢ - m)/√((1/(G-1)) Σⱼ (rⱼ - m)²)",
        lambda r: (r - r.mean()) / np.sqrt(sum((r - r.mean()) ** 2) / (len(r) - 1)),
    ),
    "others-std": (
        "Aᵢ = (rᵢ - m₋ᵢ)/s₋ᵢ, undivided where s₋ᵢ = 0",
        left_out(
            lambda o, own: (own - o.mean()) / (o.std(ddof=1) if len({*o}) > 1 else 1),
        ),
    ),
    "maxrl": ("Aᵢ = (rᵢ - m)/m, 0 where m = 0", lambda r: (r - r.mean()) / (r.mean() or 1)),
    "pass-at-k": (
        "Aᵢ = k (mean best reward of the k-subsets with i - mean best reward of subsets without i)",
        left_out(
            lambda o, own: 2 * ((1.0 if own else best_of_subsets(o, 1)) - best_of_subsets(o, 2))
        ),
    ),
    "gain-at-k": (
        "Aᵢ = k (mean best reward of the k-subsets with i - mean best reward of them without i)",
        left_out(
            lambda o, own: 2 * ((1.0 if own else best_of_subsets(o, 1)) - best_of_subsets(o, 1))
        ),
    ),
    "vanilla": ("Aᵢ = rᵢ", lambda r: r),
    "shrinkage": (
        "Aᵢ = rᵢ - (1-λ) m₋ᵢ - λ μ",
        left_out(lambda o, own: own - 0.75 * o.mean() - 0.25 * 0.5),
    ),
    "bayes": (
        "Aᵢ = rᵢ - (k₋ᵢ + a)/(G-1 + a + b), k₋ᵢ the others' successes",
        left_out(lambda o, own: own - (o.sum() + 1) / (len(o) + 1 + 0.5)),
    ),
    "best": ("Aᵢ = rᵢ - b(k₋ᵢ), b of least mean squared error", None),
    "count-table": (
        "Aᵢ = a₁(n) where rᵢ = 1, a₀(n) where rᵢ = 0, n the successes of the group",
        lambda r: np.where(
            r == 1,
            (np.nan, 0.9, 0.8, 0.6, 0.5)[int(r.sum())],
            (-0.1, -0.2, -0.6, -0.7, np.nan)[int(r.sum())],
        ),
    ),
    "loo-table": (
        "Aᵢ = rᵢ - b(k₋ᵢ)",
        left_out(lambda o, own: own - (0.2, 0.3, 0.6, 0.7)[int(o.sum())]),
    ),
}
"""Each family's formula, and what a reader makes of it: λ = .25, μ = .5, a = 1, b = .5, k = 2."""

GRADED = np.array([[0.3, 1.0, 0.1, 0.7], [0.0, 0.0, 0.0, 1.0]])


@pytest.mark.parametrize("name", FAMILIES)
def test_scaling_and_shifting_rewards_change_nothing_where_it_is_said(name):
    """Of graded rewards; a table by counts has only rewards 0 and 1."""
    said = FAMILIES[name].nothing
    if name in ("best", "count-table", "loo-table", "bayes"):
        assert "all rewards changes nothing" not in said
        return

    def same(rewards):
        found = advantages(spelled(name), rewards), advantages(spelled(name), GRADED)
        return np.allclose(*found, rtol=1e-9)

    assert same(3 * GRADED) == bool(re.search("Scaling (or shifting )?all rewards changes", said))
    assert same(3 * GRADED + 2) == ("Scaling or shifting all rewards changes" in said)


GROUPS_OF_4 = [np.repeat([1.0, 0.0], [n, 4 - n]) for n in range(5)]


@pytest.mark.parametrize("name", FAMILIES)
def test_a_formula_is_what_is_computed(name):
    text, read = READ[name]
    assert FAMILIES[name].formula == text
    for group in GROUPS_OF_4 if read else ():
        if len({*group}) == 1 and name in ("std", "std-ddof1", "others-std"):
            np.testing.assert_array_equal(advantages(name, group), 0)
            continue
        np.testing.assert_allclose(
            advantages(spelled(name), group), read(group), rtol=1e-12, atol=1e-15
        )


RECORDED = {
    "length-weighted": (
        "Aᵢ = rᵢ - Σⱼ Lⱼ rⱼ/Σⱼ Lⱼ",
        lambda r, many: [g - np.average(g, weights=n) for g, n in zip(r, many, strict=True)],
    ),
    "batch-factor": (
        "Aᵢ = α (rᵢ - m), α = outputs/(outputs with a reward that is not 0)",
        lambda r, many: [(g - g.mean()) / np.mean(np.concatenate(r) != 0) for g in r],
    ),
}
"""Formulas that are no table: what a reader makes of them, of rewards and lengths."""

LABELS = ("mixed", "graded")


def recorded(other):
    """What frameworks whose row is called so answered: row and advantages, by batch."""
    for path in sorted(DATA.glob("*.json")):
        framework = catalogue().frameworks[path.stem]
        default = {option.name: option.default or "none" for option in framework.options.values()}
        for run in json.loads(path.read_text("utf-8"))["runs"]:
            for options in run["options"]:
                row = framework.row(default | options)
                if row.other == other and not isinstance(run["batches"]["mixed"], str):
                    yield framework.name, row, run["batches"]


@pytest.mark.parametrize("name", RECORDED)
def test_a_formula_that_is_no_table_is_what_frameworks_answered(name):
    text, read = RECORDED[name]
    assert OTHERS[name].formula == text
    for _, _, batches in (answers := list(recorded(name))):
        for label in LABELS:
            rewards = [np.array(group, dtype=float) for group in BATCHES[label]]
            ours = np.concatenate(read(rewards, lengths(BATCHES[label])))
            np.testing.assert_allclose(ours, np.concatenate(batches[label]), atol=1e-6)
    assert answers


def test_what_is_added_to_a_batchs_deviation_is_what_frameworks_add():
    """Up to the factor of a leave-one-out mean, and for those that take the deviation over outputs."""
    heard = set()
    for framework, row, batches in recorded("batch-std"):
        if framework == "areal":
            continue
        for label in LABELS:
            rewards = np.array(BATCHES[label], dtype=float)
            centred = rewards - rewards.mean(1, keepdims=True)
            theirs = np.array(batches[label])
            divisor = (centred**2).sum() / (theirs * centred).sum()
            known = [values.std(ddof=d) for values in (rewards, centred) for d in (0, 1)]
            gaps = [abs(f * divisor - row.epsilon - spread) for f in (1, 4 / 3) for spread in known]
            assert min(gaps) < 4e-6, (framework, row.name)
            heard.add(framework)
    assert heard == {"flow-grpo", "ms-swift", "rllm", "roll", "trinity", "trl"}


WEIGHTS = {"G": 5.0, "k": 2.0, "p": np.array([0.05, 0.3, 0.55, 0.9])}
"""Numbers for the letters of w; pass@k is spelled with k = 2."""


def value_of(text):
    """The value of a formula in p, k and G as the catalogue writes it."""
    code = re.sub(r"(?<=[\w)]) ?(?=\()|(?<=k) (?=\()", "*", text.replace("^", "**"))
    return eval(code, {}, WEIGHTS)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_factor_in_a_text_is_the_factor_that_is_computed(name):
    family, size, p = FAMILIES[name], int(WEIGHTS["G"]), WEIGHTS["p"]
    if name in ("count-table", "loo-table"):
        spec = {"count-table": f"{name}:1,1,1,1,1,0,0,0,0,0", "loo-table": f"{name}:.1,.2,.3,.5,.9"}
        found = explain(spec[name], group_size=size, pass_rates=p)
    else:
        found = explain(spelled(name), group_size=size, pass_rates=p)
    said = re.search(r"w = ([^,:]*?)(?:\.$|,| at |$)", family.climbs)
    if said:
        np.testing.assert_allclose(found.mean_factor, value_of(said[1]) + 0 * p, rtol=1e-10)
        assert found.unbiased == (said[1] == "1")
    if name == "group-mean":
        assert "(G-1)/G of the full one" in family.climbs
        np.testing.assert_allclose(found.mean_factor, value_of("(G-1)/G") + 0 * p, rtol=1e-12)
    assert (name in SAID_IN_WORDS) != bool(said)


SAID_IN_WORDS = ("group-mean", "std", "std-ddof1", "others-std", "count-table")


@pytest.mark.parametrize(("name", "ddof"), [("std", 0), ("std-ddof1", 1)])
def test_what_a_deviation_climbs(name, ddof):
    """From the expected reward at G = 2 to the arcsine of the square root, and the step between divisors."""
    p = WEIGHTS["p"]
    two = explain(name, group_size=2, pass_rates=p).mean_factor
    np.testing.assert_allclose(two, (1 / 2) ** (ddof / 2), rtol=1e-9)
    assert f"{two[0]:.2f} of the step" in FAMILIES["std-ddof1"].climbs or not ddof
    many = explain(name, group_size=400, pass_rates=p).mean_factor
    np.testing.assert_allclose(many, 1 / np.sqrt(p * (1 - p)), rtol=0.03)
    divisors = [explain(n, group_size=5, pass_rates=p).mean_factor for n in ("std", "std-ddof1")]
    np.testing.assert_allclose(np.divide(divisors[1], divisors[0]), np.sqrt(4 / 5), rtol=1e-9)


RESCALED, NONE, REWEIGHTED = "a rescaled learning rate", "Unbiased", "prompts are reweighted"


@pytest.mark.parametrize(
    ("spec", "word"),
    [
        ("count-table:1,1,1,1,0,0,0,0", NONE),
        ("count-table:.9,.9,.9,.9,0,0,0,0", RESCALED),
        # By .3 from prompt to prompt, by a hundredth, and by a part in a hundred thousand.
        ("count-table:1.3,1.2,1.1,1,0,0,0,0", REWEIGHTED),
        ("count-table:1.01,1,1,1,0,0,0,0", REWEIGHTED),
        ("count-table:1.00001,1,1,1,0,0,0,0", REWEIGHTED),
        ("group-mean", RESCALED),
        ("std", REWEIGHTED),
        ("maxrl", REWEIGHTED),
        ("grpo", NONE),
    ],
)
def test_the_word_on_bias_is_that_of_the_factors(spec, word):
    result = explain(spec, group_size=4, pass_rates=[0.1, 0.45, 0.8])
    text = " ".join(str(result).split("\nAnswer\n")[1].split("\nAdvice: ")[0].split())
    assert [each for each in (RESCALED, NONE, REWEIGHTED) if each in text] == [word]
    assert (f"{result.mean_factor[0]:.4g} at every pass rate" in text) == (word == RESCALED)
    for rate, factor in zip(result.pass_rates, result.mean_factor, strict=True):
        assert (f"{factor:.4g} at p = {rate:.4g}" in text) == (word == REWEIGHTED)


def test_every_number_of_a_framework_is_the_recorded_one():
    """Defaults are read in a framework's source once; here is what was read."""
    read = json.loads((DATA.parent / "defaults.json").read_text("utf-8"))
    now = {
        framework.name: {
            "commit": framework.commit,
            **{option.name: option.default for option in framework.options.values()},
        }
        for framework in catalogue().frameworks.values()
    }
    assert now == read


P, REF = np.array([0.7, 0.2, 0.1]), np.array([0.1, 0.1, 0.8])
SCORES = np.eye(3) - P
KLS = {
    "KL(π‖ref) - KL(ref‖π)": (P * np.log(P / REF) - P + REF) @ SCORES,
    "KL(π‖ref)": (P * np.log(P / REF)) @ SCORES,
    "KL(ref‖π)": -REF @ SCORES,
    "Σ|π - ref|": (P * np.sign(P - REF)) @ SCORES,
    "the mean of k2 under the policy": (P * (np.log(P / REF) ** 2 / 2 + np.log(P / REF))) @ SCORES,
}
"""Gradients by the logits of one token."""


@pytest.mark.parametrize("where", ["loss", "reward"])
@pytest.mark.parametrize("form", ["k1", "k2", "k3", "abs"])
@pytest.mark.parametrize("kept", ["", "×", "+"])
def test_an_estimate_of_the_kl_has_the_gradient_that_is_said(where, form, kept):
    """For one token: each estimate's value and its slope in log π, weighed by the sampling policy."""
    apart = np.log(P / REF)
    value, slope = {
        "k1": (apart, 1.0),
        "k2": (apart**2 / 2, apart),
        "k3": (np.exp(-apart) - 1 + apart, 1 - np.exp(-apart)),
        "abs": (np.abs(apart), np.sign(apart)),
    }[form]
    if form + kept not in catalogue().divergences[where]:
        return
    if where == "reward":
        found = (P * value) @ SCORES
    elif kept == "+":
        found = (P * apart) @ SCORES
    else:
        found = (P * (slope + value * (kept == "×"))) @ SCORES
    words = catalogue().divergences[where][form + kept]
    said = [gradient for name, gradient in KLS.items() if f"the gradient of {name}" in words]
    if "mean gradient is 0" in words:
        said = [np.zeros(3)]
    if "not the gradient of any" in words:
        assert not any(np.allclose(found, other, atol=1e-3) for other in KLS.values())
    else:
        np.testing.assert_allclose(found, said[0], atol=1e-12)


def test_only_the_kl_that_is_on_is_said_and_whose_gradient_it_is():
    def line(spec):
        return " ".join(resolve(spec).penalties())

    assert "gradient of KL(π‖ref) of each token" in line("trl beta=0.04")
    assert "gradient of KL(ref‖π) of each token" in line(
        "trl beta=0.04 use_bias_correction_kl=false"
    )
    verl = "verl adv_estimator=grpo rollout.n=4"
    assert line(verl) == "none, it is switched off"
    for value, words in (
        ("kl", "gradient is 0"), ("abs", "Σ|π - ref|"), ("mse", "KL(π‖ref) of each"),
        ("low_var_kl", "KL(ref‖π)"), ("k3+", "KL(π‖ref)"),
    ):  # fmt: skip
        said = line(f"{verl} use_kl_loss=true kl_loss_type={value}")
        assert words in said
        assert "kl_loss_coef=0.001" in said
    for spec in (
        f"{verl} use_kl_loss=true kl_loss_coef=0.00",
        f"{verl} use_kl_in_reward=true kl_ctrl.kl_coef=0",
        "slime --use-kl-loss --kl-loss-coef 0e-3",
        "openrlhf kl.use_loss=true init_coef=0",
    ):
        assert line(spec) == "none, it is switched off"
    refuses("'full': its own code raises", lambda: line(f"{verl} kl_loss_type=full"))
    assert "added up in its own way: mean over an output's tokens" in line("skyrl use_kl_loss=true")
    summed = "come from the KL alone"
    assert summed in line(f"{verl} use_kl_in_reward=true")
    assert summed not in line(f"{verl} use_kl_in_reward=true norm_adv_by_std_in_grpo=false")
    assert summed in line("easyr1 rollout.n=4")
    assert line("easyr1 rollout.n=4 disable_kl=true") == "none, it is switched off"
    assert "use_bias_correction_kl" not in str(resolve("trl").unchanged())


def test_what_the_sampler_s_ratio_does_is_not_nothing():
    meaning = resolve("trl use_vllm=true")
    assert not any("vllm" in name for names in meaning.unchanged().values() for name in names)
    assert meaning.sampled()[0] == "vllm_importance_sampling_correction=true"
    assert not resolve("trl use_vllm=true vllm_importance_sampling_correction=false").sampled()
    assert not resolve("openrlhf").sampled()
    assert "is_correction_enable=true" in resolve("openrlhf is_correction_enable=true").sampled()
    text = " ".join(explain("trl use_vllm=true").text(all=True).split())
    assert "by the ratio to the engine that sampled" in text
    assert "vllm_importance_sampling_mode=sequence_mask drops" in text


def test_a_step_that_is_cut_to_a_norm_is_said_where_it_is():
    assert resolve("trl").cut() == ["max_grad_norm=1.0"]
    assert not resolve("trl max_grad_norm=0").cut()
    assert not resolve("nanochat").cut()
    assert "max_grad_norm=1.0: shortens a longer step" in " ".join(str(explain("trl")).split())


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (
            "trl mask_truncated_completions=true",
            "mask_truncated_completions=true: chooses which rollouts",
        ),
        (
            "trl reward_weights=1,.5",
            "reward_weights=[1.0, 0.5]: changes rewards before the advantage",
        ),
        ("trl entropy_coef=.1", "entropy_coef=.1: adds an entropy term"),
        (
            "slime n_samples_per_prompt=4 over_sampling_batch_size=64",
            "over_sampling_batch_size=64: chooses",
        ),
    ],
)
def test_what_was_chosen_is_said_once(spec, words):
    text = " ".join(str(explain(spec)).split())
    assert text.count(words) == 1
    assert words not in " ".join(str(explain(spec.split()[0], group_size=4)).split())


def test_a_filter_is_said_once():
    found = explain("verl adv_estimator=grpo rollout.n=4 filter_groups.enable=true")
    text = " ".join(found.text(all=True).split())
    assert text.count("controls the dropping of silent groups: if the batch is refilled") == 1


@pytest.mark.parametrize(
    ("spec", "drawn"),
    [
        ("trl", {}),
        ("trl temperature=1 top_p=1 top_k=-1", {}),
        ("trl temperature=.7 min_p=.1", {"policy": ["temperature=.7"], "sampling": ["min_p=.1"]}),
        ("ms-swift", {"policy": ["temperature=0.9"]}),
        ("verl adv_estimator=grpo rollout.top_p=.9", {"sampling": ["rollout.top_p=.9"]}),
        ("slime rollout_top_p=.9", {"policy": ["rollout_top_p=.9"]}),
        ("roll adv_estimator=grpo norm_mean_type=group", {}),
        (
            "roll adv_estimator=grpo norm_mean_type=group generating_args.temperature=1",
            {"sampling": ["generating_args.top_p=0.7", "generating_args.top_k=50"]},
        ),
        ("areal gconfig.temperature=.8", {"sampling": ["gconfig.temperature=.8"]}),
        (
            "areal gconfig.temperature=.8 actor.temperature=.80",
            {"policy": ["gconfig.temperature=.8"]},
        ),
    ],
)
def test_options_of_the_sampler_are_said_where_they_act(spec, drawn):
    meaning = resolve(spec)
    assert meaning.drawn() == drawn
    for kind, names in drawn.items():
        assert f"{', '.join(names)}: {catalogue().kinds[kind]}." in meaning.beside()


def test_names_that_every_sampler_has_do_not_tell_whose_they_are(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("num_generations: 8\nbeta: 0.1\ntemperature: 0.7\n")
    with pytest.raises(InputError, match=r"it may be one of several, or none known here"):
        resolve(str(path))
