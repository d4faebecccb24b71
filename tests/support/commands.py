"""What a command prints and how it ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import import_module
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


def two_processes(program, folder, *words) -> list:
    """What both processes of a distributed program return: a function of a module, called with words."""
    launch = [
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        "-m",
        __name__,
    ]
    call = [program.__module__, program.__name__, folder, *words]
    done = subprocess.run(
        [sys.executable, *launch, *map(str, call)],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=1200,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads((folder / f"outcome.{rank}").read_text()) for rank in range(2)]


def jsonl(path, *rows):
    """The file of one JSON object a line."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def strict(text):
    """The value of JSON without NaN and infinities."""

    def refuse(word):
        raise AssertionError(f"{word} is not JSON")

    return json.loads(text, parse_constant=refuse)


if __name__ == "__main__":
    module, name, folder, *words = sys.argv[1:]
    outcome = getattr(import_module(module), name)(*words)
    Path(folder, f"outcome.{os.environ['RANK']}").write_text(json.dumps(outcome))
