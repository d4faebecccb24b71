"""Names that no row reads: typing errors are refused, and what may change the objective is said."""

import dataclasses

import pytest

from tests.support.commands import out_of, strict
from tests.support.refusals import refuses
from ustat_pg.catalogue import catalogue, resolve
from ustat_pg.catalogue.choice import choose
from ustat_pg.catalogue.unread import by_section, may_change, slip
from ustat_pg.cli import main
from ustat_pg.explanations import explain


@pytest.fixture
def run(tmp_path):
    def write(text, name="run.yaml"):
        path = tmp_path / name
        path.write_text(text)
        return str(path)

    return write


OPTIONS = [
    "algorithm.adv_estimator",
    "rollout.n",
    "rollout.top_k",
    "beta",
    "lr",
    "scale_rewards",
    "a.b.type",
]


@pytest.mark.parametrize(
    ("name", "option"),
    [
        ("scale_reward", "scale_rewards"),  # a letter less
        ("x.scale_rewardss", "scale_rewards"),  # one more
        ("scale-rewords".replace("-", "_"), "scale_rewards"),  # another one
        ("scale_rewadrs", "scale_rewards"),  # two changed places
        ("scael_rewadrs", "scale_rewards"),  # twice
        ("scael_rewadr", None),  # three differences
        ("scal_reword", None),
        ("adv_estimater", "algorithm.adv_estimator"),
        ("betas", "beta"),
        ("bata", "beta"),
        ("baet_", None),  # two, of four letters
        ("rl", None),  # fewer than four
        ("rolout.n", "rollout.n"),
        ("rollout.m", None),
        ("rollout.n", None),  # no difference
        ("other.n", None),
        ("rollout.topk", "rollout.top_k"),
        ("distillation.topk", None),
        ("topk", None),
        ("b.types", "a.b.type"),
    ],
)  # fmt: skip
def test_a_typing_error_is_within_a_letter_or_two(name, option):
    assert slip(name, OPTIONS) == option
    # The nearest one, in whatever order.
    assert slip(name, OPTIONS[::-1]) == option


def test_the_nearest_of_several():
    near = ["clip_ratio_low", "clip_ratio_lot"]
    assert slip("clip_ratio_lo", [*near, "clip_ratio"]) in near
    assert slip("clip_ratio_loww", near) == slip("clip_ratio_loww", near[::-1]) == near[0]


def test_a_typing_error_is_refused_wherever_it_stands(run):
    said = "TRL, GRPOTrainer has no option '(--)?scale_reward' in the catalogue: did you mean scale_rewards"
    text = "num_generations: 8\nloss_type: grpo\nmax_completion_length: 9\nscale_reward: none\n"
    options = {"num_generations": 8, "loss_type": "grpo", "scale_reward": "none"}
    for spec in (
        f"trl {run(text)}",
        run(text),
        "trl num_generations=8 scale_reward=none",
        run("trl grpo --num_generations 8 --scale_reward none\n", "run.sh"),
        run("from trl import GRPOConfig\nGRPOConfig(num_generations=8, scale_reward='none')\n", "a.py"),
        options,
    ):  # fmt: skip
        refuses(said, resolve, spec)
    refuses(r"run.yaml: .*write scale_rewards=VALUE too", resolve, run(text))
    # Who gives the option itself does not mean it.
    assert resolve(f"trl {run(text)} scale_rewards=none").passed_over == ("scale_reward",)
    assert resolve(options | {"scale_rewards": False}).estimator == "group-mean"


@pytest.mark.parametrize(
    "spec",
    [
        "verl adv_estimator=grpo rollout.n=4 algorithm.rollout_correction.rollout_tq=1 optim.clip_grat=1",
        "rlinf adv_type=grpo group_size=4 env.train.env_type=maniskill",
        "trl vllm_importance_sampling_clip_min=0.5 beta1=0.9",
        "slime n_samples_per_prompt=4 tis_clip=2 eps_clip_c=3",
        "axolotl trl.num_generations=4 trl.beta1=0.9",
    ],
)
def test_names_that_a_framework_has_are_no_typing_errors(spec):
    meaning = resolve(spec)
    assert set(meaning.passed_over) == {
        word.partition("=")[0]
        for word in spec.split()[1:]
        if meaning.framework.matching(word.partition("=")[0]) == []
    }


def test_the_options_of_a_framework_are_no_typing_errors_of_each_other():
    """An option of one release or trainer stands in files of another: its own name is never refused."""
    for framework in catalogue().frameworks.values():
        names = framework.names()
        for name in names:
            assert slip(name, names) is None


def test_what_a_config_of_trl_has_is_read_whole():
    """Each of its about 150 fields, next to the options and without them."""
    trl = pytest.importorskip("trl")
    fields = {field.name: "x" for field in dataclasses.fields(trl.GRPOConfig)}
    framework = catalogue().frameworks["trl"]
    foreign = {name: "x" for name in fields if not framework.matching(name)}
    assert len(foreign) > 100
    assert set(resolve(foreign | {"num_generations": 8, "scale_rewards": "none"}).passed_over) == {
        *foreign
    }


RLLM = """
rllm:
  algorithm: {adv_estimator: grpo, kl_scale: 0.1, some_mask: true}
  rollout: {n: 8}
  token_filtering: {enable: true, mask_timeout: true}
  sample_rejection: {enable: true}
  stepwise_advantage: {enable: false, mode: per_step}
  workflow: {n_parallel_tasks: 64, retry_limit: 3}
"""

PRIME = """
[orchestrator]
batch_size = 64
group_size = 8
[orchestrator.algo.brevity_penalty]
turns_share = 0.1
[orchestrator.train.sampling]
extra = 3
"""


def test_names_that_show_whose_a_file_is_are_passed_over_too(run):
    rllm, prime = resolve(run(RLLM)), resolve(run(PRIME, "run.toml"))
    assert (rllm.framework.name, prime.framework.name) == ("rllm", "prime-rl")
    assert {"rllm.workflow.n_parallel_tasks", "rllm.stepwise_advantage.mode"} <= {*rllm.passed_over}
    assert rllm.may_change == (
        "rllm.algorithm.kl_scale",
        "rllm.algorithm.some_mask",
        "rllm.token_filtering.enable",
        "rllm.token_filtering.mask_timeout",
        "rllm.sample_rejection.enable",
    )
    assert prime.may_change == ("orchestrator.algo.brevity_penalty.turns_share",)
    assert prime.passed_over == (*prime.may_change, "orchestrator.train.sampling.extra")


def test_what_may_change_the_objective_is_said_first_and_beside_what_is_climbed(run):
    text = " ".join(str(explain(run(RLLM))).split())
    names = "rllm.algorithm.kl_scale, rllm.algorithm.some_mask, rllm.token_filtering.*"
    more = ", rllm.sample_rejection.enable. Ignored, because"
    assert f"Not read, and may change the objective: {names}{more}" in text
    assert (
        "no such option: rllm.stepwise_advantage.enable, rllm.stepwise_advantage.mode, rllm."
        in text
    )
    climbs = text.split(" Answer ")[1].split("Advice: ")[0]
    assert f"as far as the options read here say: {names} and 1 more may change it." in climbs
    for spec in ("trl", "trl dataset_name=x"):
        text = " ".join(str(explain(spec)).split())
        assert "may change the objective" not in text
        assert "as far as the options" not in text
    four = "trl a_penalty=1 b_clip=1 c_mask=1 d_bonus=1"
    text = " ".join(str(explain(four)).split())
    assert "objective: a_penalty, b_clip, c_mask, d_bonus." in text
    assert "say: a_penalty, b_clip, c_mask and 1 more may change it." in text


def test_it_is_in_json_and_beside_a_choice(run, capsys):
    path = run(PRIME, "run.toml")
    found = strict(out_of(capsys, main, "explain", path, "--json"))
    assert found["may_change"] == ["orchestrator.algo.brevity_penalty.turns_share"]
    chosen = choose(path, 64, [8], lambda pairs: [(1.0, 1.0, 1.0, 1.0)] * len(pairs))
    said = "orchestrator.algo.brevity_penalty.turns_share: not read, and may change the objective."
    assert chosen.to_dict()["beside"][-1] == said
    assert said in " ".join(str(chosen).split())


@pytest.mark.parametrize(
    ("named", "told"),
    [
        ({"a.kl_coef": "0.1", "a.use_kl": "true"}, ["a.kl_coef", "a.use_kl"]),
        ({"a.kl_coef": "0.0", "use_kl": "False", "clip": "none", "penalty": "null"}, []),
        ({"filter.enabled": "false", "filter.low": "1", "filters.low": "1"}, ["filters.low"]),
        ({"reward.shaping.x": "1", "reward.path": "x"}, ["reward.shaping.x"]),
        ({"reward.scale": "2", "reward.name": "x"}, ["reward.scale"]),
        ({"r.reward_scale": "2", "r.reward_fn_path": "x"}, ["r.reward_scale"]),
        ({"temperature": "1.0", "s.temperature": "0.7", "gamma": "1"}, ["s.temperature"]),
        ({"top_p": ".9", "top_k": "-1"}, ["top_p"]),
        ({"eval.temperature": "0.7", "val_kwargs.top_p": ".7", "optim.clip": "1", "critic.loss": "x"}, []),
        ({"max_grad_norm": "1", "rms_norm_eps": "1", "layer_norm": "1", "clip_grad": "1"}, []),
        ({"Adv-Norm": "x", "--importance-sampling": "token"}, ["Adv-Norm", "--importance-sampling"]),
        ({"display": "x", "save_freq": "5", "lambada": "x", "inertial": "x", "clerk": "1"}, []),
    ],
)  # fmt: skip
def test_words_that_may_change_the_objective(named, told):
    assert may_change(named) == told


def test_names_by_section():
    names = ["a.b", "a.c", "d.e.f", "g", "h", "a.d"]
    assert by_section(names) == ["a.*", "d.e.f", "g", "h"]
    assert by_section(names, 4) == names
