"""The catalogue: its records, and how what a user writes is read."""

import json
import pickle
import re
import zipfile
from enum import Enum
from pathlib import Path
from types import MappingProxyType, SimpleNamespace

import numpy as np
import pytest

from tests.support.hostile import Runs
from tests.support.refusals import refusals, refuses
from ustat_pg.catalogue import catalogue, resolve, short_name
from ustat_pg.catalogue.records import bare
from ustat_pg.estimators import advantages
from ustat_pg.explanations import explain
from ustat_pg.files.reading import read_pickle
from ustat_pg.predictions import count_table
from ustat_pg.registry import ESTIMATORS, parse

FRAMEWORKS = list(catalogue().frameworks.values())
ROWS = [
    pytest.param(framework, row, id=f"{framework.name}-{index}")
    for framework in FRAMEWORKS
    for index, row in enumerate(framework.rows)
]


def short(meaning):
    return meaning.framework.name, meaning.estimator, meaning.group_size


def defaults(framework):
    return {option.name: option.default or "none" for option in framework.options.values()}


@pytest.mark.parametrize(("framework", "row"), ROWS)
def test_a_row_is_whole(framework, row):
    others = {
        option: allowed[0]
        for option, allowed in row.when.items()
        if framework.options[option].kind not in ("advantage", "trainer")
    }
    assert any(
        framework.row({**defaults(framework), **others, **chosen}) is row
        for chosen in framework.combinations(unrun=True)
    ), "no options lead here"
    assert (row.estimator is None) == (row.other in catalogue().others)
    assert row.name
    assert row.source
    for option, allowed in row.when.items():
        known = framework.options[option]
        assert set(allowed) <= {*known.values, *known.unrun, *(known.means or ())}
    if row.estimator:
        record, _ = parse(row.estimator.replace("{G}", "4"))
        assert record.by_count
        assert record.name in catalogue().families
        assert (row.ddof is not None) <= (row.epsilon > 0)


@pytest.mark.parametrize("framework", FRAMEWORKS, ids=lambda each: each.name)
def test_a_framework_is_whole(framework):
    known = catalogue()
    assert len(framework.of_kind("group size")) == 1
    assert framework.aggregation in known.aggregations
    for option in framework.options.values():
        assert option.kind in known.kinds
        assert set((option.means or {}).values()) <= set(known.aggregations)
        if option.default is not None:
            assert option.read(option.default) == option.default
        assert bool(option.place) == (option.kind == "KL")
        assert not option.where or option.place.startswith(f"in the {option.where}")
        assert {option.adds_up} <= {"", *known.aggregations}
        assert set(option.only_read) <= {"all", *option.possible}
        assert option.of_loss or not option.only_read


def test_every_table_by_counts_has_its_headings():
    tables = {record.name for record in ESTIMATORS.values() if record.by_count}
    assert tables == set(catalogue().families)
    assert not tables & set(catalogue().others)


@pytest.mark.parametrize(
    ("spec", "estimator", "size", "aggregation", "scale"),
    [
        ("trl", "std-ddof1", 8, "token-mean", None),
        ("TRL scale_rewards=False loss_type=luspo", "group-mean", 8, "sequence-sum", 1.0),
        ("trl loss_type=dr_grpo max_completion_length=100", "std-ddof1", 8, "constant", 0.01),
        ("verl algorithm.adv_estimator=rloo n=4", "grpo", 4, "token-mean", None),
        ("nemo adv_estimator.normalize_rewards=false", "grpo", 16, "token-mean", None),
        ("verl adv_estimator=opo", None, 1, "token-mean", None),
        ("verl adv_estimator=grpo_passk n=6", "pass-at-k:6", 6, "token-mean", None),
        ("nemo num-generations-per-prompt=16", "others-std", 16, "token-mean", None),
        ("prime_rl --algo=max_rl", "maxrl", 1, "token-mean", None),
        ("verl adv_estimator=rloo", "vanilla", 1, "token-mean", None),
        ("verl adv_estimator=rloo_vectorized", "grpo", 1, "token-mean", None),
        ("slime --disable-grpo-std-normalization", "group-mean", 1, "sequence-mean", None),
        ("open-instruct loss_denominator=50", "group-mean", 4, "token-sum-over-constant", None),
        ("verl adv_estimator=rloo n=4 loss_mode=sapo", "grpo", 4, "sequence-mean", None),
    ],
)
def test_specs(spec, estimator, size, aggregation, scale):
    meaning = resolve(spec)
    assert meaning.estimator == estimator
    assert meaning.group_size == size
    assert meaning.aggregation.name == aggregation
    assert meaning.scale == scale


test_specs_that_are_refused = refusals(
    ("verll adv_estimator=rloo", "'verll' is unknown, did you mean verl?"),
    ("huggingface foo", "'huggingface' is unknown: choose one of agent-lightning, "),
    ("run.shh", "'run.shh' is no framework, estimator or existing file"),
    ("dr.grpo", "'dr.grpo' is no .* file: did you mean the estimator dr-grpo?"),
    ("stdd n=2", "'stdd' is no .* file: did you mean the estimator std?"),
    ("llama_factory num_generations=8", "'llama_factory' has no rows here: it has no trainer"),
    (
        "trl scale_reward=group",
        "no option 'scale_reward' in the catalogue: did you mean scale_rewards",
    ),
    ("trl num_generations=two", "num_generations is 'two': it must be a whole number"),
    ("trl loss_type", "'loss_type' has no value: write loss_type=VALUE"),
    ("areal mean_level=group", "may mean actor.reward_norm.mean_level, actor.adv_norm"),
    of=lambda spec: resolve(spec).scale,
)


def test_options_that_change_nothing():
    result = resolve("verl adv_estimator=rloo").unchanged()
    assert result["not read by this formula"] == ["norm_adv_by_std_in_grpo"]
    assert ["filter_groups.enable"] in result.values()
    # The deviation is taken about the mean that is subtracted, whichever it is.
    spec = "areal adv_norm.mean_level=none adv_norm.std_level=none reward_norm.mean_level=group"
    result = resolve(f"{spec} reward_norm.std_level=group").unchanged()
    assert result["not read by this formula"] == ["reward_norm.mean_leave1out"]
    # What is left out of a section that is given has another default than a section that is not.
    spec = "areal reward_norm.mean_level=group"
    assert resolve(f"{spec} adv_norm.mean_level=none").values["actor.adv_norm.std_level"] == "batch"
    assert resolve(spec).values["actor.adv_norm.std_level"] == "none"
    # Groups of equal rewards push where nothing is subtracted: to drop them is a change.
    kept = resolve("slime --disable-rewards-normalization").unchanged()
    assert not any("silent" in reason for reason in kept)


def test_short_names_are_the_last_part_that_says_something():
    names = "rollout.n", "actor.optim.lr", "actor.adv_norm.std_level", "beta", "n"
    short = ["rollout.n", "lr", "adv_norm.std_level", "beta", "n"]
    assert [short_name(name) for name in names] == short


def test_a_switch_takes_no_word_that_is_no_value_of_its_own():
    name = "disable_rewards_normalization"
    for after, value, passed in (("grpo", "true", ("grpo",)), ("false", "false", ())):
        result = resolve(f"slime --{name} {after}")
        assert (result.values[name], result.passed_over) == (value, passed)


def test_rollouts_dropped_by_the_others_leave_the_lone_success_out():
    spec = "nemo use_dynamic_sampling=true num_generations_per_prompt=8"
    result = explain(spec, pass_rates=[0.02, 0.05, 0.1, 0.3, 0.5]).mean_factor
    relative = [w / result[-1] for w in result[:-1]]
    # From the framework's own functions, summed over all groups of 8.
    assert relative == pytest.approx([0.153, 0.347, 0.590, 0.966], abs=6e-4)


@pytest.mark.parametrize(
    ("clip", "over"),
    [
        ("none", (1.387, 1.254)),
        ("10", (1.387, 1.254)),
        ("2.0", (1.154, 1.128)),
        (".2", (0.570, 0.767)),
    ],
)
def test_advantages_that_are_cut_off_are_another_table(clip, over):
    """w(.02) and w(.1) over w(.5) of ROLL's GRPO at G = 8, counted by hand."""
    spec = "roll adv_estimator=grpo num_return_sequences_in_group=8"
    meaning = resolve(f"{spec} advantage_clip={clip}")
    assert (meaning.estimator == "std-ddof1") == (clip in ("none", "10"))
    w = count_table(meaning.estimator, 8).weight(np.array([0.02, 0.1, 0.5]))
    assert w[:2] / w[2] == pytest.approx(over, abs=5e-4)
    group = np.array([1.0] + [0.0] * 7)
    ours = advantages(meaning.estimator, group[None])[0]
    whole = advantages("std-ddof1", group[None])[0]
    assert ours == pytest.approx(
        np.clip(whole, -float(clip), float(clip)) if clip != "none" else whole
    )


AGENT = "roll adv_estimator={} reward_normalization.grouping={} reward_normalization.method={}"


@pytest.mark.parametrize(
    ("estimator", "grouping", "method", "plain", "whitened"),
    [
        ("grpo", "traj_group_id", "mean_std", "std-ddof1", "std-then-batch"),
        ("reinforce", "state", "asym_clip", "std-ddof1", "std-then-batch"),
        ("reinforce", "traj_group_id", "mean", "group-mean", "group-then-batch"),
        ("grpo", "tags", "identity", "vanilla", "batch"),
        ("grpo", "tags", "mean_std", "batch", "batch"),
        ("grpo", "batch", "mean", "batch", "batch"),
        ("step_reinforce", "batch", "mean_std", "batch", "batch"),
        ("step_reinforce", "traj_group_id", "mean_std", "agent-steps", "agent-steps"),
        ("step_reinforce", "traj_group_id", "identity", "agent-steps", "batch"),
        ("gigpo", "traj_group_id", "mean_std", "agent-steps", "agent-steps"),
        ("gae", "traj_group_id", "mean_std", "critic", "critic"),
    ],
)
def test_what_normalises_an_agents_rewards_in_roll(estimator, grouping, method, plain, whitened):
    """By the groups that its config names, not by those of prompts, and then over the batch."""
    spec = f"{AGENT.format(estimator, grouping, method)} train_env_manager.group_size=8"

    def found(meaning):
        return meaning.estimator or meaning.row.other

    assert found(resolve(spec)) == plain
    assert found(resolve(f"{spec} whiten_advantages=true")) == whitened


def test_defaults_that_another_option_sets():
    """Unsloth's, as its release of October 2026 patches TRL."""

    def values(spec):
        meaning = resolve(f"unsloth num_generations=4 {spec}")
        names = ("beta", "epsilon_high", "mask_truncated_completions")
        return meaning.estimator, *(meaning.values[name] for name in names)

    assert values("") == ("std-ddof1", "0.0", "none", "false")
    assert values("loss_type=bnpo") == ("std-ddof1", "0.001", "none", "false")
    assert values("loss_type=dapo") == ("std-ddof1", "0.0", "0.28", "true")
    assert values("loss_type=dapo epsilon_high=.3") == ("std-ddof1", "0.0", ".3", "true")
    assert values("loss_type=dr_grpo") == ("group-mean", "0.0", "none", "false")
    assert values("loss_type=cispo beta=.1")[1:3] == (".1", "5.0")


def test_kl_terms_are_named():
    (line,) = resolve("trl beta=0.04").penalties()
    assert line.startswith("beta=0.04: in the loss (k3×): ")
    assert resolve("trl").penalties() == ["none, it is switched off"]
    assert resolve("nanochat").penalties() == []


@pytest.fixture
def source(tmp_path):
    pytest.importorskip("yaml")

    def write(name, text):
        (tmp_path / name).write_text(text)
        return str(tmp_path / name)

    return write


TRL = """
model_name_or_path: some/model
learning_rate: 1.0e-6
num_generations: 16
scale_rewards: false
loss_type: dr_grpo
"""


def test_the_file_that_the_page_of_files_shows(source):
    page = Path(__file__).resolve().parents[2] / "theory" / "files.md"
    (text,) = re.findall(r"```yaml\n(.*?)```", page.read_text("utf-8"), re.DOTALL)
    assert resolve(source("run.yaml", text)).group_size == 4


def test_a_trl_file_and_options_that_hold_before_it(source):
    meaning = resolve(source("run.yaml", TRL))
    assert short(meaning) == ("trl", "group-mean", 16)
    assert meaning.scale == 1 / 512
    meaning = resolve(f"trl {source('run.yaml', TRL)} scale_rewards=group num_generations=2")
    assert (meaning.estimator, meaning.group_size) == ("std-ddof1", 2)


SCRIPT = """#!/bin/bash
set -x
n=4 # outputs of a prompt
export EST="rloo"
python3 -m verl.trainer.main_ppo --config-name x \\
    algorithm.adv_estimator=$EST \\
    data.train_batch_size=64 data.train_files="$HOME/a b.parquet" \\
    +actor_rollout_ref.rollout.n=${n} \\
    actor_rollout_ref.actor.ppo_mini_batch_size=${MINI:-16} trainer.logger='["console"]' $@
"""

OPENRLHF = """
ray job submit -- python3 -m openrlhf.cli.train_ppo_ray \\
   --pretrain some/model --advantage_estimator group_norm \\
   --algo.dynamic_filtering_enable \\
   --n_samples_per_prompt 8 --init_kl_coef=1e-3 --bf16
"""


@pytest.mark.parametrize("before", ["", "verl "])
def test_a_launch_script(source, before):
    meaning = resolve(before + source("run.sh", SCRIPT))
    assert short(meaning) == ("verl", "grpo", 4)
    assert meaning.steps == 4
    assert resolve(f"{source('run.sh', SCRIPT)} rollout.n=2").group_size == 2


def test_an_option_that_names_a_file_is_read_and_others_are_not(source):
    path = source("run.yaml", "num_generations: 4\nscale_rewards: false\n")
    assert short(resolve(f"trl --config={path}")) == ("trl", "group-mean", 4)
    meaning = resolve(f"trl --dataset_name={path}")
    assert (meaning.group_size, meaning.passed_over) == (8, ("--dataset_name",))


def test_an_option_that_was_a_variable_once_is_not_known(source):
    script = "trl grpo --num_generations 4 --num_iterations 2 --num_iterations $STEPS\n"
    meaning = resolve(source("run.sh", script))
    assert meaning.values["num_iterations"] == "none"
    assert "num_iterations" in " ".join(meaning.passed_over)


def test_options_and_values_apart(source):
    typed = "openrlhf --advantage_estimator group_norm --n_samples_per_prompt 8"
    for spec in (source("run.sh", OPENRLHF), f"{typed} --init_kl_coef 1e-3"):
        meaning = resolve(spec)
        assert (meaning.estimator, meaning.group_size) == ("std-ddof1", 8)
        assert meaning.penalties()[0].startswith("kl.init_coef=1e-3: in the reward")
    assert resolve(source("run.sh", OPENRLHF)).values["algo.dynamic_filtering_enable"] == "true"
    assert resolve("slime --disable-grpo-std-normalization n_samples_per_prompt=4").group_size == 4


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        (
            "run.sh",
            "verl algorithm.adv_estimator=grpo actor_rollout_ref.rollout.n=$N",
            "only the run itself",
        ),
        ("run.yaml", "learning_rate: 1", "framework of these options is not clear"),
        ("run.yaml", "scale_rewards: most\nloss_type: grpo\n", "scale_rewards is 'most'"),
        ("run.json", "[1]", "must hold options by name"),
        ("training_args.bin", "", "training_args.bin: not a pickle"),
    ],
)
def test_sources_that_are_refused(source, name, text, said):
    refuses(said, resolve, source(name, text))


def test_mappings_configs_and_json_say_the_same(source):
    options = {"scale_rewards": False, "num_generations": 16, "epsilon_high": None, "seed": 3}
    for spec in (options, SimpleNamespace(**options), source("args.json", json.dumps(options))):
        meaning = resolve(spec)
        assert (meaning.framework.name, meaning.estimator) == ("trl", "group-mean")
        assert meaning.group_size == 16
    sections = {"algorithm": {"adv_estimator": "rloo"}, "actor_rollout_ref": {"rollout": {"n": 4}}}
    assert resolve(MappingProxyType(sections)).framework.name == "verl"
    refuses("must be a text, a mapping of options, or a config", resolve, 3)


class Kept(Enum):
    """As transformers keeps some of its settings."""

    STEPS = "steps"


@pytest.mark.parametrize("archive", [False, True])
def test_a_pickled_config_is_read_and_nothing_in_it_runs(tmp_path, archive):
    touched, path = tmp_path / "touched", tmp_path / "training_args.bin"
    config = SimpleNamespace(
        scale_rewards="none", num_generations=16, seed=3, kept=Kept.STEPS, evil=Runs(touched)
    )
    data = pickle.dumps(config)
    if archive:  # As torch.save writes.
        with zipfile.ZipFile(path, "w") as file:
            file.writestr("training_args/data.pkl", data)
            file.writestr("training_args/version", "3")
    else:
        path.write_bytes(data)
    assert read_pickle(path)["kept"] == "steps"
    meaning = resolve(str(path))
    assert short(meaning) == ("trl", "group-mean", 16)
    assert meaning.passed_over == ("seed", "kept", "evil")
    assert not touched.exists()
    pickle.loads(data)
    assert touched.exists()


def test_pickles_that_are_refused(tmp_path):
    path = tmp_path / "training_args.bin"
    for data, text in (
        (pickle.dumps(3), "must hold one object"),
        (pickle.dumps(SimpleNamespace(seed=3)), "framework of these options is not clear"),
        (pickle.dumps({"seed": 3})[:-4], "not a pickle"),
        (b"\x80\x04K\x01r\xff\xff\xff\xff.", "beyond its own length"),
        (pickle.dumps({"epsilon": 10**9000}), "not a pickle"),
        (bytes(2**18 + 1), "at most"),
    ):
        path.write_bytes(data)
        refuses(text, resolve, str(path))


CODE = "from trl import GRPOConfig\nconfig = GRPOConfig(num_generations=4, beta=0.02)\n"


def test_a_framework_stands_before_any_file(tmp_path):
    for name in ("a.py", "my file.py"):
        (tmp_path / name).write_text(CODE)
        path = str(tmp_path / name)
        for spec in (
            f"trl {path}",
            ["trl", path],
            f"trl==0.19.1 {path}" * (" " not in name) or path,
        ):
            meaning = resolve(spec)
            assert (short(meaning), meaning.values["beta"]) == (("trl", "std-ddof1", 4), "0.02")
    assert resolve(["trl", path, "beta=0"]).values["beta"] == "0"
    assert resolve(f"trl==0.19.1 {tmp_path / 'a.py'}").framework.release == "0.19.1"
    refuses("gone.py: No such file", resolve, "trl gone.py")
    # A framework before a command is its own; the command alone does not show whose it is.
    command = "python train.py --num_generations 4 --beta 0.3"
    assert short(resolve(f"trl {command}")) == ("trl", "std-ddof1", 4)
    refuses("is not clear", resolve, command)
    refuses("estimator is empty", resolve, "  ")


def test_a_framework_that_is_not_known_is_likened_only_to_a_near_one():
    assert "did you mean" not in str(refuses("'xlare' is unknown", resolve, "xlare a=1"))
    refuses("'areall' is unknown, did you mean areal", resolve, "areall a=1")


def test_what_is_no_option_is_passed_over_and_named():
    foreign = "data.max_prompt_length=9 critic.ppo_mini_batch_size=3"
    options = f"algorithm.adv_estimator=rloo {foreign} actor_rollout_ref.rollout.n=4"
    command = f"CUDA_VISIBLE_DEVICES=0 python -m verl.trainer.main_ppo {options}"
    for spec in (f"verl {options}", command, options):
        meaning = resolve(spec)
        assert short(meaning) == ("verl", "grpo", 4)
        assert set(meaning.passed_over) == {word.partition("=")[0] for word in foreign.split()}
    assert resolve("openrlhf --pretrain some/model --bf16").passed_over == ("--pretrain", "--bf16")


@pytest.mark.parametrize(
    ("spec", "steps"),
    [
        ("trl", 1),
        ("trl num_iterations=2", 2),
        ("trl steps_per_generation=8", 8),
        ("trl steps_per_generation=8 gradient_accumulation_steps=8", 1),
        ("trl num_iterations=3 steps_per_generation=16 gradient_accumulation_steps=8", 6),
        ("trl gradient_accumulation_steps=8", 1),
        ("verl", 4),
        ("verl ppo_mini_batch_size=1024", 1),
        ("verl ppo_mini_batch_size=512 ppo_epochs=2", 4),
        ("openrlhf n_samples_per_prompt=8", 64),
        ("slime", 1),
        ("slime --num-steps-per-rollout 4", 4),
        ("slime --rollout-batch-size 32 --n-samples-per-prompt 8 --global-batch-size 64", 4),
        ("slime --rollout-batch-size 32 --n-samples-per-prompt 8 --num-steps-per-rollout 4", 4),
        (
            "slime --rollout-batch-size 32 --n-samples-per-prompt 8 --global-batch-size 64 "
            "--num-steps-per-rollout 4",
            4,
        ),
        ("trl generation_batch_size=64 num_processes=2", 4),
        ("ms-swift steps_per_generation=4", 4),
        ("ms-swift num_iterations=2 gradient_accumulation_steps=4 steps_per_generation=8", 4),
        ("nemo-rl train_global_batch_size=512", 1),
        ("nemo-rl train_global_batch_size=64 num_prompts_per_step=16", 4),
        ("skyrl", 4),
        ("skyrl train_batch_size=256 update_epochs_per_batch=2", 2),
        ("areal n_samples=4", 4),
        ("open-instruct num_mini_batches=2 num_epochs=3", 6),
        ("easyr1 rollout.n=4", 2),
        ("tunix num_iterations=2", 2),
        ("roll adv_estimator=grpo num_return_sequences_in_group=4 ppo_epochs=3", 3),
        ("rlinf adv_type=grpo group_size=4 n_minibatches=4", 4),
    ],
)
def test_steps_on_the_same_outputs(spec, steps):
    """Every ratio is 1 in one step alone: of more what clips does act, and this is said."""
    meaning = resolve(spec)
    assert meaning.steps == pytest.approx(steps)
    ratios = [short_name(each.name) for each in meaning.framework.of_kind("ratio")]
    still = [name for names in meaning.unchanged().values() for name in names]
    assert (set(ratios) <= set(still)) == (steps == 1)
    assert bool(meaning.reused()) == (steps > 1)


def test_no_option_of_reuse_is_ignored():
    for framework in FRAMEWORKS:
        named = {bare(name) for group in framework.steps for name in group}
        others = {each.name for kind in ("batch", "group size") for each in framework.of_kind(kind)}
        again = {each.name for kind in ("reuse", "passes") for each in framework.of_kind(kind)}
        assert again == named - others
