"""Processes that do not find some packages, as where these are not installed."""

from __future__ import annotations

import os
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

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


def others(project: str, *extras: str) -> list[str]:
    """The modules here that a project with these extras does not install; pip is everywhere."""
    installed, ahead = {"pip"}, [(canonicalize_name(project), frozenset(extras))]
    met = set(ahead)
    while ahead:
        name, chosen = ahead.pop()
        try:
            needs = [Requirement(line) for line in requires(name) or ()]
        except PackageNotFoundError:
            continue
        installed.add(name)
        for need in needs:
            asked = need.marker is None or any(
                need.marker.evaluate({"extra": extra}) for extra in chosen or {""}
            )
            each = canonicalize_name(need.name), frozenset(need.extras)
            if asked and each not in met:
                met.add(each)
                ahead.append(each)
    return [
        module
        for module, owners in packages_distributions().items()
        if not installed & {canonicalize_name(owner) for owner in owners}
    ]
