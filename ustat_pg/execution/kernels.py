"""The kernels of CUDA devices that are kept on disk between processes.

numba's own cache has one index of all kernels of a function. If several processes write it at once, a kernel
is lost, or the index names the file of another one. Here each kernel is a file of its own, written whole,
in the folder of its source's version (:mod:`ustat_pg.execution.compiled`).
"""

from __future__ import annotations

import gc
import pickle
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import wraps
from pathlib import Path
from threading import Lock
from typing import Any

from ..files.digests import digest
from ..files.whole import versions, whole_file
from .compiled import folder


class KeptKernels:
    """The kernels of one function, in the form of a cache of numba.

    A file's name is a digest of the function's name, the constants in its closure, the options, the
    arguments' types, the device's compute capability and the versions of the compilers. A damaged file is
    made again; where nothing can be written, nothing is kept.

    Arguments:
        function: the source of the kernels. The values in its closure have representations that are equal
            in all processes.
        options: the options of the compilation.
    """

    def __init__(self, function: Callable[..., Any], options: Mapping[str, Any]) -> None:
        constants = [cell.cell_contents for cell in function.__closure__ or ()]
        compilers = versions("numba", "numba-cuda")
        self.cache_path = folder(Path(function.__code__.co_filename))
        self._source = repr((function.__qualname__, constants, sorted(options.items()), compilers))

    def _file(self, types: Any, compiler: Any) -> Path:
        name = digest(self._source, repr(types), repr(compiler.magic_tuple()))
        return Path(self.cache_path) / f"{name}.kernel"

    def load_overload(self, types: Any, target: Any) -> Any:
        """The kernel for arguments of these types on the current device, or None."""
        if not self.cache_path:
            return None
        try:
            # The compressed form has a checksum.
            content = zlib.decompress(self._file(types, target.codegen()).read_bytes())
        except (OSError, zlib.error):
            return None
        return pickle.loads(content)

    def save_overload(self, types: Any, kernel: Any) -> None:
        """Keep a kernel."""
        if not self.cache_path:
            return
        file, content = self._file(types, kernel.codegen), zlib.compress(pickle.dumps(kernel), 1)
        with suppress(OSError), whole_file(file, lasting=False) as kept:
            kept.write(content)


def one_at_a_time(function: Callable[..., Any]) -> Callable[..., Any]:
    """A compiler that threads call one after another: a second thread finds what the first one made.

    Python's collector of garbage waits: it would take a third of the time, because a compiler makes so
    many small objects.
    """
    lock = Lock()

    @wraps(function)
    def alone(*arguments: Any) -> Any:
        with lock:
            collects = gc.isenabled()
            gc.disable()
            try:
                return function(*arguments)
            finally:
                if collects:
                    gc.enable()

    return alone
