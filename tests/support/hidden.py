"""Processes that do not find some packages, as where these are not installed."""

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

_HIDING = """
import sys
from importlib.machinery import PathFinder


class Hiding(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in HIDDEN else super().find_spec(name, path, target)


sys.meta_path[:] = [Hiding if finder is PathFinder else finder for finder in sys.meta_path]
"""


def hidden(folder: Path, *packages: str) -> str:
    """The PYTHONPATH of processes that do not find these packages; a file of theirs is put in a folder."""
    place = folder / "hidden"
    place.mkdir()
    (place / "sitecustomize.py").write_text(f"HIDDEN = {packages!r}\n{_HIDING}", "utf-8")
    return os.pathsep.join([str(place), str(ROOT), os.environ.get("PYTHONPATH", "")])
