"""What a command prints and how it ends."""

import json
import os
import socket
import subprocess
import sys
from concurrent.futures import FIRST_EXCEPTION, ProcessPoolExecutor, wait
from functools import cache
from importlib import import_module
from multiprocessing import active_children, get_context
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def out_of(capsys, main, *words) -> str:
    """The standard output of a command that succeeds and says nothing else."""
    capsys.readouterr()
    assert main([str(word) for word in words]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    return captured.out


def refusal_of(capsys, main, *words) -> str:
    """The one line on standard error of a command that ends with 2 and prints nothing."""
    capsys.readouterr()
    assert main([str(word) for word in words]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    return captured.err


def python(code: str, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """A program of the repository's root, run to its end in a process of its own with words and variables."""
    return subprocess.run(
        [sys.executable, "-c", code, *words],
        cwd=ROOT, env=os.environ | variables, capture_output=True, text=True, timeout=1200,
    )  # fmt: skip


def two_processes(program, *words) -> list:
    """What both processes of a distributed program return: a function of a module, called with words."""
    return _server().submit(_both, program, words).result(timeout=1200)


@cache
def _server():
    """A process that has loaded what all such programs load, and forks them.

    The forkserver of ``multiprocessing`` is one for all, and planted errors are forked from it.
    """
    return ProcessPoolExecutor(1, get_context("spawn"), _load)


def _load():
    for module in ("torch.distributed.fsdp", "tests.support.trainers"):
        import_module(module)


def _both(program, words):
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    with ProcessPoolExecutor(2, get_context("fork")) as pool:
        both = [pool.submit(_rank, rank, port, program, words) for rank in range(2)]
        done, left = wait(both, 1000, FIRST_EXCEPTION)
        if left:
            # The partner of one that failed would wait for it.
            for child in active_children():
                child.kill()
        for each in done:
            each.result()
        return [each.result() for each in both]


def _rank(rank, port, program, words):
    import torch

    os.environ |= {"RANK": f"{rank}", "LOCAL_RANK": f"{rank}", "WORLD_SIZE": "2"}
    os.environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": f"{port}"}
    torch.set_num_threads(1)
    return program(*words)


def jsonl(path, *rows):
    """The file of one JSON object a line."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def strict(text):
    """The value of JSON without NaN and infinities."""

    def refuse(word):
        raise AssertionError(f"{word} is not JSON")

    return json.loads(text, parse_constant=refuse)
