"""What the options of single frameworks do to their losses, as a user writes them."""

import pytest

from tests.support.refusals import refuses
from ustat_pg.catalogue import resolve


@pytest.mark.parametrize(
    ("spec", "aggregation", "penalties"),
    [
        ("rllm", "token-mean", []),
        ("rllm actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-sum", "sequence-sum", []),
        ("rllm rllm.algorithm.loss_agg_mode=seq-mean-token-mean", "sequence-mean", []),
        ("rllm rllm/backend=tinker loss_agg_mode=seq-mean-token-mean kl_beta=.1", "token-sum", []),
        ("rllm rllm.algorithm.kl_beta=.1", "token-mean", [("k3", 0.1)]),
        ("rllm kl_loss_coef=.1 use_kl_loss=false", "token-mean", []),
        ("rllm kl_loss_coef=.1 use_kl_loss=true kl_loss_type=k1", "token-mean", [("k1", 0.1)]),
        ("rllm use_kl_loss=true", "token-mean", []),
        ("miles --use-kl-loss --kl-loss-coef 0.00", "sequence-mean", []),
        ("miles --use-kl-loss", "sequence-mean", []),
        (
            "miles --use-kl-loss --kl-loss-coef .1 --kl-loss-type low_var_kl --use-unbiased-kl",
            "sequence-mean",
            [("k3×", 0.1)],
        ),
    ],
)
def test_how_a_loss_adds_up_and_its_kl_terms(spec, aggregation, penalties):
    meaning = resolve(spec)
    assert meaning.aggregation.name == aggregation
    assert [(each.form, each.coefficient) for each in meaning.in_place("loss")] == penalties


@pytest.mark.parametrize(
    ("written", "sampler"),
    [
        ("rollout_rs=seq_mean_k1", True),
        ("rollout_rs=token_k1,seq_mean_k3", True),
        ("rollout_correction.bypass_mode=true", True),
        ("rollout_is=token", True),
        ("rollout_rs=null rollout_is=null", False),
        ("", False),
    ],
)
def test_what_corrects_for_the_sampler_in_verl_is_said(written, sampler):
    assert bool(resolve(f"verl adv_estimator=grpo rollout.n=8 {written}").sampled()) == sampler


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ("python3 -m recipe.prime.main_prime", "PRIME adds the leave-one-out"),
        ("python3 recipe/prime/main_prime.py", "PRIME adds the leave-one-out"),
        ("python3 -m verl.trainer.main_generation_server", "it generates or evaluates"),
        ("python3 -m verl.trainer.main_eval", "it generates or evaluates"),
        ("python3 -m verl.trainer.main_ppo trainer.val_only=True", "it only evaluates"),
    ],
)
def test_a_program_of_verl_that_trains_no_groups_is_named(command, why):
    refuses(why, resolve, f"{command} algorithm.adv_estimator=grpo actor_rollout_ref.rollout.n=8")


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        ("slime --debug-rollout-only", "it only generates"),
        ("rlinf adv_type=grpo group_size=8 runner.only_eval=True", "it only evaluates"),
        ("miles --debug-rollout-only", "it only generates"),
        ("slime --loss-type custom_loss", "a loss of the run's own"),
        ("slime --custom-advantage-function-path a.b", "a function of the run's own"),
        ("miles --custom-reward-post-process-path a.b", "a function of the run's own"),
    ],
)
def test_an_option_that_leaves_no_row_is_refused(spec, why):
    refuses(why, resolve, spec)


def test_ms_swift_s_kl_and_chord():
    meaning = resolve("swift num_generations=8 advantage_estimator=rloo")
    (penalty,) = meaning.acting_penalties()
    assert (penalty.option.where, penalty.form, penalty.coefficient) == ("reward", "k1", 0.04)
    (penalty,) = resolve("swift num_generations=8").acting_penalties()
    assert (penalty.option.where, penalty.form) == ("loss", "k3")
    meaning = resolve("swift num_generations=8 --chord_sft_dataset a b --chord_mu_peak .5")
    assert "chord_sft_dataset=given, chord_mu_peak=.5: adds a loss" in " ".join(meaning.beside())


def test_robots_of_rlinf_have_no_kl():
    written = (
        "rlinf algorithm.adv_type=grpo algorithm.group_size=8 algorithm.kl_beta=.1 runner.task_type"
    )
    assert resolve(f"{written}=embodied").penalties() == ["none, it is switched off"]
    (line,) = resolve(f"{written}=reasoning").penalties()
    assert line.startswith("kl_beta=.1: in the loss")


def test_rlinf_s_files_for_agent_lightning_are_its_own(tmp_path):
    path = tmp_path / "calc.yaml"
    path.write_text(
        "agentlightning: {n_runners: 10}\n"
        "runner: {task_type: reasoning}\n"
        "actor: {model: {path: x}}\n"
        "algorithm: {group_size: 4, adv_type: grpo_dynamic, advantage_mode: trajectory,\n"
        "  normalize_advantages: false, clip_ratio_high: 0.3}\n"
    )
    meaning = resolve(str(path))
    assert (meaning.framework.name, meaning.estimator) == ("rlinf", "std-ddof1")


@pytest.mark.parametrize("name", ["relax", "vime"])
def test_what_descends_from_slime_is_known_by_its_name(name):
    options = (
        "--n-samples-per-prompt 8 --use-kl-loss --kl-loss-coef 0.00 --calculate-per-token-loss"
    )
    for written in (f"{name} {options}", f"python3 -m {name}.train {options}"):
        meaning = resolve(written)
        assert (meaning.framework.name, meaning.estimator) == (name, "std-ddof1")
        assert meaning.framework.checked(meaning.row) == "read only"
        assert meaning.penalties() == ["none, it is switched off"]
        assert meaning.aggregation.name == "token-mean"


GRPO = {
    "skyrl": "trainer.algorithm.advantage_estimator=grpo generator.n_samples_per_prompt=8",
    "areal": "gconfig.n_samples=8",
    "open-instruct": "--num_samples_per_prompt_rollout 8",
    "nemo-rl": "grpo.num_generations_per_prompt=8",
    "easyr1": "worker.rollout.n=8",
    "prime-rl": "--orchestrator.group-size 8",
}


@pytest.mark.parametrize(
    ("framework", "program", "trains"),
    [
        ("skyrl", "python -m skyrl.train.entrypoints.main_base", True),
        ("skyrl", "python -m skyrl.train.entrypoints.main_generate", False),
        (
            "skyrl",
            "python -m examples.train_integrations.harbor.entrypoints.main_harbor_generate",
            False,
        ),
        ("skyrl", "python -m examples.train.rlm.main_rlm", True),
        ("skyrl", "python -m examples.train.rlm.main_rlm_eval", False),
        ("areal", "python -m areal.launcher.local examples/math/gsm8k_rl.py", True),
        ("areal", "python -m areal.launcher.local examples/math/gsm8k_eval.py", False),
        ("areal", "python3 examples/math/gsm8k_sft.py", False),
        ("open-instruct", "python open_instruct/grpo_fast.py", True),
        ("open-instruct", "python open_instruct/finetune.py", False),
        ("nemo-rl", "python examples/run_grpo.py", True),
        ("nemo-rl", "python examples/run_eval.py", False),
        ("nemo-rl", "python examples/run_sft.py", False),
        ("easyr1", "python3 -m verl.trainer.main", True),
        ("easyr1", "python3 -m verl.trainer.main trainer.val_only=true", False),
        ("prime-rl", "uv run rl", True),
        ("prime-rl", "uv run sft", False),
    ],
)
def test_a_program_that_trains_no_groups_is_refused(tmp_path, framework, program, trains):
    path = tmp_path / "run.sh"
    path.write_text(f"{program} {GRPO[framework]}\n")
    words = [framework, str(path)]
    if trains:
        assert resolve(words).framework.name == framework
    else:
        refuses("it (only )?(trains|evaluates|generates|learns)", resolve, words)


def test_a_penalty_on_lengths_in_prime_rl_is_said(tmp_path):
    path = tmp_path / "rl.toml"
    path.write_text(
        "[orchestrator]\nbatch_size = 64\ngroup_size = 8\n"
        "[orchestrator.algo.length_penalty]\nnum_turns_weight = 0.2\n"
    )
    said = " ".join(resolve(str(path)).beside())
    assert (
        "num_output_tokens_weight=0.25, num_input_tokens_weight=0.1, num_turns_weight=0.2" in said
    )
    assert "length" not in " ".join(resolve("prime-rl group_size=8").beside())


@pytest.mark.parametrize(
    "written",
    [
        "verl rollout.n=8 reward_model.overlong_buffer.enable=True",
        "verl rollout.n=8 +reward.reward_kwargs.overlong_buffer_cfg.enable=True",
        "areal gconfig.n_samples=8 actor.overlong_reward_penalty=true",
    ],
)
def test_a_reward_that_lengths_change_is_said(written):
    assert "=true: changes rewards before the advantage" in " ".join(resolve(written).beside())
