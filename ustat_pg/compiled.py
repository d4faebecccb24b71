"""How bodies are compiled, and where what was compiled is kept.

numba keeps a compiled function by the file that it stands in, so that a change in another file,
whose function it calls, would go unseen. Here all of them are kept in a folder named by a hash of
every file that holds bodies and of what these import: what is kept never outlives a change, bodies call
each other across files, and all processes of one machine share one folder.

The folder lies where ``NUMBA_CACHE_DIR`` says, else beside the package, else in the user's cache;
where none of them can be written to, each process compiles for itself.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any

from numba import config, njit
from numba.core import types
from numba.core.compiler import Compiler
from numba.extending import intrinsic
from numba.misc.appdirs import AppDirs

from .digests import source_digest, sources_of

KEPT_SECONDS = 7 * 24 * 3600
"""Folders of other versions that are older are removed."""


def bodies() -> tuple[Path, ...]:
    """The package's files that hold bodies, and all that these import."""
    files = Path(__file__).resolve().parent.rglob("*.py")
    holders = (file for file in files if "compiled import body" in file.read_text(encoding="utf-8"))
    return sources_of(*holders)


def _folder() -> str:
    """The folder for what this version compiles, empty where there is none."""
    settings: Any = config
    name = f"ustat_pg-{source_digest(*bodies())}"
    beside, users = Path(__file__).parent / "__pycache__", AppDirs("ustat_pg").user_cache_dir
    for place in filter(None, (settings.CACHE_DIR, beside, users)):
        folder = Path(place) / name
        try:
            folder.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=folder).close()
            os.utime(folder)
            # By the digest's form: the place may hold other folders that begin with this name.
            for other in folder.parent.glob("ustat_pg-" + 16 * "[0-9a-f]"):
                if time.time() - other.stat().st_mtime > KEPT_SECONDS:
                    shutil.rmtree(other, ignore_errors=True)
        except OSError:
            continue
        return str(folder)
    return ""


FOLDER = _folder()

_SETTINGS = Lock()
"""Held while numba's settings are changed: a body may be compiled in any thread."""


class Apart(Compiler):
    """A compiler to whom no two arguments of a body are parts of one array."""

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
        before = settings.CACHE_DIR
        # numba reads the folder here; other libraries' functions stay where they are kept.
        settings.CACHE_DIR = FOLDER
        try:
            return njit(cache=bool(FOLDER) and not apart, **options)(function)
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
