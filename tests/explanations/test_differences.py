"""What two specifications differ in, in effect."""

import json

import pytest

from tests.support.refusals import refuses
from ustat_pg import explain
from ustat_pg.catalogue import resolve
from ustat_pg.cli import main
from ustat_pg.explanations import Differences


def between(one, other):
    return Differences(explain(one), explain(other)).rows


def test_two_words_for_one_thing_differ_in_nothing():
    same = "unsloth scale_rewards=false vllm_importance_sampling_correction=true beta=0"
    assert not between("trl scale_rewards=false use_vllm=true", same)
    assert not between(
        "verl adv_estimator=rloo rollout.n=4", "verl adv_estimator=rloo_vectorized rollout.n=4"
    )


def test_what_differs_has_its_numbers():
    rows = between(
        "trl num_generations=8",
        "trl num_generations=4 scale_rewards=false beta=.1 num_iterations=2",
    )
    assert rows["group size"] == ("G = 8", "G = 4")
    assert rows["w(p)"][1] == "0.75 at p = 0.05, 0.75 at p = 0.5, 0.75 at p = 0.95"
    assert rows["steps on outputs of one sampling"] == ("1", "2")
    assert rows["KL"][0] == "none, it is switched off"
    assert "KL(π‖ref)" in rows["KL"][1]
    assert "loss" not in rows


def test_what_one_of_them_alone_has_is_none_in_the_other():
    verl = "verl adv_estimator=grpo"
    assert between(verl, f"{verl} policy_loss.loss_mode=cispo") == {
        "another loss": ("none", "loss_mode=cispo")
    }
    rows = between("trl vllm_importance_sampling_correction=false", "trl use_vllm=true")
    assert rows["the sampler's ratio"][0] == "none"
    assert rows["the sampler's ratio"][1].startswith("vllm_importance_sampling_correction=true, ")


CISPO, LENGTH = "trl loss_type=cispo epsilon_high", "trl loss_type=dr_grpo"
CAPPED = "capped at 0.5, by epsilon_high"
MEAN = "sum over an output's tokens over a constant, mean over outputs, times"
KL = "in the loss (k3×): the gradient of KL(π‖ref) of each token, with fixed prefixes"
CORRECTED = f"{KL}; k3 without its ratio has the gradient of KL(ref‖π)"


@pytest.mark.parametrize(
    ("one", "other", "what", "said"),
    [
        (f"{CISPO}=.5", f"{CISPO}=.25", "ratio", [CAPPED, "capped at 0.25, by epsilon_high"]),
        (f"{CISPO}=.5", f"{CISPO}=5", "ratio", [CAPPED, "not said"]),
        (f"{CISPO}=3", f"{CISPO}=5", None, None),
        ("flow-grpo", "flow-grpo train.adv_clip_max=2", "advantages", ["clipped at ±5", "clipped at ±2"]),
        (LENGTH, f"{LENGTH} max_completion_length=100", "loss", [f"{MEAN} 0.001953", f"{MEAN} 0.01"]),
        ("trl", "trl num_iterations=3", "steps on outputs of one sampling", ["1", "3"]),
        ("trl beta=.1", "trl beta=.2", "KL", [f"beta=.1: {CORRECTED}", f"beta=.2: {CORRECTED}"]),
        ("trl num_processes=2", "trl num_processes=4", "outputs of a step", ["16", "32"]),
    ],
)  # fmt: skip
def test_one_option_differs_in_one_effect(one, other, what, said):
    assert between(one, other) == ({} if what is None else {what: tuple(said)})


def test_another_deviation_differs_in_all_that_it_makes_different():
    rows = between("trl scale_rewards=false", "trl")
    names = ["estimator", "climbs", "w(p)", "noise over signal", "silent groups"]
    assert list(rows) == names
    assert rows["estimator"][0] == "group mean (Dr. GRPO)"
    assert rows["noise over signal"] == ("1 times RLOO's", "1.018 times RLOO's")
    assert rows["silent groups"][0].startswith("15.1% here. Groups of equal rewards have adv")


def test_options_that_choose_outputs_are_named():
    rows = between("trl", "trl mask_truncated_completions=true reward_weights=1,.5")
    assert rows == {
        "what else acts": (
            "nothing", "mask_truncated_completions=true, reward_weights=[1.0, 0.5]"
        )
    }  # fmt: skip


def test_the_command(capsys):
    words = ["explain", "verl", "adv_estimator=grpo", "rollout.n=8", "--against", "trl"]
    assert main(words) == 0
    out = capsys.readouterr().out
    assert out.startswith("A is verl adv_estimator=grpo rollout.n=8\nB is TRL, GRPOTrainer\n")
    assert "steps on outputs of one sampling\n    A: 4\n    B: 1" in out
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["outputs of a step"] == {
        "A": "2048",
        "B": "not said",
    }
    assert main(["explain", "trl", "--against", "trl"]) == 0
    assert "have the same effect" in capsys.readouterr().out
    assert main(["explain", "grpo", "--group-size", "4", "--against", "trl"]) == 2


@pytest.mark.parametrize(
    ("spec", "outputs", "words"),
    [
        ("trl gradient_accumulation_steps=4 num_processes=2", 64, "B = 8 groups of 8"),
        ("trl --nproc_per_node 4 per_device_train_batch_size=4", 16, "B = 2 groups of 8"),
        ("verl adv_estimator=grpo rollout.n=5", 1280, "B = 256 groups of 5"),
        ("areal gconfig.n_samples=4 train_dataset.batch_size=32", 32, "B = 8 groups of 4"),
        ("open-instruct", 64, "B = 16 groups of 4"),
        ("skyrl", 1280, "B = 256 groups of 5"),
        ("easyr1 rollout.n=5", 1280, "B = 256 groups of 5"),
        ("tinker group_size=8 groups_per_batch=64 num_substeps=4", 128, "B = 16 groups of 8"),
        ("ms-swift per_device_train_batch_size=8 num_processes=2", 16, "B = 2 groups of 8"),
        ("axolotl micro_batch_size=2 gradient_accumulation_steps=8 num_processes=4", 64, "B = 8"),
        ("tunix num_generations=4 mini_batch_size=8", 32, "B = 8 groups of 4"),
        ("axolotl micro_batch_size=2", None, "write num_processes=N"),
        ("trl gradient_accumulation_steps=4", None, "write num_processes=N"),
        ("slime", None, None),
        ("nanochat", None, None),
    ],
)
def test_the_outputs_of_a_step(spec, outputs, words):
    meaning = resolve(spec)
    assert meaning.outputs == outputs
    lines = meaning.step()
    assert (lines == []) if words is None else (words in lines[0])


def test_a_batch_is_a_number():
    refuses("must be positive|at least", lambda: resolve("trl num_processes=-1").outputs)
