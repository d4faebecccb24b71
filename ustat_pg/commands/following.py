"""Following a file that another program writes: it is read again whenever it has grown."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

from ..validation import InputError

SECONDS = 2.0
"""Between two looks at a file."""


def follow(path: Path, show: Callable[[], None]) -> None:
    """Show a file, or a folder of files, now and after each change, until an interruption.

    If the file cannot be read yet, the function says so once and waits.
    """
    said, before = None, None
    while True:
        if (now := _state(path)) != before:
            before = now
            try:
                show()
                said = None
            except InputError as error:
                if str(error) != said:
                    said = str(error)
                    print(f"waiting: {said}", file=sys.stderr, flush=True)
        time.sleep(SECONDS)


def _state(path: Path) -> list[tuple[str, int, int]]:
    """The properties of a file, or of the files in a folder, that change when they are written."""
    files = [path] if path.is_file() else sorted(path.rglob("*"))
    stats = [(str(file), file.stat()) for file in files if file.is_file()]
    return [(name, stat.st_size, stat.st_mtime_ns) for name, stat in stats]
