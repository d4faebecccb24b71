"""Files that are there whole or not at all, and the versions of what wrote them."""

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
    """A file to write, which takes the place of ``path`` once it is whole; until then that stays.

    Arguments:
        path: the file.
        lasting: whether it is waited for until a power failure, too, leaves it whole.
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
    """Python's version, and those of the packages that are installed, by name."""
    installed = {"python": platform.python_version()}
    for name in packages:
        with suppress(PackageNotFoundError):
            installed[name] = version(name)
    return installed
