"""What a command prints and how it ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
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


def python(code: str) -> subprocess.CompletedProcess[str]:
    """A program of the repository's root, run to its end in a process of its own."""
    return subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=1200
    )


def two_processes(script, *words) -> None:
    """Run a script as both processes of a distributed program."""
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [sys.executable, *launch, str(script), *map(str, words)],
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=1200,
    )
    assert done.returncode == 0, done.stderr[-3000:]


def strict(text):
    """The value of JSON without NaN and infinities."""

    def refuse(word):
        raise AssertionError(f"{word} is not JSON")

    return json.loads(text, parse_constant=refuse)
