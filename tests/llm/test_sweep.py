"""Sweeps: what is planned, made, continued, reported; and what a dry run foresees."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import shlex
import shutil
import signal
import sys
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from filelock import FileLock

from tests.support.models import save_tiny
from tests.support.refusals import refuses

torch = pytest.importorskip("torch")
pytest.importorskip("trl")

from ustat_pg.cli import main  # noqa: E402
from ustat_pg.llm import sweep  # noqa: E402
from ustat_pg.llm.grid import PRESETS  # noqa: E402
from ustat_pg.llm.paper_runs import table_2  # noqa: E402
from ustat_pg.llm.sweep import (  # noqa: E402
    Run,
    Sweep,
    differences,
    dry_run,
    figure5,
    results,
    table2,
)
from ustat_pg.llm.tasks import load_task  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:.*gradient_checkpointing.*:FutureWarning")

VERIFIER = '''
import os
import re

def digit_first(completions, **columns):
    """1 where the answer begins with a digit; ends the process at the call that is named."""
    left = os.environ.get("DIGIT_FIRST_CALLS")
    if left is not None:
        os.environ["DIGIT_FIRST_CALLS"] = str(int(left) - 1)
        if int(left) <= 0:
            raise SystemExit(9)
    return [float(text[:1].isdigit()) for text in completions]
'''


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a model of few symbols, prompts to train on and to test on, and a verifier."""
    folder = tmp_path_factory.mktemp("sweep")
    save_tiny(folder / "model", characters="0123456789+=")
    for name, first, count in (("train", 1, 6), ("test", 7, 3)):
        lines = [json.dumps({"prompt": f"{i}+{i}="}) for i in range(first, first + count)]
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    (folder / "first_digit_verifier.py").write_text(VERIFIER)
    return folder


@pytest.fixture
def grid(place, monkeypatch):
    """A small sweep over that folder."""
    monkeypatch.syspath_prepend(str(place))
    monkeypatch.setenv("PYTHONPATH", str(place))
    return Sweep.of(
        {
            "model": str(place / "model"), "task": str(place / "train.jsonl"),
            "evaluation": str(place / "test.jsonl"), "verifier": "first_digit_verifier:digit_first",
            "group_size": (2, 4), "budget": 8, "steps": 4, "learning_rate": 0.3,
            "checkpoints": (2, 200), "samples": 5, "max_new_tokens": 3, "micro_batch": 4,
        }
    )  # fmt: skip


def changed(sweep, **changes):
    return Sweep.of(sweep.base, sweep.grid, changes)


def folder_of(run, out, status=None):
    """The folder of a run with its configuration, and a status if one is given."""
    folder = out / run.key
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "run.json").write_text(run.text())
    if status is not None:
        (folder / "status.json").write_text(json.dumps(status))
    return folder


def status_of(folder):
    return json.loads((folder / "status.json").read_text())


def made(run, out):
    """Make a run here, in this process."""
    folder = folder_of(run, out)
    sweep.make(folder / "run.json")
    return folder


def runs_are(monkeypatch, script):
    """Let another program stand for a run's process."""
    command = [sys.executable, "-c", script]
    monkeypatch.setattr(Run, "command", lambda run, path: [*command, str(path)])


def without_times(folder):
    """The records of a run's evaluations and of its training."""

    def read(name):
        records = map(json.loads, (folder / f"{name}.jsonl").read_text().splitlines())
        return [{k: v for k, v in record.items() if "seconds" not in k} for record in records]

    return read("evaluations"), read("training")


def recorded(run, out, accuracies, rewards_seen=None, read=None, torn=""):
    """A finished run's folder with these accuracies by step."""
    status = {"status": "finished", "seconds": 1, "step_factor": 1.0, "inputs": read}
    folder = folder_of(run, out, status)
    lines = [{"step": step, "accuracy": value} for step, value in accuracies.items()]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / "evaluations.jsonl").write_text(text + torn)
    if rewards_seen is not None:
        record = {"step": 1, "rewards_seen": rewards_seen}
        (folder / "training.jsonl").write_text(json.dumps(record) + "\n")


def test_plan_is_the_grid(grid):
    plan = changed(grid, seed=(0, 3), trainer=("rloo", "vanilla")).plan()
    points = [(run.trainer, run.budget, run.group_size, run.seed) for run in plan]
    assert points[:4] == [("rloo", 8, size, seed) for size in (2, 4) for seed in (0, 3)]
    assert len({run.key for run in plan}) == len(plan) == 8
    assert plan[0].evaluated_at() == (0, 2, 4)
    assert all(run.budget == run.group_size * run.prompts for run in plan)


def test_a_run_is_read_back(grid, tmp_path):
    run = changed(grid, options={"epsilon": 0.1}, launch=("--main_process_port", "0")).plan()[0]
    (tmp_path / "run.json").write_text(run.text())
    again = Run.read(tmp_path / "run.json")
    assert again == run
    assert again.key == run.key != grid.plan()[0].key
    (tmp_path / "run.json").write_text("{}")
    refuses("not the configuration of a run: .*needs group_size", Run.read, tmp_path / "run.json")


def test_a_file_names_settings_as_trl_does(grid, tmp_path):
    """Ours and TRL's names say the same; what is neither goes on to TRL; changes go before the file."""
    file = tmp_path / "base.yaml"
    given = {name: grid.base[name] for name in ("model", "task", "evaluation", "verifier")}
    given |= {"budget": 8, "max_steps": 4, "checkpoints": [2, 200], "samples": 5}
    given |= {"max_completion_length": 3, "per_device_train_batch_size": 4}
    rate = "learning_rate: 3e-1\ngrid:\n  num_generations: [2, 4]\n"
    file.write_text(
        "".join(f"{name}: {json.dumps(value)}\n" for name, value in given.items()) + rate
    )
    assert Sweep.read(file).plan() == grid.plan()
    changes = {"seed": (1, 2), "num_generations": 4, "beta": 0.05, "options": {"epsilon": 0.1}}
    plan = Sweep.read(file, changes).plan()
    assert [(run.group_size, run.seed) for run in plan] == [(4, 1), (4, 2)]
    assert dict(plan[0].options) == {"beta": 0.05, "epsilon": 0.1}
    for text, message in {
        "a: [1": "not YAML",
        "- 1": "has no settings",
        "grid: {learning_rate: [0.1, 0.2]}": "lists for some of trainer, budget, group_size, seed",
        "sample: 4": "sample is no setting of a run: samples may be meant",
        "model: 5": "model is 5: it must be a text",
        "1: 2": "a run needs",
        "grid: 3": "lists for some of",
        "model: m": "a run needs group_size, budget, steps, learning_rate",
    }.items():
        file.write_text(text)
        refuses(message, lambda: Sweep.read(file).plan())
    refuses("No such file", Sweep.read, tmp_path / "none.yaml")


def test_commands_of_a_cluster_are_printed(grid, tmp_path, capsys):
    """Those of runs that are not finished; each is what the sweep itself would start."""
    file, out = tmp_path / "base.yaml", tmp_path / "out of here"
    file.write_text(json.dumps({**grid.base, "grid": grid.grid}))
    words = ["llm", "sweep", "--config", str(file), "--device", "cpu", "--out", str(out), "--print"]
    assert main(words) == 0
    told = capsys.readouterr().out.splitlines()
    plan = changed(grid, device="cpu").plan()
    assert [shlex.split(line) for line in told] == [
        run.command(out / run.key / "run.json") for run in plan
    ]
    assert [Run.read(out / run.key / "run.json") for run in plan] == list(plan)
    read = sweep.inputs(plan[0], *plan[0].tasks())
    folder_of(plan[0], out, {"status": "finished", "seconds": 1, "inputs": read})
    assert main(words) == 0
    assert capsys.readouterr().out.splitlines() == told[1:]
    assert main([*words, "--learning-rate", ".5"]) == 2
    assert "learning-rate 0.3, not 0.5" in capsys.readouterr().err
    assert main([*words, "--preset", "table2"]) == 2
    assert "name one of the two" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"group_size": (4, 3)}, "group size 3 does not divide .* choose one of 2, 4, 8"),
        ({"group_size": ()}, "at least one"),
        ({"seed": (1, 1)}, "none twice"),
        ({"trainer": ("ppo",)}, "choose one of"),
        ({"trainer": ("rloo", "loo-table:0.2,0.6")}, "2 values: a group of 4 needs as many"),
        ({"held_out": 3}, "one of the two"),
        ({"evaluation": None}, "one of the two"),
        ({"samples": 0}, "samples is 0"),
        ({"greedy": True}, "samples is 5: of greedy answers there is one"),
        ({"checkpoints": (-1,)}, "step is -1"),
    ],
)
def test_a_plan_refuses(grid, changes, message):
    refuses(message, changed(grid, **changes).plan)


def test_nothing_runs_where_prompts_are_too_few_or_shared(grid, place, tmp_path):
    few = changed(grid, group_size=(2,), budget=(16,))
    refuses(r"needs 8 prompts .* there are 6: choose one of 4, 8, 16", few.run, tmp_path / "few")
    shared = changed(grid, evaluation=str(place / "train.jsonl"))
    refuses(r"6 prompts of .* must not be trained on", shared.run, tmp_path / "shared")
    greedy = changed(grid, evaluation=None, held_out=6)
    refuses("some must be left", greedy.run, tmp_path / "held")
    assert not any((tmp_path / name).exists() for name in ("few", "shared", "held"))


def test_held_out_prompts_are_the_last(grid):
    train, held = changed(grid, evaluation=None, held_out=2).plan()[0].tasks()
    assert [prompt.text for prompt in held.prompts] == ["5+5=", "6+6="]
    assert [prompt.text for prompt in train.prompts] == ["1+1=", "2+2=", "3+3=", "4+4="]


def test_held_out_texts_are_not_trained_on(grid, place, tmp_path):
    """A small model's task draws questions with repetition; the repeated ones are left out."""
    own = {"model": "embedded:base", "task": "embedded:base", "verifier": None}
    held_out = changed(grid, **own, evaluation=None, held_out=200, max_new_tokens=None)
    run = held_out.plan()[0]
    train, held = run.tasks()
    texts = {prompt.text for prompt in held.prompts}
    assert len(held.prompts) == 200
    assert not texts & {prompt.text for prompt in train.prompts}
    whole = load_task("embedded:base").prompts
    dropped = sum(prompt.text in texts for prompt in whole[:300])
    assert dropped > 0
    assert len(train.prompts) == 300 - dropped
    told, _ = dry_run([run])
    assert told[0] == f"{300 - dropped} prompts, 200 held out, {dropped} of their texts left out"
    (tmp_path / "same.jsonl").write_text(2 * '{"prompt": "1+1="}\n')
    same = replace(
        run, task=str(tmp_path / "same.jsonl"), held_out=1, verifier=grid.base["verifier"]
    )
    refuses("all other prompts", same.tasks)


def test_an_interrupted_run_continues_as_if_it_had_not_been(grid, tmp_path, monkeypatch):
    """With checkpoints: the same records as without the interruption; without: from the start."""
    monkeypatch.setattr(sweep, "_BEAT", 0.0)
    beats, write = [], sweep.write_status
    monkeypatch.setattr(sweep, "write_status", lambda *all: beats.append(all[1]) or write(*all))
    run = changed(grid, save_every=2).plan()[0]
    whole = made(run, tmp_path / "whole")
    # At the beginning, after each of four steps, where training ends, and as finished.
    times = [status["seconds"] for status in beats]
    assert [status["status"] for status in beats] == ["running"] * 6 + ["finished"]
    assert times == sorted(times)
    assert times[1] > times[0] == 0

    # Evaluation before training 3 calls, two steps of 4 groups, evaluation 3, one group of step 3.
    def interrupted(run):
        monkeypatch.setenv("DIGIT_FIRST_CALLS", "15")
        with pytest.raises(SystemExit):
            made(run, tmp_path / "cut")
        monkeypatch.delenv("DIGIT_FIRST_CALLS")

    interrupted(run)
    cut = tmp_path / "cut" / run.key
    assert (cut / "checkpoints" / "checkpoint-2").is_dir()
    incomplete = results(tmp_path / "cut")
    assert set(incomplete["status"]) == {"incomplete"}
    assert incomplete["step"].tolist() == [0, 2]
    status = status_of(cut)
    assert 0 < status["seconds"] < 600
    # As if the first attempt had taken long.
    (cut / "status.json").write_text(json.dumps(status | {"seconds": 1000.0}))
    made(run, tmp_path / "cut")
    status = status_of(cut)
    assert (status["status"], status["continued_from"], status["attempts"]) == ("finished", 2, 2)
    assert 1000 < status["seconds"] < 1600
    assert without_times(cut) == without_times(whole)
    assert [record["step"] for record in without_times(cut)[0]] == [0, 2, 4]
    assert not (cut / "checkpoints").exists()

    again = replace(run, save_every=0)
    interrupted(again)
    folder = made(again, tmp_path / "cut")
    assert status_of(folder)["continued_from"] is None
    assert without_times(folder) == without_times(whole)


def test_a_small_sweep_from_end_to_end(grid, tmp_path):
    """One run made here, the other in a process of its own; then nothing is left to do."""
    said = []
    made(grid.plan()[0], tmp_path)
    outcomes = grid.run(tmp_path, workers=2, say=said.append)
    assert [outcome.status for outcome in outcomes] == ["skipped", "finished"], said
    assert len(said) == 2
    assert [outcome.status for outcome in grid.run(tmp_path)] == ["skipped", "skipped"]
    frame = results(tmp_path)
    assert frame[["G", "step"]].values.tolist() == [[2, 0], [2, 2], [2, 4], [4, 0], [4, 2], [4, 4]]
    assert frame["final"].tolist() == [False, False, True] * 2
    assert set(frame["status"]) == {"finished"}
    assert set(frame["n"]) == {3}
    assert (frame["step_factor"] == 1).all()
    assert frame["accuracy"].between(0, 1).all()
    # Runs of one seed begin with the same model and the same draws.
    assert frame["accuracy"][0] == frame["accuracy"][3]
    trained = frame[frame["step"] > 0]
    assert trained["zero_signal"].between(0, 1).all()
    assert (trained["seconds"] > 0).all()
    drawn = figure5(frame)
    assert drawn[["step", "G"]].values.tolist() == [[2, 2], [2, 4], [4, 2], [4, 4]]
    assert drawn.groupby("step")["best"].any().all()
    final = table2(frame)
    assert final[["trainer", "runs"]].values.tolist() == [["rloo", 1], ["rloo", 1]]


def test_a_failed_run_is_told_and_the_others_go_on(grid, tmp_path, monkeypatch):
    """The first process fails, the second ends well; a second call makes the first alone."""
    read = sweep.inputs(grid.plan()[0], *grid.plan()[0].tasks())
    script = (
        "import sys, json, pathlib\n"
        "folder = pathlib.Path(sys.argv[1]).parent\n"
        "run = json.loads((folder / 'run.json').read_text())\n"
        "if run['group_size'] == 2 and not (folder / 'mended').exists():\n"
        "    print('\\n'.join(f'line {i}' for i in range(100)))\n"
        "    raise RuntimeError('no such luck')\n"
        f"status = {{'status': 'finished', 'seconds': 1, 'inputs': {read}}}\n"
        "(folder / 'status.json').write_text(json.dumps(status))\n"
    )
    runs_are(monkeypatch, script)
    said = []
    outcomes = grid.run(tmp_path, say=said.append)
    assert [outcome.status for outcome in outcomes] == ["failed", "finished"]
    message = outcomes[0].message
    for told in ("exit code 1", "no such luck", "line 99"):
        assert told in message
    assert "line 20" not in message
    assert message in said
    frame = results(tmp_path)
    assert frame.set_index("G")["status"].to_dict() == {2: "failed", 4: "finished"}
    assert "no such luck" in frame.set_index("G")["message"][2]
    assert frame["accuracy"].isna().all()
    (tmp_path / grid.plan()[0].key / "mended").touch()
    assert [o.status for o in grid.run(tmp_path)] == ["finished", "skipped"]


@pytest.fixture
def changing(grid, place, tmp_path):
    """The sweep with a model, prompts and a verifier of its own, that a test may change."""
    shutil.copytree(place, tmp_path, dirs_exist_ok=True)
    own = {"model": str(tmp_path / "model"), "task": str(tmp_path / "train.jsonl")}
    verifier = f"{tmp_path / 'first_digit_verifier.py'}:digit_first"
    return changed(grid, **own, verifier=verifier, group_size=(2,))


CHANGES = {
    "weights": ("model/model.safetensors", lambda old: old[:-1] + bytes([old[-1] ^ 1])),
    # A column, such as a right answer; the texts stay.
    "prompts": ("train.jsonl", lambda old: old.replace(b'"1+1="', b'"1+1=", "answer": "3"')),
    "verifier": ("first_digit_verifier.py", lambda old: old.replace(b"float(", b"0.5 * float(")),
}


def change(what, folder):
    """Change one of the folder's files."""
    name, changed = CHANGES[what]
    (folder / name).write_bytes(changed((folder / name).read_bytes()))


@pytest.mark.parametrize("what", [*CHANGES, "record"])
def test_a_finished_run_of_other_inputs_is_neither_skipped_nor_lost(what, changing, tmp_path):
    run = changing.plan()[0]
    read = sweep.inputs(run, *run.tasks())
    finished = {"status": "finished", "seconds": 1, "inputs": read}
    status = folder_of(run, tmp_path / "out", finished) / "status.json"
    assert [outcome.status for outcome in changing.run(tmp_path / "out")] == ["skipped"]
    if what == "record":
        # As it was written before there were digests.
        status.write_text('{"status": "finished", "seconds": 1}')
    else:
        change(what, tmp_path)
    before = status.read_text()
    wanted = "weights, .*prompts, .*verifier, " if what == "record" else f"other {what}, or none"
    error = str(refuses(wanted, changing.run, tmp_path / "out"))
    assert run.key in error
    others = [name for name in CHANGES if what not in (name, "record")]
    assert not any(f"other {name}" in error for name in others)
    assert status.read_text() == before


def checkpointed(folder):
    """The file by which a run's folder has a checkpoint."""
    state = folder / "checkpoints" / "checkpoint-2" / "trainer_state.json"
    state.parent.mkdir(parents=True)
    state.touch()
    return state


@contextlib.contextmanager
def held(folder):
    """Another process is making the run meanwhile."""
    with FileLock(folder / "lock"):
        yield


@pytest.mark.parametrize("what", CHANGES)
def test_an_unfinished_run_of_other_inputs_begins_anew(what, changing, tmp_path, monkeypatch):
    """Its checkpoint is of another model or reward, and is not continued."""
    run = changing.plan()[0]
    running = {"status": "running", "inputs": sweep.inputs(run, *run.tasks())}
    folder = folder_of(run, tmp_path / "out", running)
    checkpoint = checkpointed(folder)
    runs_are(monkeypatch, "")
    said = []
    # A process that claims nothing has failed.
    (outcome,) = changing.run(tmp_path / "out", say=said.append)
    assert outcome.status == "failed"
    assert checkpoint.exists()
    assert "anew" not in " ".join(said)
    change(what, tmp_path)
    with held(folder):
        changing.run(tmp_path / "out", say=said.append)
    assert checkpoint.exists()
    folder_of(run, tmp_path / "out", running)
    changing.run(tmp_path / "out", say=said.append)
    assert f"begun anew, other {what} than before" in " ".join(said)
    assert not checkpoint.exists()


def test_a_process_does_not_continue_a_run_of_other_inputs(changing, tmp_path):
    """By hand too; of several processes none may clear what the others read."""
    run = changing.plan()[0]
    status = {"status": "running", "seconds": 5.0, "attempts": 3, "inputs": {"weights": "old"}}
    (tmp_path / "status.json").write_text(json.dumps(status))
    two = replace(run, processes=2)
    (tmp_path / "run.json").write_text(two.text())
    refuses("begun with other weights, prompts, verifier", sweep.make, tmp_path / "run.json")
    assert status_of(tmp_path) == status
    checkpointed(tmp_path)
    (tmp_path / "run.json").write_text(replace(run, steps=1).text())
    sweep.make(tmp_path / "run.json")
    found = status_of(tmp_path)
    assert (found["continued_from"], found["attempts"], found["dropped_prompts"]) == (None, 1, 0)
    assert found["inputs"] == sweep.inputs(run, *run.tasks())


def test_digests_of_what_ships_and_what_has_no_file(grid):
    run = grid.plan()[0]
    task, held = run.tasks()

    def weights(model):
        return sweep.inputs(replace(run, model=model), task, held)["weights"]

    assert weights("embedded:base") != weights("embedded:strong") == weights("embedded:in-context")
    assert weights("nobody/no-such-model") == "not here"


@pytest.fixture
def hears_interruptions():
    """Interruptions reach this process, whatever the tests' own shell ignores."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("hears_interruptions")
def test_an_interruption_ends_what_runs(grid, tmp_path, monkeypatch):
    """The processes are ended, and the runs are not taken for failed."""
    script = (
        "import os, pathlib, signal, sys, time\n"
        "pid = pathlib.Path(sys.argv[1]).with_name('pid')\n"
        "pid.write_text(str(os.getpid()))\n"
        "os.kill(os.getppid(), signal.SIGINT)\n"
        "time.sleep(600)\n"
        "pid.write_text('it was waited for')\n"
    )
    runs_are(monkeypatch, script)
    with pytest.raises(KeyboardInterrupt):
        grid.run(tmp_path)
    pid = tmp_path / grid.plan()[0].key / "pid"
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)
    assert set(results(tmp_path)["status"]) == {"incomplete"}
    assert not (tmp_path / grid.plan()[1].key).exists()


def test_two_processes_do_not_make_one_run(grid, tmp_path, capsys):
    folder = folder_of(grid.plan()[0], tmp_path)
    with held(folder):
        assert sweep.main([str(folder / "run.json")]) == 75
    assert "another process" in capsys.readouterr().err
    assert not (folder / "status.json").exists()


def test_the_command_of_one_run(grid, capsys, tmp_path):
    run = grid.plan()[0]
    assert run.command(tmp_path / "run.json")[1:3] == ["-m", "ustat_pg.llm.sweep"]
    two = replace(run, processes=2, launch=("--main_process_port", "29511"))
    command = two.command(tmp_path / "run.json")
    assert command[1:3] == ["-m", "torch.distributed.run"]
    assert command[command.index("--nproc-per-node") + 1] == "2"
    command = replace(two, device="cuda").command(tmp_path / "run.json")
    assert command[1:3] == ["-m", "accelerate.commands.launch"]
    assert command[command.index("--num_processes") + 1] == "2"
    assert {"--multi_gpu", "--main_process_port"} <= set(command)
    for launch in (("--config_file", "zero2.yaml"), ("--use_deepspeed", "--zero_stage", "2")):
        own = replace(two, device="cuda", launch=launch).command(tmp_path / "run.json")
        assert "--multi_gpu" not in own
        assert launch[0] in own
    assert sweep.main([]) == 2
    assert "usage" in capsys.readouterr().err
    assert sweep.main([str(tmp_path / "none.json")]) == 2
    assert "not the configuration" in capsys.readouterr().err


def test_results_of_several_seeds(grid, tmp_path):
    """Means, t intervals and the best group size, on written records."""
    accuracies = {2: (0.58, 0.62), 4: (0.8, 0.9)}
    for run in changed(grid, seed=(0, 1)).plan():
        # The torn line is what a run that was killed leaves.
        found = {4: accuracies[run.group_size][run.seed]}
        recorded(run, tmp_path, found, torn='{"step": 9, "acc')
    drawn = figure5(results(tmp_path)).set_index("G")
    assert drawn["accuracy"].to_dict() == pytest.approx({2: 0.6, 4: 0.85})
    assert drawn["best"].to_dict() == {2: False, 4: True}
    # t(0.975, 1) = 12.706; the standard error of (.58, .62) is .02.
    assert drawn["high"][2] - 0.6 == pytest.approx(0.25412, abs=1e-4)
    assert table2(results(tmp_path)).iloc[0]["runs"] == 2
    refuses("holds no runs", results, tmp_path / "nothing")


def test_differences_are_of_pairs(grid, tmp_path, capsys):
    """What seeds share goes out: accuracies differ by far more between them than between groups."""
    level, gains = (0.2, 0.5, 0.9), (0.05, 0.06, 0.04)
    for run in changed(grid, seed=(0, 1, 2)).plan():
        gain = gains[run.seed] if run.group_size == 4 else 0.0
        recorded(run, tmp_path, {4: level[run.seed] + gain})
    frame = results(tmp_path)
    (row,) = differences(frame).to_dict("records")
    assert (row["G"], row["best_G"], row["runs"]) == (2, 4, 3)
    # t(0.975, 2) = 4.3027, and the standard error of the three is 0.01/√3.
    half = 4.3027 * 0.01 / math.sqrt(3)
    assert [row["low"], row["high"]] == pytest.approx([-0.05 - half, -0.05 + half], abs=1e-5)
    assert table2(frame)["high"].max() - table2(frame)["low"].min() > 0.9
    (alone,) = differences(frame[frame["seed"] == 0]).to_dict("records")
    assert alone["difference"] == pytest.approx(-0.05)
    assert math.isnan(alone["low"])
    assert main(["llm", "sweep", "--results", "--out", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert re.search(r"rloo +8 +2 +3 +53\.3% +-5\.0% \[-7\.5%, -2\.5%\]", said)
    assert re.search(r"rloo +8 +4 +3 +58\.3% +the best", said)
    assert "the paper's" not in said
    for name in ("results.csv", "table2.csv", "figure5.csv", "differences.csv", "figure5.svg"):
        assert name in said
        assert (tmp_path / name).stat().st_size > 0
    assert "step 4" in (tmp_path / "figure5.svg").read_text()


def test_other_settings_are_not_other_seeds(grid, tmp_path):
    """Two learning rates, two lengths of training and two digests in one folder are refused."""
    for run in changed(grid, seed=(0, 1)).plan():
        recorded(run, tmp_path, {2: 0.5, 4: 0.6}, read={"weights": "a"})
    assert results(tmp_path)["settings"].nunique() == 1
    assert table2(results(tmp_path)).iloc[0]["runs"] == 2
    for run in changed(grid, seed=(2,), learning_rate=0.1, threads=2).plan():
        recorded(run, tmp_path, {2: 0.1, 4: 0.2}, read={"weights": "a"})
    for run in changed(grid, seed=(3,)).plan():
        recorded(run, tmp_path, {2: 0.1, 4: 0.2}, read={"weights": "b"})
    frame = results(tmp_path)
    assert frame["settings"].nunique() == 3
    assert set(frame["threads"]) == {"1", "2"}
    for table in (table2, figure5):
        error = str(refuses("3 settings", table, frame))
        assert all(told in error for told in ("learning_rate (", "0.1", "threads (", "weights ("))
        assert "optimizer" not in error
        for value, part in frame.groupby("settings"):
            assert value in error
            assert table(part)["runs"].max() == part["seed"].nunique()
    refuses(r"learning_rate 0\.1, not 0\.3; threads 2, not 1", grid.run, tmp_path)


def test_intervals_stay_where_rewards_are(grid, tmp_path):
    """Between 0 and 1, and between -1 and 1 for rewards of these."""
    for run in changed(grid, group_size=(2,), seed=(0, 1)).plan():
        recorded(run, tmp_path / "one", {4: 0.9 + 0.1 * run.seed})
        recorded(run, tmp_path / "signed", {4: -0.5 * run.seed}, rewards_seen=[-1.0, 1.0])
    one = figure5(results(tmp_path / "one")).iloc[0]
    assert (one["low"], one["high"]) == (pytest.approx(0.95 - 12.7062 * 0.05), 1)
    signed = figure5(results(tmp_path / "signed")).iloc[0]
    assert (signed["low"], signed["high"]) == (-1, 1)


def test_the_range_follows_the_rewards(grid, tmp_path):
    """Of rewards -1 and 0, and the share of groups whose rewards are equal."""
    (tmp_path / "signed.py").write_text(
        "def digit(completions, **columns):\n"
        "    return [float(text[:1].isdigit()) - 1 for text in completions]\n"
    )
    run = changed(grid, verifier=f"{tmp_path / 'signed.py'}:digit", learning_rate=1e-6).plan()[0]
    folder = made(run, tmp_path)
    _, records = without_times(folder)
    assert records[-1]["rewards_seen"] == [-1, 0]
    assert all(0 <= record["frac_reward_zero_std"] <= 1 for record in records)
    frame = results(tmp_path)
    assert (frame["least"].unique(), frame["most"].unique()) == ([-1], [0])


MATH = {"model": "copies/Qwen2.5-Math-7B", "task": "math:source=x", "evaluation": "math"}
SMALL = {"model": "embedded:base", "task": "embedded:base", "evaluation": None}


@pytest.mark.parametrize("own", [MATH, MATH | {"evaluation": "gsm8k"}, SMALL])
def test_the_papers_numbers_stand_beside_its_model_and_task_alone(own):
    common = {"K": 1024, "step": 800, "seed": 0, "final": True, "status": "finished"}
    common |= {"settings": "all", "least": 0.0, "most": 1.0, "accuracy": 0.5, "trainer": "rloo"}
    runs = pd.DataFrame([common | own | {"G": size} for size in (2, 4)])
    found = table2(runs)
    assert len(found) == 2
    assert found["paper"].dropna().tolist() == ([0.7677] if own is MATH else [])
    qwen = {"model": "Qwen/Qwen2.5-1.5B-Instruct", "task": "gsm8k", "evaluation": "gsm8k"}
    assert table2(runs.assign(**qwen))["paper"].isna().all()


def test_the_papers_table():
    table = table_2()
    assert len(table) == 18
    best = table.loc[table.groupby("budget")["accuracy"].idxmax()]
    assert best["group_size"].tolist() == [64, 64, 128]
    # What table2.yaml says of the test set: multiples of 1/5000 apart.
    apart = (table["accuracy"] - table["accuracy"][0]) * 5000
    np.testing.assert_allclose(apart, apart.round(), atol=1e-6)


@pytest.fixture(scope="module")
def copies(tmp_path_factory):
    """Local copies of the paper's data sets, in the hub's form."""
    folder = tmp_path_factory.mktemp("copies")
    rows = {
        "gsm8k": lambda i: {"question": f"What is {i} + {i}?", "answer": f"Add.\n#### {2 * i}"},
        "math": lambda i: {"problem": f"Find ${i}x$.", "solution": rf"It is $\boxed{{{i}x}}$."},
    }
    for name, row in rows.items():
        (folder / name).mkdir()
        for split, numbers in (("train", range(1030)), ("test", range(1030, 1040))):
            lines = "".join(json.dumps(row(number)) + "\n" for number in numbers)
            (folder / name / f"{split}.jsonl").write_text(lines)
    return folder


@pytest.mark.parametrize(
    ("which", "preset", "count", "step"),
    [
        ("gsm8k", "figure5", 30, "1000 steps of 256 prompts x 4, 4 process(es)"),
        ("math", "table2", 18, "1000 steps of 1024 prompts x 4, 8 process(es)"),
    ],
)
def test_dry_run_of_the_papers_runs(which, preset, count, step, copies, monkeypatch, tmp_path):
    """Every run with its step; TRL has nothing against any, nor have prompts in the hub's form."""
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    train, test = (f"{which}:source={copies / which},split={name}" for name in ("train", "test"))
    own = {"task": train, "evaluation": test}
    told, problems = dry_run(Sweep.read(PRESETS / f"{preset}.yaml", own).plan())
    assert problems == []
    assert told[0] == "1,030 prompts, 10 held out"
    assert len(told) == 1 + count
    assert any(step in line for line in told)
    assert all(line.endswith("another direction than the theory's step") for line in told[1:])


def test_dry_run_says_what_is_in_the_way(grid):
    """Prompts that are too few, and TRL's own words, each once."""
    told, problems = dry_run(changed(grid, seed=(0, 1)).plan())
    assert problems == []
    assert len(told) == 5
    assert told[1].endswith("; 1 of the theory's step")
    wide = changed(grid, group_size=(2,), budget=(16,), seed=(0, 1), options={"no_such": 1})
    told, problems = dry_run(wide.plan())
    assert len(problems) == 2
    assert "needs 8 prompts" in problems[0]
    assert "no_such" in problems[1]
    factor, _ = dry_run(changed(grid, trainer=("dr-grpo",)).plan()[:1])
    assert f"{1 / (2 * 3):.6g} of the theory's step" in factor[1]
