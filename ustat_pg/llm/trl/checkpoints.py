"""The file with a monitor's window in a checkpoint's folder, next to ``trainer_state.json``."""

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
"""The file's name."""


def packed(state: dict[str, Any]) -> bytes:
    """A state of numbers, lists and names as bytes, without rounding."""
    return gzip.compress(json.dumps(state).encode(), 6, mtime=0)


def digest(data: bytes) -> str:
    """The digest that identifies a window and shows damage."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def write(folder: Path, data: bytes) -> None:
    """Write the whole file or nothing; nothing if the trainer has removed the checkpoint."""
    if folder.is_dir():
        with whole_file(folder / FILE, lasting=False) as file:
            file.write(data)


def read(folder: Path, wanted: str) -> dict[str, Any]:
    """The state in the file, if the digest is ``wanted``.

    Raises:
        InputError: the file is missing, different or damaged.
    """
    try:
        data = (folder / FILE).read_bytes()
        if digest(data) != wanted:
            raise ValueError("it differs from the saved one")
        state = json.loads(gzip.decompress(data))
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise InputError(f"the checkpoint has no usable {FILE} ({error})") from None
    return dict(state)
