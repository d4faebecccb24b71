"""The commands of the repository: the experiments and figures are not in the package."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from ..validation import InputError

COMMANDS = {
    "verify": ("simulations verify", "every result of the paper, by enumeration and by simulation"),
    "plan": ("simulations plan", "what verify would draw, and how long that takes"),
    "check": ("simulations check", "one line of a run's report again"),
    "report": ("figures --report", "a run as one HTML page"),
    "figures": ("figures", "a run's figures"),
}
"""The module that runs each command and its first words, and what it is for."""

MORE = "python -m simulations has list and mutants besides"
"""The commands of a clone alone."""


def _root() -> Path | None:
    """The clone of the repository that this folder or the package is in; None where there is none."""
    places = (Path.cwd(), *Path.cwd().parents, Path(__file__).resolve().parents[2])
    wanted = ("simulations/__main__.py", "figures/__main__.py", "simulations/paper.py")
    return next((p for p in places if all((p / name).is_file() for name in wanted)), None)


def run(command: str, words: Sequence[str]) -> int:
    """Run ``python -m simulations`` or ``python -m figures`` of the clone, in place of this process.

    Arguments:
        command: one of :data:`COMMANDS`.
        words: its arguments, which are not looked at here.
    """
    called, root = COMMANDS[command][0].split(), _root()
    if root is None:
        text = (
            f"{command} needs the repository, whose experiments are not in the package: clone it, "
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
        # Signals and the exit code are then its own.
        os.execve(sys.executable, line, environment)
    return subprocess.call(line, env=environment)
