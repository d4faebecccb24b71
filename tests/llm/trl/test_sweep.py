"""Sweeps: what is planned, made, skipped and continued, and what joined results say."""

import json
import shlex
import sys

import numpy as np
import pandas as pd
import pytest
from trl import TrlParser

from tests.support.commands import jsonl, refusal_of
from tests.support.models import save_tiny
from tests.support.refusals import refuses
from ustat_pg.cli import main
from ustat_pg.llm.trl import training
from ustat_pg.llm.trl.results import TABLE_2, differences, figure5, results, say_results, table2
from ustat_pg.llm.trl.sweep import PRESETS, Sweep

pytestmark = pytest.mark.filterwarnings("ignore:.*gradient_checkpointing.*:FutureWarning")

VERIFIER = '''
def digit_first(completions, **columns):
    """1 where the answer begins with a digit."""
    return [float(text[:1].isdigit()) for text in completions]

def broken(completions, **columns):
    raise ValueError("no verdict today")
'''


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a model of few symbols, prompts to train on and to test on, and a verifier."""
    folder = tmp_path_factory.mktemp("sweep")
    save_tiny(folder / "model", characters="0123456789+=")
    for name, first, count in (("train", 1, 8), ("test", 8, 5)):
        prompts = ({"prompt": f"{i}+{i}="} for i in range(first, first + count))
        jsonl(folder / f"{name}.jsonl", *prompts)
    (folder / "first_digit_verifier.py").write_text(VERIFIER)
    return folder


@pytest.fixture
def settings(place, monkeypatch):
    """Those of a small sweep over that folder; one text is in both files."""
    monkeypatch.syspath_prepend(str(place))
    monkeypatch.setenv("PYTHONPATH", str(place))
    return {
        "model": str(place / "model"), "task": str(place / "train.jsonl"),
        "evaluation": str(place / "test.jsonl"), "verifier": "first_digit_verifier:digit_first",
        "per_device_train_batch_size": 4, "gradient_accumulation_steps": 2,
        "per_device_eval_batch_size": 4, "num_generations_eval": 2, "eval_steps": 2,
        "learning_rate": "3e-1", "max_steps": 4, "max_completion_length": 3, "use_cpu": True,
        "threads": 1, "grid": {"num_generations": [2, 4], "seed": [0]},
    }  # fmt: skip


def written(folder, settings, **changes):
    """The file of a sweep or of a run."""
    path = folder / "sweep_of_mine.yaml"
    path.write_text(json.dumps(settings | changes))
    return path


def made(folder, settings, **changes):
    """A run that is made here: its exit code, and what it found."""
    own = {name: value for name, value in settings.items() if name != "grid"}
    own |= {"num_generations": 2, "output_dir": str(folder / "run")}
    code = training.main(["--config", str(written(folder, own, **changes))])
    finished = folder / "run" / training.FINISHED
    return code, json.loads(finished.read_text()) if finished.exists() else None


def evaluations(found):
    return {e["step"]: e["eval_reward"] for e in found["log"] if "eval_reward" in e}


def recorded(out, accuracies, **own):
    """A finished run with these accuracies by step, the last of which is the last step."""
    own = {"trainer": "rloo", "K": 8, "G": 2, "seed": 0, "model": "m", "task": "t"} | own
    run = out / ",".join(f"{name}={own[name]}" for name in ("trainer", "K", "G", "seed"))
    run.mkdir(parents=True)
    result = {
        "run": {name: own[name] for name in ("model", "task", "trainer")},
        "trl": {"num_generations": own["G"], "seed": own["seed"], "max_steps": max(accuracies)},
        "budget": own["K"],
        "tested": 3,
        "log": [{"step": step, "eval_reward": value} for step, value in accuracies.items()],
    }
    (run / training.FINISHED).write_text(json.dumps(result))


def test_the_grid_is_the_runs(settings, tmp_path, capsys):
    path = written(tmp_path, settings, grid={"trainer": ["rloo", "bayes:1,1"], "seed": [3, 4]})
    sweep, out = Sweep.read(path), tmp_path / "out of here"
    runs = sweep.runs()
    assert list(runs)[1:3] == ["trainer=rloo,seed=4", "trainer=bayes:1,1,seed=3"]
    assert runs["trainer=bayes:1,1,seed=3"] == {**sweep.base, "trainer": "bayes:1,1", "seed": 3}
    words = ["llm", "sweep", "--config", str(path), "--out", str(out), "--print"]
    (out / "trainer=rloo,seed=3").mkdir(parents=True)
    (out / "trainer=rloo,seed=3" / training.FINISHED).touch()
    assert main(words) == 0
    text = [shlex.split(line) for line in capsys.readouterr().out.splitlines()]
    run = out / "trainer=rloo,seed=4" / "run.yaml"
    assert len(text) == 3
    assert text[0] == [sys.executable, "-m", "ustat_pg.llm.trl.training", "--config", str(run)]
    written(tmp_path, settings, launch=["--num_processes", 2], max_steps=5)
    assert "max_steps 4, not 5" in refusal_of(capsys, main, *words)
    (command, _) = Sweep.read(path).prepare(tmp_path / "other").values()
    assert command[1:5] == ["-m", "accelerate.commands.launch", "--num_processes", "2"]


def test_runs_that_fail_are_named_with_the_end_of_their_logs(settings, tmp_path, monkeypatch):
    """Each has its own process, here of a program that fails at seed 1."""
    program = tmp_path / "program"
    program.write_text(
        '#!/bin/sh\necho "$TOKENIZERS_PARALLELISM $*"\ncase "$*" in *seed=1*) exit 3;; esac\n'
    )
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    path, said = written(tmp_path, settings, grid={"seed": [0, 1]}), []
    assert Sweep.read(path).run(tmp_path / "out", 2, said.append) == ("seed=1",)
    ran = [(tmp_path / "out" / f"seed={seed}" / "log.txt").read_text() for seed in (0, 1)]
    assert all(line.startswith("false -m ustat_pg.llm.trl.training --config") for line in ran)
    assert {"seed=0: finished", "seed=1: failed"} <= {*said}
    assert [ran[1].rstrip()] == [line.split("\n")[1] for line in said if "exit code 3" in line]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [1", "not YAML"),
        ("grid: {learning_rate: [0.1, 0.2]}", "lists for some of trainer, gradient_acc"),
        ("grid: {seed: [1, 1]}", "each value once"),
        ("launch: --multi_gpu", "must be a list"),
    ],
)
def test_a_file_that_is_no_sweep_is_refused(text, message, tmp_path):
    path = tmp_path / "a.yaml"
    path.write_text(text)
    refuses(message, Sweep.read, path)
    refuses("No such file", Sweep.read, tmp_path / "none.yaml")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"held_out": 3}, "to hold out"),
        ({"gradient_accumulation_steps": 8}, "a step needs 16 prompts and there are 7"),
        ({"max_completion_length": 9999}, "more than the context"),
        ({"no_such": 3}, "TRL does not accept .* Unknown arguments .*no_such"),
        ({"trainer": "vanilla", "beta": 0.1}, "beta is 0.1"),
    ],
)
def test_a_run_refuses(settings, changes, message, tmp_path, capfd):
    assert made(tmp_path, settings, **changes) == (2, None)
    text = capfd.readouterr().err.replace("\n", " ")
    refuses(message, lambda: (_ for _ in ()).throw(training.InputError(text)))


def test_a_run_evaluates_with_trl_what_it_has_not_trained_on(settings, tmp_path):
    """The verifier's mean over whole batches, at the steps that are asked; the last prompt is left out."""
    seen = []
    module = __import__("first_digit_verifier")

    def watching(completions, prompts, trainer_state, **columns):
        rewards = module.digit_first(completions)
        seen.extend(
            (trainer_state.global_step, prompt, reward)
            for prompt, reward in zip(prompts, rewards, strict=True)
        )
        return rewards

    module.watching = watching
    code, result = made(tmp_path, settings, verifier="first_digit_verifier:watching")
    assert code == 0
    assert (result["budget"], result["tested"], result["trl"]["beta"]) == (8, 4, 0.0)
    tested, trained = [f"{i}+{i}=" for i in range(8, 12)], [f"{i}+{i}=" for i in range(1, 8)]
    assert set(evaluations(result)) == {0, 2, 4}
    for step, accuracy in evaluations(result).items():
        own = [(prompt, z) for at, prompt, z in seen if at == step and prompt in tested]
        assert [prompt for prompt, _ in own].count("8+8=") == 2
        assert accuracy == pytest.approx(np.mean([z for _, z in own]))
    assert {prompt for _, prompt, _ in seen} <= {*tested, *trained}


def test_a_run_continues_from_its_checkpoint(settings, tmp_path, monkeypatch):
    saved = {"save_strategy": "steps", "save_steps": 2}
    monkeypatch.setattr(training, "FINISHED", "a folder that is not there/finished.json")
    with pytest.raises(FileNotFoundError):
        made(tmp_path, settings, max_steps=2, **saved)
    monkeypatch.undo()
    monkeypatch.syspath_prepend(str(tmp_path))
    assert (tmp_path / "run" / "checkpoint-2").is_dir()
    code, result = made(tmp_path, settings, **saved)
    assert code == 0
    assert set(evaluations(result)) == {0, 2, 4}
    losses = [entry["step"] for entry in result["log"] if "loss" in entry]
    assert losses == [1, 2, 3, 4]


def test_a_small_sweep_from_end_to_end(settings, tmp_path, capsys):
    """One run fails and is reported; mended, it alone is made again."""
    out, path = tmp_path / "out", written(tmp_path, settings)
    sweep, text = Sweep.read(path), []
    healthy, failing = sweep.runs()
    run = out / failing
    (folder,) = {command[-1] for name, command in sweep.prepare(out).items() if name == healthy}
    assert training.main(["--config", folder]) == 0
    finished = (out / healthy / training.FINISHED).read_bytes()
    checkpoint = run / "checkpoint-1"
    checkpoint.mkdir()
    assert sweep.run(out, say=text.append) == (failing,)
    assert [line.splitlines()[0] for line in text] == [
        f"{failing}: failed",
        f"exit code 1; the end of {run / 'log.txt'}:",
    ]
    checkpoint.rmdir()
    words = ["llm", "sweep", "--config", str(path), "--out", str(out)]
    assert main(words) == 0
    assert f"{failing}: finished" in capsys.readouterr().out
    assert (out / healthy / training.FINISHED).read_bytes() == finished
    frame = results(out)
    assert frame[["trainer", "K", "G", "B", "seed", "step"]].values.tolist() == [
        ["rloo", 8, size, 8 // size, 0, step] for size in (2, 4) for step in (0, 2, 4)
    ]
    assert frame["accuracy"].between(0, 1).all()
    for name in ("results", "table2", "figure5", "differences"):
        assert len(pd.read_csv(out / f"{name}.csv")) == {"results": 6, "figure5": 4}.get(
            name, 2 - (name == "differences")
        )


def test_results_of_several_seeds(tmp_path, capsys):
    """Means, t intervals and the best group size, on written records."""
    for size, accuracies in {2: (0.58, 0.62), 4: (0.8, 0.9)}.items():
        for seed, accuracy in enumerate(accuracies):
            recorded(tmp_path, {0: 0.1, 2: 0.7, 4: accuracy}, G=size, seed=seed)
    drawn = figure5(results(tmp_path)).set_index(["step", "G"])
    assert drawn["accuracy"].to_dict() == pytest.approx(
        {(2, 2): 0.7, (2, 4): 0.7, (4, 2): 0.6, (4, 4): 0.85}
    )
    assert drawn["best"].to_list() == [True, True, False, True]
    # t(0.975, 1) = 12.706; the standard error of (.58, .62) is .02.
    assert drawn["high"][4, 2] - 0.6 == pytest.approx(0.25412, abs=1e-4)
    assert (drawn["low"][2, 2], drawn["high"][2, 2]) == (0.7, 0.7)
    assert table2(results(tmp_path))["runs"].to_list() == [2, 2]
    say_results(tmp_path)
    assert f"figure5.csv, differences.csv in {tmp_path}" in capsys.readouterr().out
    pd.testing.assert_frame_equal(pd.read_csv(tmp_path / "figure5.csv"), figure5(results(tmp_path)))
    refuses("no finished run", results, tmp_path / "nothing")


def test_differences_are_of_pairs(tmp_path):
    """What seeds share goes out: accuracies differ by far more between them than between groups."""
    level, gains = (0.2, 0.5, 0.9), (0.05, 0.06, 0.04)
    for seed in range(3):
        recorded(tmp_path, {4: level[seed]}, seed=seed)
        recorded(tmp_path, {4: level[seed] + gains[seed]}, seed=seed, G=4)
    recorded(tmp_path, {4: 0.3}, trainer="vanilla", seed=1)
    frame = results(tmp_path)
    result = differences(frame).set_index("trainer").loc["rloo"]
    assert (result["G"], result["best_G"], result["runs"]) == (2, 4, 3)
    # t(0.975, 2) = 4.3027; the standard error of three gaps .01 apart is .01/√3.
    assert result["difference"] == pytest.approx(-0.05)
    assert result["high"] - result["difference"] == pytest.approx(4.3027 * 0.01 / 3**0.5, rel=1e-4)
    one = differences(frame).set_index("trainer").loc["vanilla"]
    assert one["difference"] == pytest.approx(-0.26)
    assert np.isnan(one["low"])


def test_the_papers_numbers_stand_beside_its_own_model_and_task(tmp_path):
    own = {"K": 1024, "G": 64, "model": "copies/Qwen2.5-Math-7B"}
    recorded(tmp_path / "a", {1000: 0.7}, **own, task="math:split=train")
    recorded(tmp_path / "b", {1000: 0.7}, **own, task="gsm8k:split=train")
    assert table2(results(tmp_path / "a"))["paper"].to_list() == [0.7817]
    assert table2(results(tmp_path / "b"))["paper"].isna().all()
    # What table2.yaml says of the test set: multiples of 1/5000 apart.
    steps = (TABLE_2 - TABLE_2.loc[4, 1024]) * 5000
    np.testing.assert_allclose(steps, steps.round(), atol=1e-6)


@pytest.mark.parametrize(
    ("preset", "runs", "budgets"),
    [("figure5", 30, {1024}), ("table2", 18, {1024, 2048, 4096}), ("embedded", 18, {128})],
)
def test_trl_takes_the_presets(preset, runs, budgets):
    """As far as a CPU can tell: one process in place of several, without bf16."""
    sweep = Sweep.read(preset)
    assert (PRESETS / f"{preset}.yaml").is_file()
    assert len(sweep.runs()) == runs
    processes = int(sweep.launch[1]) if sweep.launch else 1
    result = set()
    for settings in sweep.runs().values():
        micro = settings["per_device_train_batch_size"] * processes
        one = {"output_dir": "unused", "use_cpu": True, "bf16": False}
        parser = TrlParser((training.RunArguments, training.trainer_class("rloo")[1]))
        parser.set_defaults_with_config(**training.PLAIN)
        assert not parser.set_defaults_with_config(
            **{**settings, **one, "per_device_train_batch_size": micro}
        )
        result.add(parser.parse_args_into_dataclasses([])[1].generation_batch_size)
    assert result == budgets
