"""Kernels compiled as a launch would compile them, and their arguments packed as a launch would pack them."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, lru_cache
from threading import local
from time import process_time
from types import SimpleNamespace
from typing import Any
from unittest import mock

from numba import cuda
from numba.cuda import dispatcher as dispatchers

from benchmarks.static import memory
from benchmarks.static.program import Program
from benchmarks.static.ptx import Execution
from benchmarks.static.sass import Machine, assembled
from simulations.engines.runs import cuda as runs
from ustat_pg.engines import device
from ustat_pg.engines.device import Launch
from ustat_pg.engines.gradients import cuda as gradients


@contextmanager
def no_card(capability: tuple[int, int]) -> Iterator[None]:
    """Stand-ins for the doors to a device: its memory, and its compute capability."""
    found = SimpleNamespace(compute_capability=capability)
    with (
        mock.patch.object(device, "upload", memory.upload),
        mock.patch.object(device, "empty", memory.empty),
        mock.patch.object(gradients, "_OWN", local()),
        mock.patch.object(dispatchers, "get_current_device", return_value=found),
    ):
        # What engines keep in a device's memory came through other doors, and must not leave by these.
        forget()
        yield
        forget()


def forget() -> None:
    """Empty the engines' caches of tables in a device's memory."""
    for kept in (*vars(gradients).values(), *vars(runs).values()):
        if hasattr(kept, "cache_clear"):
            kept.cache_clear()


def types_of(launch: Launch) -> tuple[Any, ...]:
    """The arguments' types, as the dispatcher finds them."""
    return tuple(map(launch.kernel.typeof_pyval, launch.arguments))


def packed(launch: Launch, types: Sequence[Any]) -> list[Any]:
    """The kernel's parameters, as the dispatcher packs them."""
    kernel = object.__new__(dispatchers._Kernel)
    kernel.extensions = []
    parameters: list[Any] = []
    for kind, value in zip(types, launch.arguments, strict=True):
        kernel._prepare_args(kind, value, 0, [], parameters)
    # numba-cuda leaves numbers as they are.
    return [ctypes.c_int64(each) if isinstance(each, int) else each for each in parameters]


@dataclass(frozen=True)
class Compiled:
    """A kernel of some types for a compute capability.

    Arguments:
        text: its PTX.
        seconds: numba's processor seconds.
        most_registers: those that ptxas may use; all, if None.
    """

    text: str
    seconds: float
    capability: tuple[int, int]
    most_registers: int | None

    @cached_property
    def program(self) -> Program:
        return Program(self.text)

    @cached_property
    def machine(self) -> Machine:
        return assembled(self.text, self.capability, self.most_registers)


@lru_cache(maxsize=64)
def compiled(kernel: Any, types: tuple[Any, ...], capability: tuple[int, int]) -> Compiled:
    """A kernel, compiled by numba."""
    options = {name: kernel.targetoptions[name] for name in ("fastmath", "opt")}
    start = process_time()
    text, _ = cuda.compile_ptx(kernel.py_func, types, cc=capability, **options)
    seconds = process_time() - start
    return Compiled(text, seconds, capability, kernel.targetoptions.get("max_registers"))


def executed(
    launch: Launch, program: Program, how: type[Execution] = Execution, **options: Any
) -> Any:
    """A launch on the executor; what it writes is in its arguments."""
    parameters = packed(launch, types_of(launch))
    return how(program, parameters, launch.blocks, launch.threads, launch.shared, **options)
