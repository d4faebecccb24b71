"""Files of a run's folder: whole or not there."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..reading import json_value, read_json, read_text
from ..validation import InputError
from ..whole_files import whole_file

__all__ = ["append", "keep", "lines", "read_status", "write", "write_status"]


def write(path: Path, text: str) -> None:
    """Whole or not at all."""
    with whole_file(path) as file:
        file.write(text.encode())


def write_status(folder: Path, status: Mapping[str, Any]) -> None:
    write(folder / "status.json", json.dumps(status, indent=1) + "\n")


def read_status(folder: Path) -> dict[str, Any]:
    try:
        found = read_json(folder / "status.json")
    except InputError:
        return {}
    return found if isinstance(found, dict) else {}


def lines(path: Path) -> list[dict[str, Any]]:
    """The records of a file of lines; a torn last one is left out."""
    found = []
    try:
        text = read_text(path)
    except InputError:
        return []
    for line in text.splitlines():
        with suppress(InputError):
            found.append(json_value(line, path))
    return found


def keep(path: Path, kept: Callable[[dict[str, Any]], bool]) -> list[dict[str, Any]]:
    """Leave out the records that a run which goes back will write again."""
    found = [record for record in lines(path) if kept(record)]
    write(path, "".join(json.dumps(record) + "\n" for record in found))
    return found


def append(path: Path, record: Mapping[str, Any]) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")
        file.flush()
        os.fsync(file.fileno())
