"""vLLM in a process of its own, of which a module of its name stands in here."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from tests.support.commands import ROOT, strict
from tests.support.refusals import refuses
from ustat_pg.cli import main
from ustat_pg.llm.prompts import Prompt, Task
from ustat_pg.llm.rollouts import read_store, sample

ENGINE = '''
"""What is used of vLLM's interface: every second completion is cut, the others end."""
import json
import os
import signal
import time
from pathlib import Path
from types import SimpleNamespace as SamplingParams

HERE = Path(__file__).parent


def note(**row):
    with (HERE / "asked.jsonl").open("a") as file:
        file.write(json.dumps(row) + "\\n")


class LLM:
    def __init__(self, **settings):
        print("words on stdout")
        note(pid=os.getpid(), settings=settings)
        self.options = settings

    def generate(self, prompts, sampling_params, use_tqdm):
        calls = (HERE / "asked.jsonl").read_text().count("prompts")
        if self.options.get("kill_at") == calls:
            os.kill(os.getpid(), signal.SIGKILL)
        if self.options.get("hang"):
            time.sleep(600)
        note(prompts=prompts, sampling=[vars(s) for s in sampling_params])
        ended = [4] if self.options.get("drop_end") else [4, 1]
        return [
            SamplingParams(
                outputs=[completion([5, 6, 7] if i % 2 else ended, i % 2) for i in range(s.n)]
            )
            for s in sampling_params
        ]


def completion(tokens, cut):
    return SamplingParams(
        token_ids=tokens,
        finish_reason="length" if cut else "stop",
        stop_reason=None,
        logprobs=[{token: SamplingParams(logprob=-0.5 * token)} for token in tokens],
    )
'''


def even(prompts, completions, **columns):
    return [float(i % 2) for i in range(len(completions))]


TASK = Task("small", tuple(Prompt(f"p{i}", f"{i}+1=") for i in range(3)), even, 3)


@pytest.fixture
def engine(tmp_path, monkeypatch):
    """The module where the child finds it."""
    folder = tmp_path / "engine"
    folder.mkdir()
    (folder / "vllm.py").write_text(ENGINE)
    monkeypatch.syspath_prepend(folder)
    return folder


def asked(engine, what):
    """What the engine was asked, in all processes."""
    file = engine / "asked.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    return [row[what] for row in rows if what in row]


def drawn(small, task=TASK, **options):
    return sample(small, task, 4, backend="vllm", **options)


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def wait_for(condition):
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_the_engine_is_asked_for_the_models_own_distribution(small, engine, tmp_path):
    options = {"vllm_options": {"gpu_memory_utilization": 0.5}, "store": tmp_path / "s.jsonl"}
    result = drawn(small, **options)
    assert result[0].completion_ids == ((4, 1), (5, 6, 7), (4, 1), (5, 6, 7))
    assert result[0].texts == ("2", "345", "2", "345")
    assert result[0].log_probs == ((-2.0, -0.5), (-2.5, -3.0, -3.5)) * 2
    (settings,) = asked(engine, "settings")
    assert settings["model"] == small.source
    assert settings["generation_config"] == "vllm"
    assert settings["gpu_memory_utilization"] == 0.5
    # All in one call.
    (prompts,), (sampling,) = asked(engine, "prompts"), asked(engine, "sampling")
    assert [each["prompt_token_ids"] for each in prompts] == [list(x.prompt_ids) for x in result]
    plain = {"n": 4, "temperature": 1, "top_p": 1, "top_k": -1, "min_p": 0, "repetition_penalty": 1}
    plain |= {"presence_penalty": 0, "frequency_penalty": 0, "max_tokens": 3, "min_tokens": 0}
    plain |= {"stop_token_ids": [1], "logprobs": 0}
    assert all(each.items() >= plain.items() for each in sampling)
    assert len({each["seed"] for each in sampling}) == 3
    # The store has all that comes.
    again = drawn(small, **options)
    assert [x.completion_ids for x in again] == [x.completion_ids for x in result]
    assert [x.log_probs for x in again] == [x.log_probs for x in result]
    assert len(asked(engine, "pid")) == 1
    text = "backend = 'vllm', and now backend is 'transformers'"
    refuses(text, sample, small, TASK, 4, store=options["store"])
    text = "rollouts = 4, and now rollouts is 5"
    refuses(text, sample, small, TASK, 5, backend="vllm", **options)


def test_an_end_token_that_is_not_given_has_no_log_probability(small, engine):
    (first, *_) = drawn(small, vllm_options={"drop_end": True})
    assert first.completion_ids == ((4, 1), (5, 6, 7), (4, 1), (5, 6, 7))
    assert first.log_probs is None


def test_a_killed_engine_loses_only_the_call_it_was_in(small, engine, tmp_path):
    options = {"store": tmp_path / "s.jsonl", "batch": 8}
    text = "was killed by signal 9 before all prompts were drawn"
    refuses(text, drawn, small, vllm_options={"kill_at": 1}, **options)
    _, entries = read_store(options["store"])
    assert list(entries) == ["p0", "p1"]
    result = drawn(small, **options)
    assert len(result) == 3
    assert [len(prompts) for prompts in asked(engine, "prompts")] == [2, 1]


def test_an_error_at_home_ends_the_engine(small, engine):
    def wordy(prompts, completions, **columns):
        return ["good"] * len(completions)

    task = dataclasses.replace(TASK, verifier=wordy)
    refuses("good", drawn, small, task, batch=4, vllm_options={"kill_at": 2})
    (pid,) = asked(engine, "pid")
    assert not alive(pid)


def test_the_engine_does_not_outlive_a_killed_parent(engine, tiny_folder):
    code = f"""
        import sys
        sys.path.insert(0, {str(engine)!r})
        from tests.llm.test_vllm_process import TASK, drawn
        from ustat_pg.llm.models import load_model
        drawn(load_model({str(tiny_folder)!r}), vllm_options={{"hang": True}})
    """
    parent = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], cwd=ROOT)
    wait_for(lambda: asked(engine, "pid"))
    (pid,) = asked(engine, "pid")
    assert alive(pid)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    wait_for(lambda: not alive(pid))


def test_a_command_keeps_stdout_for_itself(engine, tiny_folder, tmp_path, capfd):
    (tmp_path / "p.jsonl").write_text('{"prompt": "1+1="}\n{"prompt": "2+2="}\n')
    (tmp_path / "v.py").write_text(
        "def odd(completions, **columns):\n    return [i % 2 for i in range(len(completions))]\n"
    )
    words = [
        "llm", "mse", "--model", str(tiny_folder), "--prompts", str(tmp_path / "p.jsonl"),
        "--verifier", f"{tmp_path / 'v.py'}:odd", "--samples", "4", "--max-new-tokens", "3",
        "--backend", "vllm", "--off-policy",
    ]  # fmt: skip
    assert main([*words, "--json", "--vllm", "max_model_len=64", "--vllm", "dtype=float16"]) == 0
    text = capfd.readouterr()
    assert strict(text.out)["prompts"] == 2
    assert "words on stdout" in text.err
    (settings,) = asked(engine, "settings")
    assert (settings["max_model_len"], settings["dtype"]) == (64, "float16")


def test_vllm_is_refused_where_it_cannot_serve(small, engine):
    merged = dataclasses.replace(small, source="")
    refuses("merge and save", drawn, merged)
    (engine / "vllm.py").write_text("import no_such_module\n")
    refuses("vLLM failed: ModuleNotFoundError: No module named 'no_such_module'", drawn, small)
