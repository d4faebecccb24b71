"""Files and commands of a run as they lie around: read or refused, never guessed."""

import json
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.support.refusals import refuses
from ustat_pg.catalogue import resolve

pytest.importorskip("omegaconf")


@dataclass
class File:
    """A file: its name and text, those beside it, and what it means: framework, estimator or row, and G."""

    name: str
    text: str
    means: tuple[str, str, int | None]
    beside: dict[str, str] | None = None


NEMO_PARENT = """
grpo:
  num_generations_per_prompt: 32
  normalize_rewards: true
  use_leave_one_out_baseline: false
  adv_estimator:
    name: grpo
    normalize_rewards: ${grpo.normalize_rewards}
    use_leave_one_out_baseline: ${grpo.use_leave_one_out_baseline}
loss_fn: {reference_policy_kl_penalty: 0.0, ratio_clip_max: 0.28}
"""

HERE = 'DIR=$( cd -- "$( dirname -- "${BASH_SOURCE[0]}" )" &> /dev/null && pwd)\n'
COMMON = f"""{HERE}NAME=${{NAME:-$(basename $0 .sh)}}
CONFIG=$(echo $DIR/${{NAME}}.yaml | sed 's#suites#configs#')
"""
SUITE = f"{HERE}source $DIR/common.env\nuv run examples/run_grpo.py --config $CONFIG $@\n"

CELLS = [
    {"cell_type": "markdown", "source": ["GRPOConfig()"]},
    {"cell_type": "code", "source": ["!pip install trl\n", "import trl\n"]},
    {"cell_type": "code", "source": "c = trl.GRPOConfig(scale_rewards=False, num_generations=4)"},
]

FILES = {
    "names of one framework": File(
        "run.yaml",
        "algorithm: {adv_estimator: rloo, norm_adv_by_std_in_grpo: true}\n"
        "actor_rollout_ref: {model: {path: m}, rollout: {n: 4, temperature: 1.0}}\n",
        ("verl", "grpo", 4),
    ),
    "a file that refers to its own options": File(
        "run.yaml",
        NEMO_PARENT.replace("normalize_rewards: true", "normalize_rewards: false").replace(
            "leave_one_out_baseline: false", "leave_one_out_baseline: true"
        ),
        ("nemo-rl", "grpo", 32),
    ),
    "several rewards have weights": File(
        "run.yaml",
        "num_generations: 16\nmax_completion_length: 9\nreward_weights: [1.0, 0.5]\n",
        ("trl", "std-ddof1", 16),
    ),
    "options in a section of another's": File(
        "run.yaml",
        "training: {loss_type: dr_grpo, scale_rewards: false, num_generations: 4}\nval: {beta: 1}\n",
        ("trl", "group-mean", 4),
    ),
    "a table of TOML": File(
        "rl.toml",
        '[orchestrator]\nbatch_size = 8\ngroup_size = 16\n[orchestrator.algo]\ntype = "max_rl"\n'
        "[trainer.optim]\ngroup_size = 3\n",
        ("prime-rl", "maxrl", 16),
    ),
    "a parent": File(
        "child.yaml",
        "defaults: ./parent.yaml\nloss_fn: {ratio_clip_c: 10}\n",
        ("nemo-rl", "std-ddof1", 32),
        {"parent.yaml": NEMO_PARENT},
    ),
    "a list of parents, the later holding": File(
        "child.yaml",
        "defaults: [parent.yaml, more.yaml]\n",
        ("nemo-rl", "grpo", 8),
        {
            "parent.yaml": NEMO_PARENT,
            "more.yaml": "grpo: {num_generations_per_prompt: 8, use_leave_one_out_baseline: true, "
            "normalize_rewards: false}\n",
        },
    ),
    "names that nothing reads": File(
        "run.yaml",
        "grpo: {num_generations_per_prompt: 8, normalize_rewards: false, use_leave_one_out_baseline: "
        "false}\n",
        ("nemo-rl", "others-std", 8),
    ),
    "Hydra's groups": File(
        "run.yaml",
        "defaults: [_self_, algorithm: rloo, override hydra/launcher: x]\n"
        "actor_rollout_ref: {rollout: {n: 4}}\n",
        ("verl", "grpo", 4),
        {"algorithm/rloo.yaml": "adv_estimator: rloo\n"},
    ),
    "Hydra's overrides": File(
        "overrides.yaml",
        "- algorithm.adv_estimator=grpo\n- actor_rollout_ref.rollout.n=8\n- trainer.x=1\n",
        ("verl", "std-ddof1", 8),
    ),
    "Hydra's search path, whose beginning the run alone knows": File(
        "tests/a/run.yaml",
        "hydra: {searchpath: ['file://${oc.env:REPO}/examples/config/']}\n"
        "defaults: [algorithm: rloo]\nactor_rollout_ref: {rollout: {n: 4}}\n",
        ("verl", "grpo", 4),
        {"examples/config/algorithm/rloo.yaml": "adv_estimator: rloo\n"},
    ),
    "a script with a file": File(
        "run.sh",
        "python3 -m verl.trainer.main config=base.yaml worker.rollout.n=6 \\\n  trainer.x=$X\n",
        ("easyr1", "std-ddof1", 6),
        {
            "base.yaml": "algorithm: {adv_estimator: grpo, kl_coef: 0.01}\nworker: {rollout: {n: 5}}\n"
        },
    ),
    "a script of verl's kin": File(
        "run.sh",
        "python3 -m rllm.cli.train algorithm.adv_estimator=grpo rollout.n=8\n",
        ("rllm", "std", 8),
    ),
    "ms-swift is not TRL": File(
        "run.sh",
        "swift rlhf --rlhf_type grpo --num_generations 8 --max_completion_length 9\n",
        ("ms-swift", "std-ddof1", 8),
    ),
    "miles is not slime": File(
        "run.sh",
        "python3 train.py --advantage-estimator grpo --n-samples-per-prompt 8 --use-miles-router\n",
        ("miles", "std-ddof1", 8),
    ),
    "a clone of miles": File(
        "miles/tests/run.sh",
        "python3 train.py --advantage-estimator gspo --n-samples-per-prompt 8 --use-tis\n",
        ("miles", "std-ddof1", 8),
    ),
    "a value that one alone has": File(
        "run.sh",
        "python3 train.py --advantage-estimator gspo --n-samples-per-prompt 8 --use-tis\n",
        ("slime", "std-ddof1", 8),
    ),
    "a default of the shell": File(
        "run.sh",
        ': "${EST:=maxrl}"\nN=$((2 * 4))\npython -m skyrl.train.entrypoints.main_base '
        'trainer.algorithm.advantage_estimator="$EST" generator.n_samples_per_prompt=$((N / 2))\n',
        ("skyrl", "maxrl", 4),
    ),
    "comments within a command": File(
        "run.sh",
        "python -m tunix.cli.grpo_main \\\n  `# ── G ──` \\\n  agentic_grpo_config.num_generations=8\n",
        ("tunix", "std-ddof1", 8),
    ),
    "a sharp within a word": File(
        "run.sh",
        "swift rlhf --rlhf_type grpo --dataset a/b#100 --num_generations 4 # --num_generations 9\n",
        ("ms-swift", "std-ddof1", 4),
    ),
    "files that stand alone, behind what only the run knows": File(
        "tests/run.sh",
        'ROOT=$(realpath $(dirname "$0")/..)\nuv run examples/run_grpo.py --config $ROOT/base.yaml \\\n'
        "  grpo.num_generations_per_prompt=4\npython prepare.py other.yaml\n",
        ("nemo-rl", "std-ddof1", 4),
        {"base.yaml": NEMO_PARENT, "other.yaml": "x: 1\n"},
    ),
    "a script whose common part works out the file's name": File(
        "suites/llm/grpo-small.sh",
        SUITE,
        ("nemo-rl", "std-ddof1", 32),
        {"suites/llm/common.env": COMMON, "configs/llm/grpo-small.yaml": NEMO_PARENT},
    ),
    "a script that hands on to another": File(
        "suites/llm/grpo-small-tq_simple.sh",
        f'{HERE}source "$DIR/tq.env"\nNAME=$BASE bash "$DIR/$BASE.sh" grpo.num_generations_per_prompt=6',
        ("nemo-rl", "std-ddof1", 6),
        {
            "suites/llm/tq.env": "BASE=$(echo $(basename $0 .sh) | sed -E 's/-tq_(simple|other)$//')",
            "suites/llm/grpo-small.sh": SUITE,
            "suites/llm/common.env": COMMON,
            "configs/llm/grpo-small.yaml": NEMO_PARENT,
        },
    ),
    "a section that takes its parent's place": File(
        "child.yaml",
        "defaults: parent.yaml\ndata: {_override_: true, train: [a]}\n"
        "grpo: {num_generations_per_prompt: 4}\n",
        ("nemo-rl", "std-ddof1", 4),
        {"parent.yaml": NEMO_PARENT + "data: {train: {a: 1}}\n"},
    ),
    "rewards that are likenesses": File(
        "run.yaml",
        "rl: ebft\nebft: {diversity_coef: 1.0}\ntrl: {num_generations: 4, scale_rewards: true}\n",
        ("axolotl", "std-ddof1", 4),
    ),
    "a teacher in place of rewards": File(
        "run.sh",
        "swift rlhf --rlhf_type grpo --teacher_model m --num_generations 4\n",
        ("ms-swift", "a teacher", 4),
    ),
    "a teacher beside rewards": File(
        "run.sh",
        "swift rlhf --rlhf_type grpo --teacher_model m --num_generations 4 --reward_funcs accuracy\n",
        ("ms-swift", "std-ddof1", 4),
    ),
    "any ending": File(
        "run.slurm",
        "srun python -m verl.trainer.main_ppo algorithm.adv_estimator=rloo "
        "actor_rollout_ref.rollout.n=2 actor_rollout_ref.rollout.val_kwargs.n=64\n",
        ("verl", "grpo", 2),
    ),
    "a name with spaces": File(
        "my run.yaml", "scale_rewards: none\nnum_generations: 4\n", ("trl", "group-mean", 4)
    ),
    "a critic": File(
        "run.yaml",
        "gconfig: {n_samples: 4}\nactor: {kl_ctl: 0.0, adv_norm: {mean_level: batch, std_level: batch}}\n"
        "critic: {path: m}\n",
        ("areal", "PPO", 4),
    ),
    "a teacher beside an estimator": File(
        "run.sh",
        "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo actor_rollout_ref.rollout.n=1 "
        "distillation.enabled=True\n",
        ("verl", "distillation from a teacher", 1),
    ),
    "Python": File(
        "train.py",
        "import unsloth\nfrom trl import GRPOConfig\nN = 4\nargs = GRPOConfig(num_generations=N, "
        'loss_type="bnpo", learning_rate=rate(), output_dir=f"{x}")\n',
        ("unsloth", "std-ddof1", 4),
    ),
    "a notebook": File(
        "train.ipynb",
        json.dumps({"cells": CELLS}),
        ("trl", "group-mean", 4),
    ),
    "a framework without a test of its code": File(
        "run.yaml",
        "algorithm: {adv_type: grpo, group_size: 8}\nenv: {train: {group_size: 2}}\n",
        ("rlinf", "std-ddof1", 8),
    ),
}


@pytest.mark.parametrize("file", FILES.values(), ids=FILES.keys())
def test_a_file_is_read(written, file):
    meaning = resolve([written(file.name, file.text, file.beside)])
    said = meaning.framework.name, meaning.estimator or meaning.row.name, meaning.group_size
    assert said == file.means


def test_weights_are_a_list_however_they_are_written(written):
    for spec in (
        "trl reward_weights=1,0.5",
        "trl --reward_weights 1.0 0.5 --num_generations 4",
        {"reward_weights": [1.0, 0.5], "scale_rewards": True},
        SimpleNamespace(reward_weights=[1, 0.5], scale_rewards="group"),
        [written("run.yaml", "scale_rewards: true\nreward_weights: [1.0, 0.5]\n")],
    ):
        assert resolve(spec).values["reward_weights"] == "[1.0, 0.5]"
    refuses("reward_weights is 'often'", resolve, "trl reward_weights=1,often")


def test_what_stands_behind_a_file_holds_and_two_files_add_up(written):
    path = written("run.yaml", "scale_rewards: true\nnum_generations: 4\n")
    more = written("more.yaml", "num_generations: 2\nloss_type: grpo\n")
    assert resolve(["trl", path, "num_generations=8"]).group_size == 8
    both = resolve(["trl", path, more])
    assert (both.group_size, both.aggregation.name) == (2, "sequence-mean")


def test_a_run_of_hydra_is_its_folder(written, tmp_path):
    written(
        ".hydra/config.yaml",
        "algorithm: {adv_estimator: rloo}\nactor_rollout_ref: {rollout: {n: 4}}\n",
    )
    assert resolve([str(tmp_path)]).estimator == "grpo"
    (tmp_path / "empty").mkdir()
    refuses("Is a directory, without the .hydra/config.yaml", resolve, [str(tmp_path / "empty")])


NOT_CLEAR = "framework of these options is not clear: it may be one of several, or none known here"
REFUSED = {
    "one name of several frameworks": (
        "run.yaml", "train: {num_generations: 4, beta: 0.04}\n", NOT_CLEAR),
    "G alone, which others have in a section of theirs": (
        "run.yaml", "rollout: {n: 1}\n", NOT_CLEAR),
    "names of no framework known here, which two have in a section of theirs": (
        "run.yaml", "group_size: 8\nlocal_batch_size: 16\nmodel: m\n", NOT_CLEAR),
    "a name with a section that one alone has, and no advantage": (
        "run.yaml", "policy: {train_global_batch_size: 8}\n",
        r"it could be of NeMo-RL, or of none known here: .* nemo-rl for example, before the file$"),
    "a program that one alone has": (
        "run.sh", "python -m skyrl.train.entrypoints.main_base x.y=1\n", "it could be of SkyRL, or of none"),
    "expressions of another program": (
        "ci.yml", "on: push\njobs: {x: {if: '${{ a == b }}'}}\n", "framework of these options is not clear"),
    "a generic name": ("run.yaml", "train: {batch_size: 4}\n", "framework of these options is not clear"),
    "two places": (
        "run.yaml",
        "a: {loss_type: grpo, scale_rewards: true}\nb: {scale_rewards: false}\n",
        "scale_rewards may be a.scale_rewards=group or b.scale_rewards=none"),
    "a parent that is not there": (
        "run.yaml",
        "defaults: gone.yaml\ngrpo: {adv_estimator: {name: grpo}}\n",
        "its parent gone.yaml, which may set .*num_generations_per_prompt.*is missing"),
    "a parent of its own": (
        "run.yaml", "defaults: run.yaml\ngrpo: {}\n", "it is its own parent"),
    "a script with a file that is not there": (
        "run.sh", "python -m verl.trainer.main config=gone.yaml algorithm.adv_estimator=grpo",
        "its parent gone.yaml, which .* is missing"),
    "a trainer of its own": (
        "run.sh", "python3 -m recipe.flowrl.main_flowrl algorithm.adv_estimator=grpo",
        "runs recipe.flowrl.main_flowrl: FlowRL"),
    "two scripts": (
        "run.sh", "bash other.sh\nbash more.sh --beta 0.1", "it has 2 trainings with other options: .*other"),
    "a teacher's program": (
        "run.sh", "uv run examples/run_distillation.py grpo.num_generations_per_prompt=4",
        "runs examples/run_distillation.py: it learns from a teacher"),
    "a filter of data": (
        "run.yaml", "num_generations: 8\nreward_weights: [1.0]\npass_rate_min: 0.1\n",
        "pass_rate_min is not an option of TRL.*: it belongs to a script that filters data"),
    "a teacher's section": (
        "run.yaml", "adv_estimator: reinforce\nnum_return_sequences_in_group: 4\n"
        "student_train: {x: 1}\nteacher: {model_args: {model: m}}\n",
        "teacher.model_args.model is not an option of ROLL: it belongs to a distillation"),
    "a benchmark of generation": (
        "run.sh", "python -m open_instruct.benchmark_generators --num_samples_per_prompt_rollout 4",
        "runs open_instruct.benchmark_generators: it times generation"),
    "a training step that sleeps": (
        "run.sh", "python -m examples.train.x.main trainer.algorithm.advantage_estimator=grpo "
        "trainer.fully_async.simulate_training=true",
        "simulate_training is not an option of SkyRL: its training step sleeps"),
    "a teacher's advantages": (
        "run.sh", "python -m rllm.x training.group_size=4 rllm.distill.teacher_rollout_args.model=m",
        "teacher_rollout_args.model is not an option of rLLM: it belongs to a distillation"),
    "advantages of a workflow": (
        "run.sh", "python -m rllm.x training.group_size=4 rllm.algorithm.use_precomputed_advantage=true",
        "use_precomputed_advantage is 'true': its workflow"),
    "groups within a document": (
        "run.yaml", "rl: ebft\nebft: {mode: strided, n_samples_per_prompt: 4}\n", "'strided': its groups"),
    "a program with a config of its own": (
        "run.sh", "python3 -m recipe.async_flow.grpo_main algorithm.adv_estimator=grpo",
        "runs recipe.async_flow.grpo_main, whose own config may set .*: write rollout.n=G"),
    "another's trainer, by what Hydra makes": (
        "run.yaml",
        "algorithm: {adv_estimator: grpo}\nx: ${algorithm.adv_estimator}\n"
        "actor_rollout_ref: {rollout: {n: 4}, actor: {_target_: recipe.dance_grpo.x.Config}}\n",
        "runs recipe.dance_grpo.x.Config: it trains an image model"),
    "another adapter of the same framework": (
        "run.sh", "python -m tunix.experimental.x --num_generations 4\n",
        "runs tunix.experimental.x: its adapter divides by the population deviation"),
    "no rewards": ("run.sh", "swift sft --model m --loss_type x", "swift sft: it trains without"),
    "another kind of training": (
        "run.sh", "swift rlhf --rlhf_type dpo --beta 1", "rlhf_type is 'dpo'"),
    "a value that is computed": (
        "train.py", "from trl import GRPOConfig\nGRPOConfig(num_generations=int(x))",
        "only the run itself sets num_generations"),
    "keywords that are computed": (
        "train.py", "from trl import GRPOConfig\nGRPOConfig(**options)",
        "only the run itself sets scale_rewards"),
    "a name with two values": (
        "train.py", "n = 2\nif x:\n n = 4\nfrom trl import GRPOConfig\nGRPOConfig(num_generations=n)",
        "only the run itself sets num_generations"),
    "two configs": (
        "train.py", "from trl import GRPOConfig\nGRPOConfig()\nGRPOConfig(beta=0.1)",
        "2 trainings with other options: .*line 2: GRPOConfig and .*line 3: GRPOConfig"),
    "no config": ("train.py", "print()", "does not call .*GRPOConfig.*: give the file"),
    "no Python": ("train.py", "def (", "not Python"),
    "no notebook": ("run.ipynb", "{}", "not a notebook"),
    "no TOML": ("run.toml", "= 3", "not TOML"),
    "no advantage": ("run.yaml", "algorithm: {group_size: 8, adv_type: null}", "write it"),
}  # fmt: skip


@pytest.mark.parametrize(("name", "text", "said"), REFUSED.values(), ids=REFUSED.keys())
def test_a_file_is_refused_and_nothing_is_guessed(written, name, text, said):
    before = ["rlinf"] if "adv_type" in text else []
    beside = dict.fromkeys(("other.sh", "more.sh"), "trl grpo --num_generations 4 $@\n")
    refuses(said, resolve, [*before, written(name, text, beside)])


def test_parts_that_do_not_fit(written):
    path = written("run.yaml", "defaults: [a.yaml]\ngrpo: {x: 1}\n", {"a.yaml": "grpo: [1]\n"})
    refuses("its parents and references do not fit", resolve, ["nemo", path])


def test_nothing_in_a_source_runs(written, tmp_path):
    touched = tmp_path / "touched"
    config = "GRPOConfig(num_generations=4, loss_type='grpo')"
    text = f"from trl import GRPOConfig\nopen({str(touched)!r}, 'w')\n{config}"
    assert resolve([written("train.py", text)]).group_size == 4
    script = (
        f"touch {touched}\nx=$(touch {touched})\ntrl grpo --num_generations 4 --loss_type grpo\n"
    )
    assert resolve([written("run.sh", script)]).group_size == 4
    assert not touched.exists()


def test_a_file_of_parts_says_what_to_install(written, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "omegaconf", None)
    path = written("run.yaml", "defaults: base.yaml\n", {"base.yaml": "grpo: {}\n"})
    refuses(
        r"which has parents or references, needs pip install 'ustat_pg\[configs\]'",
        resolve,
        ["nemo", path],
    )


def test_the_command_line_takes_names_with_spaces(written, capsys):
    from ustat_pg.cli import main

    path = written("my run.yaml", "scale_rewards: none\nnum_generations: 4\n")
    assert main(["explain", path]) == 0
    assert "TRL, GRPOTrainer" in capsys.readouterr().out
    assert Path(path).name == "my run.yaml"


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("run.py", "x = " + "(" * 5000 + ")" * 5000, "not Python"),
        ("run.py", "GRPOConfig(num_generations=" + "9" * 5000 + ")", "not Python|whole number"),
        ("run.toml", "a = " + "[" * 3000, "not TOML"),
        ("run.sh", "trl grpo --num_generations $((" + "9" * 5000 + "))", "only the run itself"),
        ("run.sh", "trl grpo --num_generations $((1/0))", "only the run itself"),
        ("run.ipynb", '{"cells": [{"cell_type": "code", "source": 3}]}', "not a notebook"),
    ],
)
def test_hostile_sources_are_one_line(written, name, text, said):
    error = refuses(said, resolve, [written(name, text)])
    assert len(str(error)) < 7000


def test_a_specification_may_be_longer_than_a_file_name():
    assert resolve("verl adv_estimator=rloo rollout.n=4 " + "trainer.x=1 " * 100).group_size == 4
    assert (
        resolve(["verl", "adv_estimator=rloo", "rollout.n=4", "trainer.x=" + "1" * 5000]).group_size
        == 4
    )


def test_a_trainer_is_its_config():
    args = SimpleNamespace(scale_rewards=False, num_generations=4, loss_type="dr_grpo")
    trainer = SimpleNamespace(model=object(), args=args)
    meaning = resolve(trainer)
    assert (meaning.framework.name, meaning.estimator, meaning.group_size) == (
        "trl",
        "group-mean",
        4,
    )


def test_a_script_that_names_itself_is_read_once(written):
    text = "trl grpo --config run.sh --num_generations 4 --loss_type grpo\n"
    assert resolve([written("run.sh", text)]).group_size == 4
