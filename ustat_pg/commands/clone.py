"""The commands that need the repository, because the package does not contain experiments and figures."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from ..validation import InputError

COMMANDS = {
    "verify": (
        "simulations verify",
        "check every result of the paper, by enumeration and by simulation",
    ),
    "plan": ("simulations plan", "show what verify would draw, and how long it would take"),
    "check": ("simulations check", "repeat one check of a run's report"),
    "report": ("figures --report", "show a run as one HTML page"),
    "figures": ("figures", "a run's figures"),
}
"""The module and first arguments that run each command, and its purpose."""

MORE = "python -m simulations also has list, prove and mutants"
"""The commands that exist only in a clone."""


def _root() -> Path | None:
    """The clone of the repository that contains this folder or the package; None if there is none."""
    places = (Path.cwd(), *Path.cwd().parents, Path(__file__).resolve().parents[2])
    wanted = ("simulations/__main__.py", "figures/__main__.py", "simulations/paper.py")
    return next((p for p in places if all((p / name).is_file() for name in wanted)), None)


def run(command: str, words: Sequence[str]) -> int:
    """Replace this process by ``python -m simulations`` or ``python -m figures`` of the clone.

    Arguments:
        command: name in :data:`COMMANDS`.
        words: its arguments, which are not checked here.
    """
    called, root = COMMANDS[command][0].split(), _root()
    if root is None:
        text = (
            f"{command} needs the repository, because the package has no experiments: clone it, "
            f"and call ustat-pg {command} or python -m {' '.join(called)} in its folder"
        )
        if not {"-h", "--help"} & set(words):
            raise InputError(text)
        print(text)
        return 0
    paths = [str(root), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    line = [sys.executable, "-m", *called, *words]
    if os.name == "posix":
        sys.stdout.flush()
        # So the new process gets the signals and sets the exit code.
        os.execve(sys.executable, line, environment)
    return subprocess.call(line, env=environment)
