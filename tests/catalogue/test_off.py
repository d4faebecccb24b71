"""Options that act only under another option: they are off without it, and this is said."""

import pytest

from tests.support.commands import out_of, strict
from ustat_pg.catalogue import catalogue, resolve
from ustat_pg.cli import main
from ustat_pg.explanations import Differences, explain

VERL, SLIME = "verl adv_estimator=grpo rollout.n=4", "slime n_samples_per_prompt=4"
NEMO, EASY = "nemo-rl num_generations_per_prompt=4", "easyr1 rollout.n=4"


@pytest.mark.parametrize(
    ("spec", "off"),
    [
        ("trl vllm_importance_sampling_mode=token_mask",
         {"vllm_importance_sampling_mode=token_mask": "use_vllm is false"}),
        ("trl use_vllm=true vllm_importance_sampling_mode=token_mask", {}),
        ("trl use_vllm=true vllm_importance_sampling_correction=false vllm_importance_sampling_cap=2",
         {"vllm_importance_sampling_clip_max=2": "vllm_importance_sampling_correction is false"}),
        ("axolotl trl.num_generations=4 trl.vllm_importance_sampling_mode=token_mask",
         {"vllm_importance_sampling_mode=token_mask": "use_vllm is false"}),
        ("unsloth vllm_importance_sampling_mode=token_mask",
         {"vllm_importance_sampling_mode=token_mask": "vllm_importance_sampling_correction is false"}),
        ("trl use_bias_correction_kl=true", {"use_bias_correction_kl=true": "beta is 0.0"}),
        ("trl use_bias_correction_kl=true beta=.1", {}),
        (f"{VERL} use_kl_loss=true kl_loss_coef=0.00 kl_loss_type=k2",
         {"use_kl_loss=true": "kl_loss_coef is 0.00", "kl_loss_type=k2": "kl_loss_coef is 0.00"}),
        (f"{VERL} kl_loss_type=k2 kl_loss_coef=.1",
         {"kl_loss_type=k2": "use_kl_loss is false", "kl_loss_coef=.1": "use_kl_loss is false"}),
        (f"{VERL} use_kl_loss=true kl_loss_type=k2", {}),
        (f"{VERL} kl_penalty=k2", {"kl_penalty=k2": "use_kl_in_reward is false"}),
        (f"{VERL} clip_ratio=.3", {"clip_ratio=.3": "clip_ratio_low is 0.2"}),
        (f"{VERL} clip_ratio_c=4", {}),
        (f"{VERL} loss_mode=gspo clip_ratio_c=4", {"clip_ratio_c=4": "loss_mode is gspo"}),
        (f"{VERL} loss_mode=kl_cov clip_ratio_high=.3", {"clip_ratio_high=.3": "loss_mode is kl_cov"}),
        (f"{SLIME} kl_coef=.1", {"kl_coef=.1": "advantage_estimator is grpo"}),
        (f"{SLIME} kl_coef=.1 advantage_estimator=reinforce_plus_plus kl_loss_type=k2", {}),
        (f"{SLIME} kl_loss_type=k2", {"kl_loss_type=k2": "kl_coef is 0.0 and use_kl_loss is false"}),
        ("miles n_samples_per_prompt=4 kl_coef=.1", {"kl_coef=.1": "advantage_estimator is grpo"}),
        ("openrlhf n_samples_per_prompt=8 is_correction_mode=clip",
         {"is_correction_mode=clip": "is_correction_level is none"}),
        ("openrlhf n_samples_per_prompt=8 is_correction_level=token is_correction_mode=clip", {}),
        ("openrlhf n_samples_per_prompt=8 init_coef=0 kl.estimator=k2",
         {"kl.estimator=k2": "kl.init_coef is 0 and use_loss is false"}),
        ("agent-lightning adv_estimator=grpo rollout.n=4 clip_ratio_c=4 clip_ratio_low=.1", {}),
        (f"{NEMO} use_kl_in_reward=true", {"use_kl_in_reward=true": "adv_estimator.name is grpo"}),
        (f"{EASY} disable_kl=true kl_penalty=k2",
         {"kl_penalty=k2": "disable_kl is true and use_kl_loss is false"}),
        ("skyrl use_kl_loss=false kl_estimator_type=k2",
         {"kl_estimator_type=k2": "use_kl_loss is false and use_kl_in_reward is false"}),
        ("roll adv_estimator=grpo num_return_sequences_in_group=4 pg_clip=.3 use_pg_clip_range=true",
         {"pg_clip=.3": "use_pg_clip_range is true"}),
    ],
)  # fmt: skip
def test_what_is_written_and_off_is_said_with_what_switches_it_off(spec, off, capsys):
    meaning = resolve(spec)
    assert meaning.off == off
    lines = [f"{option}: off, because {reason}." for option, reason in off.items()]
    text = " ".join(explain(spec, group_size=4).text(all=True).split())
    assert all(line in text for line in lines)
    assert text.count(": off, because") == len(off)
    said = [*meaning.beside(), *meaning.sampled(), *meaning.reused()]
    said += [name for names in meaning.unchanged().values() for name in names]
    for option in off:
        assert not any(option.split("=")[0] in sentence.split() for sentence in said)
        assert not any(line.startswith(f"{option}:") for line in meaning.penalties())
    assert (
        strict(out_of(capsys, main, "explain", *spec.split(), "--group-size", 4, "--json"))["off"]
        == off
    )


def test_a_default_that_is_off_is_not_said_at_all():
    text = str(explain("trl num_generations=8"))
    assert "vllm" not in text
    assert resolve("trl use_vllm=false").passed_over == ()
    assert str(explain("trl use_vllm=false")).count("vllm") == 1  # in what was written
    assert "vllm_importance_sampling_correction=true, " in str(explain("trl use_vllm=true"))
    assert "clip_ratio acts only if" not in explain(VERL).text(all=True)
    both = f"{VERL} clip_ratio_low=none clip_ratio_high=none"
    assert "clip_ratio acts only if" in explain(both).text(all=True)
    # For pass rates of one's own no other options act.
    assert "vllm" not in str(explain("trl num_generations=8", pass_rates=[0.2]))


def test_what_is_off_on_both_sides_is_no_difference():
    def rows(one, other):
        return Differences(explain(one), explain(other)).rows

    mode = "vllm_importance_sampling_mode=token_mask"
    assert rows("trl", f"trl {mode}") == {}
    assert rows("trl", "unsloth") == {}
    assert rows("trl use_vllm=true", f"trl use_vllm=true {mode}").keys() == {"the sampler's ratio"}
    assert rows("trl", "trl use_vllm=true").keys() == {"the sampler's ratio"}
    assert rows(VERL, f"{VERL} kl_loss_type=k2 kl_loss_coef=.3") == {}
    assert rows(SLIME, f"{SLIME} kl_coef=.1") == {}


def test_what_an_option_needs_are_options_with_such_values():
    for framework in catalogue().frameworks.values():
        for option in framework.options.values():
            for name, allowed in option.needs.items():
                other = framework.options[name]
                assert {*allowed} <= {*other.possible, "none"}, (framework.name, option.name)
                assert other.default in allowed or not other.values or {*other.values} - {*allowed}
            assert not option.times or option.times in framework.options
