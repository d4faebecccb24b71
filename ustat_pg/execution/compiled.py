"""The compilation of bodies, and the folders of compiled code.

numba caches a compiled function by its file, so it would not notice a change in another file with a function
that it calls. Here the functions of a file are cached in a folder named by a hash of that file and of all its
imports. So a cache never survives a change, bodies can call each other across files, and all processes of one
machine share the folders.

The kernels of devices are in the same folders (:mod:`ustat_pg.execution.kernels`).

The folders are in ``NUMBA_CACHE_DIR``, else next to the package, else in the user's cache; if none of these
is writable, each process compiles for itself.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from functools import cache, partial
from pathlib import Path
from threading import Lock
from typing import Any

from numba import config, njit
from numba.core import types
from numba.core.compiler import Compiler
from numba.extending import intrinsic
from platformdirs import user_cache_path

from ..files.digests import source_digest

KEPT_SECONDS = 7 * 24 * 3600
"""Folders of other versions that are older than this are removed."""


@cache
def folder(file: Path) -> str:
    """The folder for the compiled code of this version of a file; empty if there is none."""
    settings: Any = config
    name = f"ustat_pg-{source_digest(file)}"
    beside, users = Path(__file__).parent / "__pycache__", user_cache_path("ustat_pg")
    for place in filter(None, (settings.CACHE_DIR, beside, users)):
        found = Path(place) / name
        try:
            found.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=found).close()
            os.utime(found)
            # The digest's form is checked, because other folders may begin with this name.
            for other in found.parent.glob("ustat_pg-" + 16 * "[0-9a-f]"):
                if time.time() - other.stat().st_mtime > KEPT_SECONDS:
                    shutil.rmtree(other, ignore_errors=True)
        except OSError:
            continue
        return str(found)
    return ""


_SETTINGS = Lock()
"""The lock for changes of numba's settings, because a body may be compiled in any thread."""


class Apart(Compiler):
    """A compiler that assumes that no two arguments of a body are parts of one array."""

    def __init__(self, *arguments: Any) -> None:
        *others, flags, locals_ = arguments
        flags.noalias = True
        super().__init__(*others, flags, locals_)  # type: ignore[call-arg]


def body(function: Any = None, *, inline: bool = False, apart: bool = False) -> Any:
    """Compile a body: without the interpreter lock, single-threaded, kept between processes.

    Arguments:
        function: plain arithmetic on numbers, arrays and tuples of them.
        inline: whether its code is copied into each caller.
        apart: promises that no array it writes to is one of its other arguments.
    """
    if function is None:
        return partial(body, inline=inline, apart=apart)
    settings: Any = config
    options: Any = {"nogil": True, "error_model": "numpy", "forceinline": inline}
    if apart:
        options |= {"pipeline_class": Apart, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    with _SETTINGS:
        before, kept = settings.CACHE_DIR, folder(Path(function.__code__.co_filename))
        # numba reads the folder here; other libraries' functions stay where they are kept.
        settings.CACHE_DIR = kept
        try:
            return njit(cache=bool(kept) and not apart, **options)(function)
        finally:
            settings.CACHE_DIR = before


@intrinsic
def _fma(context: Any, a: Any, b: Any, c: Any) -> Any:

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.fma(*arguments)

    return types.float64(types.float64, types.float64, types.float64), code


def _plain(a: float, b: float, c: float) -> float:
    return a * b + c


fma = _plain if config.DISABLE_JIT else _fma  # type: ignore[attr-defined]
"""a b + c with one rounding, in compiled bodies of the CPU: one instruction, and the same bits on a
machine that has none. Where numba is told to compile nothing, with two roundings."""
