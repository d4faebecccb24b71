"""Frameworks that train agents: what a named algorithm brings along, and files and commands of their own."""

import numpy as np
import pytest

from tests.support.refusals import refuses
from ustat_pg import explain
from ustat_pg.catalogue import resolve
from ustat_pg.estimators import advantages

ALGORITHMS = {
    "ppo": ("critic", "ppo", "k2"),
    "grpo": ("std-ddof1", "ppo", "k2"),
    "dapo": ("std-ddof1", "ppo", "none"),
    "reinforceplusplus": ("batch", "ppo", "k2"),
    "rloo": ("grpo", "ppo", "k2"),
    "opmd": ("group-mean", "opmd", "k2"),
    "asymre": ("shifted", "opmd", "none"),
    "topr": ("vanilla", "topr", "k2"),
    "cispo": ("std-ddof1", "cispo", "k2"),
    "gspo": ("std-ddof1", "gspo", "k2"),
    "sapo": ("std-ddof1", "sapo", "k2"),
    "mix": ("std-ddof1", "mix", "k2"),
    "mix_chord": ("std-ddof1", "mix_chord", "k2"),
    "sppo": ("group-mean", "sppo", "none"),
    "rec": ("group-mean", "rec", "k2"),
    "multi_step_grpo": ("std-ddof1", "ppo", "k2"),
    "gigpo": ("agent-steps", "ppo", "k2"),
    "on_policy_distill": ("critic", "ppo", "none"),
    "jsd": ("critic", "ppo", "none"),
}
"""The advantage, the loss and the KL of Trinity's algorithms, as its ``default_config`` has them."""


@pytest.mark.parametrize("name", ALGORITHMS)
def test_an_algorithm_brings_its_own_defaults(name):
    meaning = resolve(f"trinity algorithm_type={name} repeat_times=4")
    found = meaning.estimator or meaning.row.other
    functions = [meaning.values[f"algorithm.{each}"] for each in ("policy_loss_fn", "kl_loss_fn")]
    assert (found, *functions) == ALGORITHMS[name]
    written = resolve(f"trinity algorithm_type={name} advantage_fn=reinforce kl_loss_fn=k3")
    assert (written.estimator, written.values["algorithm.kl_loss_fn"]) == ("vanilla", "k3")


def test_an_algorithms_own_group_size_never_applies():
    """Its config has a value already, 1, where the algorithm would set its own."""
    assert resolve("trinity algorithm_type=dapo").group_size == 1
    assert "repeat_times is 1 unless it is written" in " ".join(
        explain("trinity algorithm_type=grpo", group_size=4).text(all=True).split()
    )


TRINITY = """
mode: both
algorithm: {algorithm_type: rec, repeat_times: 8, advantage_fn_args: {std_normalize: true}}
buffer:
  train_batch_size: 64
  explorer_input:
    taskset: {repeat_times: 3, rollout_args: {temperature: 0.6}}
    eval_tasksets: [{repeat_times: 5}]
synchronizer: {sync_method: nccl, sync_interval: 2}
"""
PIPELINE = """
defaults: [base]
finetune: {attempts: 16, rl: {policy_loss: ppo, divide_advantage_by_std: true}}
actor: {rollout_policy: a.b}
"""
FORGE = """
group_size: 6
off_by_n: 1
policy: {sampling_params: {n: "${group_size}", temperature: 1.0}}
replay_buffer: {max_policy_age: 1}
"""
MAXTEXT = "rl: {num_generations: 4, grpo_beta: 0.0}\ndecode_sampling_top_k: -1\n"


@pytest.mark.parametrize(
    ("text", "command", "means"),
    [
        (TRINITY, "trinity run --config {}", ("trinity", "std", 8)),
        (PIPELINE, "python -m pipelinerl.launch {} attempts=16", ("pipeline-rl", "std-ddof1", 16)),
        (FORGE, "python -m apps.grpo.main --config {}", ("torchforge", "std-ddof1", 6)),
        (
            MAXTEXT,
            "python3 -m maxtext.trainers.post_train.rl.train_rl {} loss_algo=grpo",
            ("maxtext", "std-ddof1", 4),
        ),
    ],
    ids=["trinity", "pipeline-rl", "torchforge", "maxtext"],
)
def test_a_file_is_known_alone_and_by_its_command(tmp_path, text, command, means):
    path = tmp_path / "x.yaml"
    path.write_text(text)
    for spec in ([str(path)], command.format(path)):
        meaning = resolve(spec)
        assert (meaning.framework.name, meaning.estimator, meaning.group_size) == means
        if means[0] == "trinity":
            assert meaning.outputs == 64
            assert meaning.drawn() == {"sampling": ["rollout_args.temperature=0.6"]}


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("trinity algorithm_type=sft", "'sft': it trains on given answers, without rewards"),
        ("trinity algorithm_type=dpo", "'dpo': it trains on pairs of answers"),
        ("trinity mode=bench algorithm_type=grpo", "'bench': it trains nothing"),
        ("trinity algorithm_type=rloo advantage_fn=remax", "computes reward_baselines"),
        ("maxtext loss_agg_mode=sequence-mean", "Tunix, which gets it, raises an error"),
        (
            "python -m maxtext.experimental.rl.grpo_trainer num_generations=4",
            "runs maxtext.experimental.rl.grpo_trainer: its own trainer divides",
        ),
        (
            "python -m pipelinerl.launch --config-name x kl_coef=.1",
            "may set finetune.attempts: write attempts=G",
        ),
        ("art advantage_balance=-1.5 group_size=4", "advantage_balance is -1.5"),
    ],
)
def test_what_has_no_baseline_of_a_group_is_refused(spec, said):
    refuses(said, lambda: resolve(spec).estimator)


def test_a_script_of_art_decides_the_group_size():
    assert resolve("art scale_rewards=false group_size=8").estimator == "group-mean"
    assert resolve("art normalize_advantages=false group_size=8").estimator == "group-mean"
    assert resolve("openpipe-art rollouts_per_group=8").estimator == "std"
    assert resolve("art backend=tinker_native group_size=8").estimator == "std-ddof1"
    refuses("group size is not given", explain, "art scale_rewards=false")


GATHERED = (
    "groups = await art.gather_trajectory_groups(\n"
    "    (art.TrajectoryGroup(play(x) for _ in range({})) for x in tasks), pbar_desc='play')\n"
)
ONE_BY_ONE = (
    "groups = []\n"
    "for x in tasks:\n"
    "    groups.append(art.TrajectoryGroup([play(x) for _ in range(8)]))\n"
)
TRAINED = "await model.train(groups, config=art.TrainConfig(learning_rate=1e-5){})\n"

SCRIPTS = {
    "all defaults": (GATHERED.format(8) + "await model.train(groups)", "std"),
    "a config": (GATHERED.format(8) + TRAINED.format(""), "std"),
    "its internal config": (
        GATHERED.format(8) + TRAINED.format(", _config={'scale_rewards': False}"),
        "group-mean",
    ),
    "a config as a class": (
        GATHERED.format(8) + TRAINED.format(", _config=art.dev.TrainConfig(scale_rewards=False)"),
        "group-mean",
    ),
    "a config in its place": (
        GATHERED.format(8)
        + "c = art.TrainConfig(learning_rate=1e-5)\nawait model.train(groups, c)",
        "std",
    ),
    "a backend that trains": (
        GATHERED.format(8) + "await backend.train(model, groups, normalize_advantages=False)",
        "group-mean",
    ),
    "another backend": (
        "from art.tinker_native import TinkerNativeBackend\nbackend = TinkerNativeBackend()\n"
        + GATHERED.format(8)
        + "await backend.train(model, groups, learning_rate=rate)",
        "std-ddof1",
    ),
    "a name": ("n = 8\n" + GATHERED.format("n") + "await model.train(groups)", "std"),
    "other groups to look at": (
        GATHERED.format(2) + "look(groups)\n" + GATHERED.format(8) + "await model.train(groups)",
        "std",
    ),
    "groups one by one": (ONE_BY_ONE + "await model.train(groups)", "std"),
    "a pipeline": (
        "from art.pipeline_trainer import PipelineTrainer, make_group_rollout_fn\n"
        "from art.local import LocalBackend\n"
        "t = PipelineTrainer(model, rollout_fn=make_group_rollout_fn(play, n=8), config=c)\n"
        "await t.train()",
        "std",
    ),
}


def script(written, lines):
    body = "".join(f"    {line}\n" for line in lines.splitlines())
    return written("train.py", f"import art\nasync def main():\n{body}")


@pytest.mark.parametrize(("lines", "estimator"), SCRIPTS.values(), ids=SCRIPTS.keys())
def test_a_script_of_art_is_read(written, lines, estimator):
    meaning = resolve([script(written, lines)])
    assert (meaning.framework.name, meaning.group_size, meaning.estimator) == ("art", 8, estimator)


@pytest.mark.parametrize(
    ("lines", "names"),
    [
        (GATHERED.format("n") + "await model.train(groups)", "group_size"),
        ("await model.train(groups)", "group_size"),
        (
            "g = art.TrajectoryGroup(play() for _ in range(8) if x)\nawait model.train([g])",
            "group_size",
        ),
        (
            "g = art.TrajectoryGroup(play(x, y) for x in range(8) for y in range(2))\n"
            "await model.train([g])",
            "group_size",
        ),
        (
            GATHERED.format(2)
            + "look(groups)\n"
            + GATHERED.format(8)
            + "await model.train(judged(groups))",
            "group_size",
        ),
        (GATHERED.format(8) + "await model.train(groups, config=c)", ".*scale_rewards.*"),
        (GATHERED.format(8) + "await model.train(groups, c)", ".*scale_rewards.*"),
        (
            GATHERED.format(8) + TRAINED.format(", _config={'scale_rewards': x}"),
            "scale_rewards",
        ),
        (
            "from art import LocalBackend\nfrom art.tinker_native import TinkerNativeBackend\n"
            + GATHERED.format(8)
            + "await (LocalBackend() if x else TinkerNativeBackend()).train(model, groups)",
            "backend",
        ),
    ],
)
def test_a_script_of_art_that_hides_an_option_is_refused(written, lines, names):
    refuses(f"only the run itself sets {names}: write the value", resolve, [script(written, lines)])


def test_a_method_train_is_of_art_where_it_is_imported(written):
    text = "from trl import GRPOConfig\nGRPOConfig(num_generations=4)\nmodel.train(x)\n"
    assert resolve([written("train.py", text)]).framework.name == "trl"
    refuses("does not call", resolve, [script(written, "model.train()")])


def test_a_file_of_options_is_never_of_a_framework_of_code(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("loss_fn: ppo\nbackend: local\nkl_penalty_coef: 0.1\n")
    refuses("the framework of these options is not clear", resolve, [str(path)])


@pytest.mark.parametrize(
    ("spec", "above", "below"),
    [
        ("art scale_rewards=false advantage_balance=0.25", 1.0, 0.75),
        ("art scale_rewards=false advantage_balance=-1", 0.0, 1.0),
        ("art scale_rewards=false advantage_balance=0", 1.0, 1.0),
        ("pipelinerl relu_log_p_weights=true", 1.0, 0.0),
        ("pipelinerl relu_log_p_weights=false", 1.0, 1.0),
    ],
)
def test_advantages_of_one_sign_are_scaled(spec, above, below):
    spec += " group_size=4" if spec.startswith("art") else " attempts=4"
    group = np.array([[1.0, 0.0, 0.0, 0.0]])
    plain = advantages("group-mean" if spec.startswith("art") else "grpo", group)
    scaled = np.where(plain > 0, above, below) * plain
    np.testing.assert_allclose(advantages(resolve(spec).estimator, group), scaled, atol=1e-12)


def test_a_loss_that_differs_in_the_first_step_too_says_so():
    """From its own loss: the gradient of sapo is 2 or 1.905 times that of ppo there, that of opmd half."""
    usual = "in the first step after sampling it has the same gradient"
    for name, words in (
        ("sapo", "2/tau_pos"),
        ("opmd", "divides the advantages' part"),
        ("cispo", usual),
    ):
        said = resolve(f"trinity algorithm_type={name} repeat_times=4").beside()
        assert any(f"policy_loss_fn={name}: " in line and words in line for line in said)
        assert (usual in " ".join(said)) == (words == usual)
