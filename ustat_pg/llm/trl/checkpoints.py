"""The window of a monitor as one file in a checkpoint's folder, beside ``trainer_state.json``."""

from __future__ import annotations

import gzip
import hashlib
import json
import zlib
from pathlib import Path
from typing import Any

from ...files.whole import whole_file
from ...validation import InputError

FILE = "noise_monitor.json.gz"
"""Its name."""


def packed(state: dict[str, Any]) -> bytes:
    """A state of numbers, lists and names, to the last digit."""
    return gzip.compress(json.dumps(state).encode(), 6, mtime=0)


def digest(data: bytes) -> str:
    """Marks that distinguish one window from another, and from a damaged one."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def write(folder: Path, data: bytes) -> None:
    """Write the file whole, or not at all; nothing where the trainer has taken the checkpoint away again."""
    if folder.is_dir():
        with whole_file(folder / FILE, lasting=False) as file:
            file.write(data)


def read(folder: Path, wanted: str) -> dict[str, Any]:
    """The state of the file whose digest is ``wanted``.

    Raises:
        InputError: there is none, or it is another or damaged.
    """
    try:
        data = (folder / FILE).read_bytes()
        if digest(data) != wanted:
            raise ValueError("it differs from the saved one")
        state = json.loads(gzip.decompress(data))
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise InputError(f"the checkpoint has no usable {FILE} ({error})") from None
    return dict(state)
