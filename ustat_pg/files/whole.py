"""Writing of complete files, and the versions of the programs that write them."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import IO
from uuid import uuid4


@contextmanager
def whole_file(path: Path, *, lasting: bool = True) -> Iterator[IO[bytes]]:
    """A file for writing that replaces ``path`` when it is complete; until then the old file stays.

    Arguments:
        path: the file.
        lasting: whether to wait until the file would survive a power failure.
    """
    temporary = path.with_name(f".{path.name}.{uuid4().hex}")
    try:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            if lasting:
                os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def versions(*packages: str) -> dict[str, str]:
    """The versions of Python and of the installed packages, by name."""
    installed = {"python": platform.python_version()}
    for name in packages:
        with suppress(PackageNotFoundError):
            installed[name] = version(name)
    return installed
