"""The catalogue's releases: what each has is what its package had, and a version picks one."""

import json
import re
from pathlib import Path

import pytest
from attrs import evolve

from tests.support.commands import out_of, strict
from tests.support.refusals import refusals, refuses
from ustat_pg.catalogue import catalogue, resolve
from ustat_pg.catalogue.choice import choose
from ustat_pg.catalogue.framework import release_numbers
from ustat_pg.cli import main
from ustat_pg.explanations import explain

READ = json.loads((Path(__file__).parents[1] / "data" / "releases.json").read_text("utf-8"))
"""By framework and release, what was otherwise than in the release before: the defaults of the package's
config, the values that its code knows, and what the code of TRL's GRPOTrainer gave on groups of rewards 0 and
1; null for what was gone.
"""

UNREAD = {"num_processes", "actor.max_norm", "algo.advantage.is_correction_enable"}
"""Options of a launcher, of a name that is put together, and of older releases alone."""

KNOWN = catalogue().frameworks


def releases(name):
    """Each release of a framework and all that it had."""
    had = {}
    for release, change in READ[name].items():
        had |= change
        yield release, {key: value for key, value in had.items() if value is not None}


RELEASES = [(name, *each) for name in READ for each in releases(name)]
IDS = [f"{name}-{release}" for name, release, _ in RELEASES]


def wrong(framework, had):
    """The options of which a release says otherwise than its package."""
    for name, option in framework.options.items():
        if name in UNREAD:
            continue
        if bool(option.lacking) != (name not in had):
            yield name
        elif name in had and option.read(had[name]) != option.default:
            yield f"{name}={option.default}"
        values = had.get(f"{name} values", "").split()
        if values and {*map(option.read, values)} != {*(option.values or option.means)}:
            yield f"{name} of {' '.join(option.values or option.means)}"


@pytest.mark.parametrize(("name", "release", "had"), RELEASES, ids=IDS)
def test_a_release_has_what_its_package_had(name, release, had):
    framework = KNOWN[name].at(release)
    assert [*wrong(framework, had)] == []
    assert (framework.commit, framework.release) == (f"v{release}", release)


@pytest.mark.parametrize("name", READ)
def test_no_change_is_idle(name):
    """Without any one change some release would be another."""
    framework = KNOWN[name]
    for entry in framework.earlier:
        if not (entry.defaults or entry.absent):
            continue
        rest = tuple(other for other in framework.earlier if other is not entry)
        without = evolve(framework, earlier=rest)
        assert any([*wrong(without.at(release), had)] for release, had in releases(name)), entry


def test_changes_stand_in_their_order_and_the_last_refuses():
    dated = [framework for framework in KNOWN.values() if framework.earlier]
    assert {framework.name for framework in dated} == {*READ}
    for framework in dated:
        befores = [release_numbers(entry.before) for entry in framework.earlier]
        assert befores == sorted(befores, reverse=True)
        assert release_numbers(framework.release) >= befores[0]
        assert [bool(entry.refused) for entry in framework.earlier].index(True) == len(befores) - 1
        assert next(iter(READ[framework.name])) == framework.earlier[-1].before
        assert framework.at(framework.release) is framework


@pytest.mark.parametrize(("release", "had"), [*releases("trl")], ids=[*READ["trl"]])
def test_the_advantage_of_a_release_is_that_of_its_code(release, had):
    given = {key: value for key, value in had.items() if key.startswith("advantage")}
    for key, advantage in given.items():
        meaning = resolve(f"trl=={release} {key.removeprefix('advantage').strip()}")
        assert (meaning.estimator or meaning.row.other) == advantage
        assert meaning.framework.checked(meaning.row).startswith(
            "run" if meaning.framework is KNOWN["trl"] else "read"
        )


@pytest.mark.parametrize(
    ("spec", "aggregation", "step", "drawn"),
    [
        ("trl==0.14.0", "sequence-mean", 64, {"sampling": ["temperature=0.9", "top_k=50"]}),
        ("trl==0.16.1", "micro-token-mean", 8, {"policy": ["temperature=0.9"], "sampling": ["top_k=50"]}),
        ("trl==0.21.0", "micro-token-mean", 8, {}),
        ("trl==0.22.0", "token-mean", 8, {}),
        ("openrlhf==0.10.2 n_samples_per_prompt=8", "micro-token-mean", 128, {}),
        ("openrlhf==0.10.3 n_samples_per_prompt=8", "token-mean", 128, {}),
    ],
)  # fmt: skip
def test_the_rest_of_the_loss_is_of_the_release(spec, aggregation, step, drawn):
    meaning = resolve(f"{spec} num_processes=1" if spec.startswith("trl") else spec)
    assert meaning.aggregation.name == aggregation
    assert meaning.outputs == step
    assert meaning.drawn() == drawn


def test_what_a_release_lacks_is_not_said_to_change_nothing():
    lacking = {"delta", "epsilon", "importance_sampling_level"}
    now, then = (resolve(spec).unchanged() for spec in ("trl", "trl==0.15.0"))
    assert lacking <= {name for names in now.values() for name in names}
    assert not lacking & {name for names in then.values() for name in names}
    # Nor is an estimator chosen that it does not have.
    choice = choose(
        "trl==0.19.1 num_generations=8", 64, [8], lambda pairs: [(1.0,) * 4 for _ in pairs]
    )
    labels = {candidate.options for candidate in choice.candidates}
    assert "scale_rewards=none" in labels
    assert "scale_rewards=batch" not in labels
    assert "As TRL 0.19.1, GRPOTrainer" in str(choice)


# ----------------------------------------------------------------------------------------- versions

RUN = "num_generations: 8\nscale_rewards: true\n"
CALL = "from trl import GRPOConfig\nGRPOConfig(num_generations=8)\n"
HELD = "from 0.19.0 to before 0.20.0."
CELLS = [
    {"cell_type": "code", "source": ['!uv pip install "trl==0.19.1" vllm  # 2025\n']},
    {"cell_type": "code", "source": CALL},
]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("run.sh", "pip install 'trl[vllm]==0.19.1' torch\ntrl grpo --num_generations 8\n"),
        ("run.sh", "uvx --from trl==0.19.1 trl grpo --num_generations 8\n"),
        ("run.py", f'# /// script\n# dependencies = [\n#     "trl == 0.19.1",\n# ]\n# ///\n{CALL}'),
        ("run.ipynb", json.dumps({"cells": CELLS})),
        ("run.yaml", f"setup: pip install trl==0.19.1\n{RUN}"),
        ("run.toml", 'requires = ["trl==0.19.1"]\nnum_generations = 8\nscale_rewards = true\n'),
    ],
)
def test_a_file_names_its_release(tmp_path, name, text):
    (tmp_path / name).write_text(text, "utf-8")
    found = resolve([str(tmp_path / name)])
    assert found.aggregation.name == "micro-token-mean"
    assert found.framework.title == "TRL 0.19.1, GRPOTrainer"
    (said,) = found.releases
    assert said == f"TRL 0.19.1, which {tmp_path / name} names: these defaults apply {HELD}"
    assert not {"trl", "trl[vllm]"} & {*found.passed_over}


@pytest.fixture
def run(tmp_path):
    (tmp_path / "config.yaml").write_text(RUN, "utf-8")

    def write(*lines):
        text = "\n".join(("torch==2.13.0", "trl-extras==0.1", *lines))
        (tmp_path / "requirements.txt").write_text(text, "utf-8")
        return str(tmp_path / "config.yaml")

    return write


@pytest.mark.parametrize(
    ("line", "loss", "said"),
    [
        ("trl==0.19.1", "bnpo", "names: these defaults apply from 0.19.0"),
        ("trl==1.16.0", "dapo", "names: these defaults apply from 1.10.0 on."),
        ("trl==2.0", "dapo", "is later than the recorded releases: .* of TRL 1.16.0."),
        ("trl>=0.20,<0.24", "dapo", r"asks for trl>=0.20,<0.24, and these .* of TRL 1.16.0: write"),
        ("trl~=0.19.0", "dapo", "asks for trl~=0.19.0"),
        ("trl==0.19.*", "dapo", r"asks for trl==0.19.\*"),
        ("trl!=1.16", "dapo", "asks for trl!=1.16"),
        ("trl!=1.*", "dapo", r"asks for trl!=1.\*"),
        ("trl>=0.19", "dapo", ""),
        ("trl~=1.2", "dapo", ""),
        ("trl==1.16.*", "dapo", ""),
        ("# trl==0.19.1", "dapo", ""),
        ("TRL>1.0rc1", "dapo", ""),
    ],
)  # fmt: skip
def test_an_exact_release_alone_is_picked(run, line, loss, said):
    found = resolve([run(line)])
    assert found.values["loss_type"] == loss
    assert len(found.releases) == bool(said)
    assert re.search(said, " ".join(found.releases))


def test_a_typed_release_holds_before_a_files(run, capsys):
    path = run("trl==0.28.0")
    found = resolve(["trl==0.19.1", path, "beta=0.1"])
    assert (found.values["loss_type"], found.values["beta"]) == ("bnpo", "0.1")
    assert found.releases[0] == f"{path} names trl==0.28.0, but the typed release 0.19.1 is used."
    text = " ".join(out_of(capsys, main, "explain", "trl==0.19.1", path).split())
    assert text.startswith("TRL 0.19.1, GRPOTrainer, G = 8: GRPO")
    for sentence in found.releases:
        assert sentence in text
    answer = strict(out_of(capsys, main, "explain", "trl==0.19.1", path, "--json"))
    assert answer["releases"] == [*found.releases]


def test_two_releases_are_compared(capsys):
    text = out_of(
        capsys, main, "explain", "trl==0.22.1", "num_generations=8", "--against", "trl==0.22.2"
    )
    assert "TRL 0.22.1: these defaults apply from 0.22.0 to before 0.22.2." in text
    assert "TRL 0.22.2: these defaults apply from 0.22.2 to before 0.23.0." in text
    assert "estimator" in text
    assert explain("trl==0.22.1").estimator == "group-mean"
    assert (
        explain("trl==0.22.1 scale_rewards=false").estimator
        == explain("trl").estimator
        == "std-ddof1"
    )


def test_a_file_without_records_is_answered_as_before(tmp_path):
    (tmp_path / "run.sh").write_text(
        "pip install verl==0.7.1\n"
        "python -m verl.trainer.main_ppo algorithm.adv_estimator=grpo actor_rollout_ref.rollout.n=8\n",
        "utf-8",
    )
    found = resolve([str(tmp_path / "run.sh")])
    assert found.framework is KNOWN["verl"]
    (said,) = found.releases
    assert "names verl==0.7.1, but no releases are recorded: these are the options" in said
    # What hands its options to TRL has not TRL's releases.
    assert not any(KNOWN[name].earlier for name in ("unsloth", "axolotl", "ms-swift"))


def test_two_releases_in_one_file_are_refused(run):
    said = r"names trl==0.19.1 and trl==0.20.0: write trl==VERSION before it"
    refuses(said, resolve, [run("trl==0.19.1", "trl==0.20.0")])


test_releases_and_options_are_refused = refusals(
    (lambda: resolve("trl==0.13.0"), "TRL 0.13.0: there was no GRPOTrainer; the earliest .* is 0.14.0"),
    (lambda: resolve("trl-rloo==0.21.0"), "another trainer, with a reward model .* is 0.22.0"),
    (lambda: resolve("roll==0.2"), "no releases are recorded for ROLL: its rows apply to alibaba/ROLL@"),
    (lambda: resolve("unsloth==2026.9.1"), "no releases are recorded for Unsloth"),
    (lambda: resolve("trl==0.14.0 loss_type=grpo"), "^TRL 0.14.0 has no loss_type$"),
    (lambda: resolve("trl==v0.21.0 scale_rewards=batch"), "'batch': TRL 0.21.0 has no such value"),
    (lambda: resolve("trl==0.19.1 loss_type=dapo"), "'dapo': TRL 0.19.1 has no such value"),
    (lambda: resolve("trl==new"), "release is 'new': it must be numbers with dots, as 0.19.1"),
    (lambda: resolve("trl== beta=0"), "release is '': it must be numbers with dots"),
    (lambda: resolve("trll==0.19.1"), "framework 'trll' is unknown, did you mean trl"),
)  # fmt: skip
