"""Sweeps: what is planned, made, continued, reported; and what a dry run foresees."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import shutil
import signal
import sys
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from tests.support.models import character_tokenizer, save_tiny
from tests.support.refusals import refuses

torch = pytest.importorskip("torch")
pytest.importorskip("trl")

from transformers import Qwen2Config, Qwen2ForCausalLM  # noqa: E402

from ustat_pg.llm import paper_runs, sweep  # noqa: E402
from ustat_pg.llm.models import load_model  # noqa: E402
from ustat_pg.llm.sweep import (  # noqa: E402
    Run,
    Sweep,
    accuracy,
    dry_run,
    expected_memory,
    figure5,
    results,
    table2,
)
from ustat_pg.llm.tasks import INSTRUCTION  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:.*gradient_checkpointing.*:FutureWarning")

VERIFIER = '''
import os

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
    return Sweep(
        str(place / "model"), str(place / "train.jsonl"), evaluation=str(place / "test.jsonl"),
        verifier="first_digit_verifier:digit_first", group_sizes=(2, 4), budgets=(8,), steps=4,
        learning_rate=0.3, checkpoints=(2, 200), samples=5, max_new_tokens=3, micro_batch=4,
    )  # fmt: skip


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
    plan = replace(grid, seeds=(0, 3), trainers=("rloo", "vanilla")).plan()
    points = [(run.trainer, run.budget, run.group_size, run.seed) for run in plan]
    assert points[:4] == [("rloo", 8, size, seed) for size in (2, 4) for seed in (0, 3)]
    assert len({run.key for run in plan}) == len(plan) == 8
    assert plan[0].evaluated_at() == (0, 2, 4)
    assert all(run.budget == run.group_size * run.training(3).prompts for run in plan)


def test_a_run_is_read_back(grid, tmp_path):
    run = replace(grid, options={"epsilon": 0.1}, launch=("--main_process_port", "0")).plan()[0]
    (tmp_path / "run.json").write_text(run.text())
    again = Run.read(tmp_path / "run.json")
    assert again == run
    assert again.key == run.key != grid.plan()[0].key
    (tmp_path / "run.json").write_text("{}")
    refuses("not the configuration of a run", Run.read, tmp_path / "run.json")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"group_sizes": (4, 3)}, "group size 3 does not divide .* choose one of 2, 4, 8"),
        ({"group_sizes": ()}, "at least one"),
        ({"seeds": (1, 1)}, "none twice"),
        ({"trainers": ("ppo",)}, "choose one of"),
        ({"trainers": ("rloo", "loo-table:0.2,0.6")}, "2 values: a group of 4 needs as many"),
        ({"held_out": 3}, "one of the two"),
        ({"evaluation": None}, "one of the two"),
        ({"samples": 0}, "samples is 0"),
        ({"checkpoints": (-1,)}, "step is -1"),
    ],
)
def test_a_plan_refuses(grid, changes, message):
    refuses(message, replace(grid, **changes).plan)


def test_nothing_runs_where_prompts_are_too_few_or_shared(grid, place, tmp_path):
    few = replace(grid, group_sizes=(2,), budgets=(16,))
    refuses(r"needs 8 prompts .* there are 6: choose one of 4, 8, 16", few.run, tmp_path / "few")
    shared = replace(grid, evaluation=str(place / "train.jsonl"))
    refuses(r"6 prompts of .* must not be trained on", shared.run, tmp_path / "shared")
    greedy = replace(grid, evaluation=None, held_out=6)
    refuses("some must be left", greedy.run, tmp_path / "held")
    assert not any((tmp_path / name).exists() for name in ("few", "shared", "held"))


def test_held_out_prompts_are_the_last(grid):
    train, held = replace(grid, evaluation=None, held_out=2).plan()[0].tasks()
    assert [prompt.text for prompt in held.prompts] == ["5+5=", "6+6="]
    assert [prompt.text for prompt in train.prompts] == ["1+1=", "2+2=", "3+3=", "4+4="]


def test_held_out_texts_are_not_trained_on(grid, place, tmp_path):
    """A small model's task draws questions with repetition; the repeated ones are left out."""
    own = {"model": "embedded:base", "task": "embedded:base", "verifier": None}
    held_out = replace(grid, **own, evaluation=None, held_out=200, max_new_tokens=None)
    run = held_out.plan()[0]
    train, held = run.tasks()
    texts = {prompt.text for prompt in held.prompts}
    assert len(held.prompts) == 200
    assert not texts & {prompt.text for prompt in train.prompts}
    whole = sweep.load_task("embedded:base").prompts
    dropped = sum(prompt.text in texts for prompt in whole[:300])
    assert dropped > 0
    assert len(train.prompts) == 300 - dropped
    found = dry_run(run)
    assert found.prompts == (300 - dropped, 200, dropped)
    assert f"{dropped} of their texts left out" in str(found)
    (tmp_path / "same.jsonl").write_text(2 * '{"prompt": "1+1="}\n')
    same = replace(run, task=str(tmp_path / "same.jsonl"), held_out=1, verifier=grid.verifier)
    refuses("all other prompts", same.tasks)


def test_an_interrupted_run_continues_as_if_it_had_not_been(grid, tmp_path, monkeypatch):
    """With checkpoints: the same records as without the interruption; without: from the start."""
    monkeypatch.setattr(sweep, "_BEAT", 0.0)
    beats, write = [], sweep._write_status
    monkeypatch.setattr(sweep, "_write_status", lambda *all: beats.append(all[1]) or write(*all))
    run = replace(grid, save_every=2).plan()[0]
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
    assert final["paper"].notna().sum() == 18
    assert final[final["trainer"] == "rloo"]["runs"].tolist() == [1, 1]


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
    return replace(grid, **own, verifier=verifier, group_sizes=(2,))


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
    fcntl = pytest.importorskip("fcntl")
    with (folder / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
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
    assert sweep._source(len) == "builtins.len"
    for verifier in (task.verifier, partial(task.verifier, extra=1)):
        assert sweep._source(verifier) == VERIFIER


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


def test_accuracy_is_the_mean_reward(grid, place):
    """Against the model's own probabilities: sampled, the share of digits; greedy, the best token."""
    _, held = grid.plan()[0].tasks()
    tiny = load_model(str(place / "model"))
    digits = [tiny.tokenizer(str(digit))["input_ids"][0] for digit in range(10)]
    exact, best = [], []
    for prompt in held.prompts:
        ids = torch.tensor([tiny.tokenizer(prompt.text)["input_ids"]])
        with torch.no_grad():
            law = torch.softmax(tiny.model(ids).logits[0, -1].double(), dim=0)
        exact.append(float(law[digits].sum()))
        best.append(float(int(law.argmax()) in digits))
    tiny.model.train()
    state = torch.random.get_rng_state()
    found = accuracy(tiny, held, samples=400, batch=600)
    assert torch.equal(state, torch.random.get_rng_state())
    assert tiny.model.training
    error = math.sqrt(np.mean([p * (1 - p) for p in exact]) / (400 * len(exact)))
    assert found.accuracy == pytest.approx(np.mean(exact), abs=4 * error)
    assert found.prompts == 3
    assert accuracy(tiny, held, samples=400, batch=100).accuracy == found.accuracy
    assert accuracy(tiny, held, samples=400, seed=1).accuracy != found.accuracy
    assert accuracy(tiny, held, greedy=True, batch=2).accuracy == np.mean(best)


def test_accuracy_counts_a_verifier_that_raises(grid, place):
    _, held = grid.plan()[0].tasks()
    tiny = load_model(str(place / "model"))

    def picky(prompts, completions, **columns):
        if prompts[0] == "8+8=":
            raise ValueError("eight")
        return [1.0] * len(completions)

    found = accuracy(tiny, replace(held, verifier=picky))
    assert (found.accuracy, found.prompts) == (1, 2)
    assert "eight" in found.failures[0]


def test_results_of_several_seeds(grid, tmp_path):
    """Means, t intervals and the best group size, on written records."""
    accuracies = {2: (0.58, 0.62), 4: (0.8, 0.9)}
    for run in replace(grid, seeds=(0, 1)).plan():
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


def test_other_settings_are_not_other_seeds(grid, tmp_path):
    """Two learning rates, two lengths of training and two digests in one folder are refused."""
    for run in replace(grid, seeds=(0, 1)).plan():
        recorded(run, tmp_path, {2: 0.5, 4: 0.6}, read={"weights": "a"})
    assert results(tmp_path)["settings"].nunique() == 1
    assert table2(results(tmp_path)).iloc[0]["runs"] == 2
    for run in replace(grid, seeds=(2,), learning_rate=0.1, threads=2).plan():
        recorded(run, tmp_path, {2: 0.1, 4: 0.2}, read={"weights": "a"})
    for run in replace(grid, seeds=(3,)).plan():
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
    for run in replace(grid, group_sizes=(2,), seeds=(0, 1)).plan():
        recorded(run, tmp_path / "one", {4: 0.9 + 0.1 * run.seed})
        recorded(run, tmp_path / "signed", {4: -0.5 * run.seed}, rewards_seen=[-1.0, 1.0])
    one = figure5(results(tmp_path / "one")).iloc[0]
    assert (one["low"], one["high"]) == (pytest.approx(0.95 - 12.7062 * 0.05), 1)
    signed = figure5(results(tmp_path / "signed")).iloc[0]
    assert (signed["low"], signed["high"]) == (-1, 1)


def test_shares_solved_follow_the_rewards(grid, tmp_path, monkeypatch):
    """Of rewards -1 and 0 a group of zeros is solved, and a mixed one is not unsolved."""
    (tmp_path / "signed.py").write_text(
        "def digit(completions, **columns):\n"
        "    return [float(text[:1].isdigit()) - 1 for text in completions]\n"
    )
    run = replace(grid, verifier=f"{tmp_path / 'signed.py'}:digit", learning_rate=1e-6).plan()[0]
    folder = made(run, tmp_path)
    _, records = without_times(folder)
    assert records[-1]["rewards_seen"] == [-1, 0]
    known = [record for record in records if record["rewards_seen"] == [-1, 0]]
    for record in known:
        solved = record["signal/solved_never"], record["signal/solved_always"]
        assert sum(solved) == pytest.approx(record["signal/zero_share"])
    assert any(record["signal/solved_always"] for record in known)
    assert any(record["signal/solved_never"] < 1 for record in known)
    frame = results(tmp_path)
    assert (frame["least"].unique(), frame["most"].unique()) == ([-1], [0])


def test_the_papers_table():
    table = paper_runs.table_2()
    assert len(table) == 18
    best = table.loc[table.groupby("budget")["accuracy"].idxmax()]
    assert best["group_size"].tolist() == [64, 64, 128]
    # What NOT_STATED says of the test set: multiples of 1/5000 apart.
    apart = (table["accuracy"] - table["accuracy"][0]) * 5000
    np.testing.assert_allclose(apart, apart.round(), atol=1e-6)


SMALLER, LARGER = "Qwen/Qwen2.5-1.5B-Instruct", "Qwen/Qwen2.5-Math-7B"
PARAMETERS = {SMALLER: 1_543_714_304, LARGER: 7_615_616_512}


@pytest.fixture(scope="module")
def copies(tmp_path_factory):
    """Local copies of the paper's data sets and models, in the hub's form; models without weights."""
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
    for name in PARAMETERS:
        Qwen2Config(**paper_runs.SHAPES[name]).save_pretrained(folder / name)
        character_tokenizer().save_pretrained(folder / name)
    return folder


@pytest.mark.parametrize(
    ("which", "preset", "runs", "prompts", "question", "shards", "used"),
    [
        ("gsm8k", paper_runs.gsm8k_sweep, 30, 256, "What is 1029 + 1029?", 1, 0.7),
        ("math", paper_runs.math_sweep, 18, 1024, "Find $1029x$.", 8, 0.8),
    ],
)
def test_dry_run_of_the_papers_runs(
    which, preset, runs, prompts, question, shards, used, copies, monkeypatch, tmp_path
):
    """Configuration, tokenizer and data as the loaders read them; parameter counts as published."""
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    paper = preset().model
    train, test = (f"{which}:source={copies / which},split={name}" for name in ("train", "test"))
    plan = preset(model=str(copies / paper), task=train, evaluation=test).plan()
    widest = max(plan, key=lambda run: run.budget // run.group_size)
    assert (len(plan), widest.budget // widest.group_size) == (runs, prompts)
    found = dry_run(widest)
    assert found.notes == ()
    # What this machine lacks, and nothing else.
    assert all("GPU(s)" in problem or "vLLM" in problem for problem in found.problems)
    assert found.prompts == (1030, 10, 0)
    assert found.parameters == PARAMETERS[paper]
    # A character is a token; the longest question is one of the test's.
    assert found.prompt_tokens == len(f"u>{question}\n{INSTRUCTION}\na>")
    text = str(found)
    for wanted in (f"{found.parameters:,}", "1,030 prompts, 10 held out", "GB", "vLLM's share"):
        assert wanted in text
    last = found.memory
    fixed = (last.parameters, last.gradients, last.optimizer, last.casts)
    each = (4, 4 / shards, 8 / shards, 2)
    assert fixed == pytest.approx([size * found.parameters for size in each], abs=16)
    assert last.device == pytest.approx(last.peak / used, abs=1)


def test_dry_run_without_the_hub(grid, monkeypatch):
    """What cannot be had is a problem of the report; the paper's shapes are known."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    own = {"task": grid.task, "evaluation": grid.evaluation, "verifier": grid.verifier}
    found = dry_run(paper_runs.gsm8k_sweep(**own).plan()[0])
    assert found.parameters == PARAMETERS[SMALLER]
    for wanted in ("known shape is taken", "tokenizer of .* cannot be had", "choose one of"):
        # Six prompts cannot make up a step of 256.
        assert any(re.search(wanted, problem) for problem in found.problems)


def test_dry_run_of_a_local_model(grid, place, monkeypatch):
    run = grid.plan()[0]
    found = dry_run(run)
    assert found.problems == ()
    assert found.prompts == (6, 3, 0)
    assert found.prompt_tokens == 4
    model = load_model(str(place / "model")).model
    assert found.parameters == sum(p.numel() for p in model.parameters())
    assert f"{found.parameters:,}" in str(found)
    assert "assumed" not in str(found)
    long = dry_run(replace(run, max_new_tokens=300))
    assert any("context of 256" in problem for problem in long.problems)
    factor = str(dry_run(replace(run, trainer="dr-grpo")))
    assert f"{1 / (2 * 3):.6g}" in factor
    refuses("no_such", dry_run, replace(run, options={"no_such": 1}))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    refuses("cannot be had", dry_run, replace(run, model="nobody/no-such-model"))


def measured_activations(model, run, length):
    """Bytes that autograd keeps of one micro-batch's forward pass, parameters not counted."""
    kept = {}
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = (storage.nbytes(), tensor)
        return tensor

    ids = torch.randint(2, 100, (run.micro_batch, length))
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = model.model(input_ids=ids, use_cache=False).last_hidden_state.sum()
    assert loss.requires_grad
    return sum(size for size, _ in kept.values())


@pytest.mark.parametrize("heads", [(4, 4), (8, 2)])
def test_expected_activations_are_those_that_autograd_keeps(heads, grid):
    """Within a tenth, on a model whose layers outweigh the rest."""
    shape = {"num_attention_heads": heads[0], "num_key_value_heads": heads[1], "hidden_size": 64}
    config = Qwen2Config(**shape, vocab_size=128, intermediate_size=192, num_hidden_layers=4)
    model = Qwen2ForCausalLM(config)
    run = grid.plan()[0]
    count = sum(p.numel() for p in model.parameters())
    expected = expected_memory(run, config, count, prompt_tokens=32, max_new_tokens=32)
    assert 0.9 < measured_activations(model, run, 64) / expected.activations < 1.1


def test_memory_by_its_parts(grid):
    config, count = Qwen2Config(**paper_runs.SHAPES[SMALLER]), PARAMETERS[SMALLER]
    run = replace(grid.plan()[0], budget=1024, group_size=8)

    def memory(**changes):
        tokens = {"prompt_tokens": 512, "max_new_tokens": 512}
        return expected_memory(replace(run, **changes), config, count, **tokens)

    plain = memory()
    assert (plain.parameters, plain.gradients, plain.optimizer) == (4 * count, 4 * count, 0)
    assert memory(dtype="bfloat16").parameters == 2 * count
    assert memory(checkpointing=True).activations < plain.activations / 10
    # 28 layers x keys and values of 2 x 128 x 4 bytes, for 1024 tokens of 1024 completions.
    cache = 1024 * (28 * 2 * 2 * 128 * 4 * 1024 + 3 * 4 * 151936)
    assert plain.generation == cache
    assert memory(processes=4).generation == cache / 4
    assert memory(vllm={"mode": "colocate"}).generation == 0
    assert plain.peak == 8 * count + max(cache, plain.activations + plain.logits)
