"""Finished blocks on disk: one complete file each, found by its key.

The key is a hash of what was computed, of the code that computed it and of the numerical libraries'
versions, so that a changed program never reads an old one's results.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import numba
import numpy as np

from ustat_pg._version import __version__
from ustat_pg.files.digests import digest, source_digest, sources_of
from ustat_pg.files.reading import read_json
from ustat_pg.files.whole import versions, whole_file
from ustat_pg.validation import InputError

from ..engines import ON_TORCH

MAKERS = ("blocks.py", "chi_squares.py", "formulas.py", "pits.py")
"""Files of this folder that make blocks, or the quantities of one: with all that they import, they are
in the key of every block."""


@cache
def makers() -> tuple[Path, ...]:
    """The source files that invalidate blocks when they change."""
    return sources_of(*(Path(__file__).resolve().with_name(name) for name in MAKERS))


class StoreError(InputError):
    """Results cannot be saved: the folder is read-only, or the disk is full."""


@cache
def code_version() -> str:
    """A hash of the source files that make results, and of the versions of what computes all of them: that
    of torch is in the keys of its own blocks alone.
    """
    return source_digest(*makers(), salt=f"NumPy {np.__version__}, numba {numba.__version__}")


def program() -> str:
    """The program of this process, in words that are equal where results are interchangeable.

    The words say nothing of the processor: kinds of processors may differ in a last digit.
    """
    torch = "" if (version := versions("torch").get("torch")) is None else f", torch {version}"
    return (
        f"ustat_pg {__version__} (code {code_version()}, NumPy {np.__version__}, "
        f"numba {numba.__version__}{torch})"
    )


class Store:
    """A folder of finished blocks.

    Arguments:
        folder: folder, made if it is not there.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.set_aside: list[str] = []
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.folder):
                pass
        except OSError as error:
            raise StoreError(
                f"{folder}: results cannot be written here: {error.strerror}"
            ) from None

    def key(self, description: dict[str, Any]) -> str:
        """The name of what a description asks for."""
        made_by = [code_version()]
        made_by += (
            [versions("torch").get("torch", "")] if description.get("engine") in ON_TORCH else []
        )
        text = json.dumps([*made_by, description], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    def get(self, description: dict[str, Any]) -> dict[str, Any] | None:
        """The stored result, or None. A file that is not it is kept under another name and reported."""
        path = self.folder / f"{self.key(description)}.json"
        if not path.exists():
            return None
        try:
            record = read_json(path)
            result = record["result"]
            sound = record["description"] == json.loads(json.dumps(description)) and record[
                "checksum"
            ] == _checksum(result)
        except (ValueError, KeyError, TypeError):
            sound = False
        if not sound:
            self._aside(path)
            return None
        return dict(result)

    def _aside(self, path: Path) -> None:
        """Keep a damaged or foreign file, out of the way."""
        number = 0
        while (aside := path.with_suffix(f".damaged{number or ''}")).exists():
            number += 1
        try:
            path.replace(aside)
        except OSError as error:
            raise StoreError(f"{path}: damaged, and cannot be set aside: {error}") from None
        self.set_aside.append(str(aside))

    def put(self, description: dict[str, Any], result: dict[str, Any]) -> None:
        """Keep a result: written to a temporary name, then renamed."""
        record = {"description": description, "checksum": _checksum(result), "result": result}
        path = self.folder / f"{self.key(description)}.json"
        # One that a power failure cuts off does not have its checksum: it is found out, and made again.
        self.write(path, json.dumps(record), lasting=False)

    def write(self, path: Path, text: str, lasting: bool = True) -> None:
        """Write a file whole or not at all.

        Arguments:
            path: the file.
            text: what it holds from now on.
            lasting: whether it is waited for until a power failure, too, leaves it whole.
        """
        try:
            with whole_file(path, lasting=lasting) as file:
                file.write(text.encode())
        except OSError as error:
            raise StoreError(
                f"{path}: cannot be written: {error.strerror}; finished blocks are kept, "
                "and the same command continues from them"
            ) from None


class Memory(Store):
    """A store that does not read or save anything."""

    def __init__(self) -> None:
        self.set_aside = []

    def key(self, description: dict[str, Any]) -> str:
        """The description itself: it outlives no change of code."""
        return json.dumps(description, sort_keys=True)

    def get(self, description: dict[str, Any]) -> dict[str, Any] | None:
        """Nothing."""

    def put(self, description: dict[str, Any], result: dict[str, Any]) -> None:
        """Drop a result."""


def _checksum(result: Any) -> str:
    return digest(json.dumps(result, sort_keys=True))
