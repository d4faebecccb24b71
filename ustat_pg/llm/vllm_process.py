"""vLLM in a process of its own: it draws from the model's own distribution, by its own random numbers.

An engine holds most of a device until its process ends, and prints where it likes. So it is made in a child,
``python -m ustat_pg.llm.vllm_process``, which reads one job from stdin and writes a line of JSON for each
prompt; all else that is printed there goes to stderr. The model that scores is moved off the device while
the child lives. A child whose parent is gone ends.

Prompts are generated :data:`AT_ONCE` completions at a time, that is all in one call in most runs, and are
handed over after each call: that much is lost where the child is killed.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from ..rng import cell_key
from ..validation import InputError
from .generation import Drawn, stripped
from .models import LanguageModel, end_tokens

AT_ONCE = 2**14
"""Completions of one call. Each call waits for its slowest, while the engine runs a few hundred at a time."""


def vllm_draw(
    language_model: LanguageModel,
    prompts: Sequence[tuple[str, tuple[int, ...]]],
    rollouts: int,
    length: int,
    seed: int,
    batch: int | None = None,
    options: dict[str, Any] | None = None,
) -> Iterator[Drawn]:
    """Draw completions of each prompt, its id and tokens, in turn, through vLLM.

    Log-probabilities are those that vLLM has; the scoring model's differ a little. That is on the CPU while
    vLLM runs. ``batch`` completions are those of one call, :data:`AT_ONCE` where None.
    """
    if not language_model.source:
        raise InputError(
            f"backend is vllm, and {language_model.name} has an adapter or weights that are in no "
            'folder: merge and save them, or take backend="transformers"'
        )
    ends = end_tokens(language_model)
    job = {
        "engine": {
            "model": language_model.source,
            "tokenizer": language_model.source,
            "dtype": str(language_model.model.dtype).removeprefix("torch."),
            "seed": seed,
            # The model's own temperature and penalties must not come in.
            "generation_config": "vllm",
            **(options or {}),
        },
        "sampling": {
            "n": rollouts,
            "temperature": 1.0,
            "top_p": 1.0,
            "top_k": -1,
            "min_p": 0.0,
            "repetition_penalty": 1.0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "max_tokens": length,
            "min_tokens": 0,
            "stop_token_ids": list(ends),
            "detokenize": False,
            # Of the token that was drawn alone.
            "logprobs": 0,
        },
        "prompts": [list(ids) for _, ids in prompts],
        "seeds": [int(cell_key(seed, f"rollouts\x00{name}")[0]) for name, _ in prompts],
        "at_once": max(1, (batch or AT_ONCE) // rollouts),
        "end": language_model.tokenizer.eos_token_id,
    }
    with _off_the_device(language_model), _child(job) as answers:
        for row in answers:
            tokens = tuple(stripped(ids, ends) for ids in row["tokens"])
            both = list(zip(row["log_probs"], tokens, strict=True))
            # An end token that vLLM does not give has no log-probability.
            whole = all(len(logs) >= len(ids) for logs, ids in both)
            logs = tuple(tuple(logs[: len(ids)]) for logs, ids in both)
            yield Drawn(tokens, logs if whole else None)


@contextmanager
def _off_the_device(language_model: LanguageModel) -> Iterator[None]:
    """The model in the host's memory, so that the engine has its device."""
    import torch

    language_model.model.to("cpu")
    # What torch holds of a device and does not use.
    torch.cuda.empty_cache()
    try:
        yield
    finally:
        language_model.model.to(language_model.device)


@contextmanager
def _child(job: dict[str, Any]) -> Iterator[Iterator[dict[str, Any]]]:
    """The answers of a process that draws; it has ended when they are left."""
    # The engine in the child itself, so that its errors and its end are the child's.
    settings = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_LOGGING_LEVEL": "WARNING"}
    path = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    process = subprocess.Popen(
        [sys.executable, "-m", __name__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**settings, **os.environ, **path},
        # A group of its own, so that its own children end with it.
        start_new_session=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        # Stdin stays open: its end tells the child that its parent is gone.
        with suppress(BrokenPipeError):
            process.stdin.write(json.dumps(job) + "\n")
            process.stdin.flush()
        yield _answers(process, len(job["prompts"]))
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()
        with suppress(BrokenPipeError):
            process.stdin.close()


def _answers(process: subprocess.Popen[str], prompts: int) -> Iterator[dict[str, Any]]:
    assert process.stdout is not None
    for _ in range(prompts):
        line = process.stdout.readline()
        # A line without an end is the last thing that a killed child wrote.
        if not line.endswith("\n"):
            code = process.wait()
            how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
            raise InputError(
                f"vLLM's process {how} before all prompts were drawn; those that came before are in the "
                "store, where there is one. If memory ran out, give it less (gpu_memory_utilization), or "
                "take a smaller model"
            )
        answer = json.loads(line)
        if "error" in answer:
            raise InputError(answer["error"])
        yield answer


def main() -> None:
    """The child: a job from stdin, an answer for each prompt."""
    answers = os.fdopen(os.dup(1), "w")
    # vLLM's own prints must not come between.
    os.dup2(2, 1)
    job = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        for row in _generated(job):
            print(json.dumps(row), file=answers, flush=True)
    except Exception as error:
        traceback.print_exc()
        text = f"vLLM failed: {type(error).__name__}: {error}"
        print(json.dumps({"error": text}), file=answers, flush=True)


def _end_with_parent() -> None:
    # Not by sys.stdin, whose lock would hold up the end of the interpreter.
    while os.read(0, 1):
        pass
    os.killpg(0, signal.SIGKILL)


def _generated(job: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Tokens and log-probabilities of each prompt's completions, in the order of the prompts."""
    import vllm

    engine = vllm.LLM(**job["engine"])
    pairs = list(zip(job["prompts"], job["seeds"], strict=True))
    for start in range(0, len(pairs), job["at_once"]):
        part = pairs[start : start + job["at_once"]]
        outputs = engine.generate(
            [{"prompt_token_ids": ids} for ids, _ in part],
            sampling_params=[vllm.SamplingParams(seed=seed, **job["sampling"]) for _, seed in part],
            use_tqdm=False,
        )
        for output in outputs:
            yield {
                "tokens": [_with_end(one, job["end"]) for one in output.outputs],
                "log_probs": [_log_probs(one) for one in output.outputs],
            }


def _with_end(output: Any, end: int | None) -> list[int]:
    """A completion's tokens; where it stopped, the token that stopped it is the last."""
    ids = list(output.token_ids)
    stop = output.stop_reason if isinstance(output.stop_reason, int) else end
    if output.finish_reason == "stop" and stop is not None and ids[-1:] != [stop]:
        ids.append(stop)
    return ids


def _log_probs(output: Any) -> list[float]:
    """Those of a completion's tokens; none where vLLM gives none."""
    pairs = zip(output.token_ids, output.logprobs or (), strict=False)
    return [round(float(logs[token].logprob), 7) for token, logs in pairs]


if __name__ == "__main__":
    main()
