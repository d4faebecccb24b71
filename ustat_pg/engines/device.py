"""A CUDA device: its memory, and how kernels are launched on it.

Without a device, tests of small sizes can use numba's simulator, in a process of
their own, with ``NUMBA_ENABLE_CUDASIM=1`` and ``NUMBA_DISABLE_JIT=1``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from inspect import signature
from threading import Barrier, Lock, current_thread, local
from typing import Any, NamedTuple

import numpy as np
from numba import config, cuda

from ..execution.kernels import KeptKernels, one_at_a_time
from ..validation import InputError

MOST_THREADS = 2**18
"""The threads of one launch: as many as the largest devices hold at once."""

SHARED_BYTES = 48 * 1024
"""The shared memory that every device gives a thread block."""

WARP = 32
"""The lanes of a warp. All of them meet at a time, so that no mask is computed."""

_FIRST_CALL = Lock()
"""A lock: numba reports a driver as initialised too early, and a second thread would then fail."""

_SETTINGS: Any = config
# The last chunk of a block is a small grid, so the warning is not useful.
_SETTINGS.CUDA_LOW_OCCUPANCY_WARNINGS = 0


SIMULATED = bool(_SETTINGS.ENABLE_CUDASIM)


if SIMULATED:
    # The simulator has no warps, so its threads synchronise in Python.
    _MEETINGS: dict[tuple[int, int], Barrier] = {}
    _HELD: dict[tuple[int, int], Any] = {}
    _MADE = Lock()
    PATIENCE = 60.0

    def device_function(function: Any) -> Any:
        """A device function, which kernels call."""
        return function

    def _meeting() -> tuple[int, int, Barrier]:
        thread: Any = current_thread()
        block, number = id(thread._manager), thread.thread_id
        with _MADE:
            where = block, number // WARP
            return block, number, _MEETINGS.setdefault(where, Barrier(WARP))

    def meet() -> None:
        """Wait until all lanes of the warp arrive; their writes are then visible."""
        _meeting()[2].wait(PATIENCE)

    def _from(value: Any, other: Callable[[int], int]) -> Any:
        """The value of another lane."""
        block, number, barrier = _meeting()
        _HELD[block, number] = value
        barrier.wait(PATIENCE)
        theirs = _HELD[block, other(number)]
        barrier.wait(PATIENCE)
        return theirs

    def total(value: Any, lanes: int) -> Any:
        """The sum of a number over the lanes of a team; each lane gets the same sum."""
        while lanes > 1:
            lanes //= 2
            value = value + _from(value, lanes.__xor__)
        return value

    def any_lane(value: bool) -> bool:
        """Whether a lane of the warp says so."""
        return bool(total(int(value), WARP))

    def add(array: Any, place: Any, value: Any) -> None:
        """Add to a place that other threads add to."""
        with _MADE:
            array[place] += value

else:
    device_function = cuda.jit(device=True)

    @device_function
    def meet():
        """Wait until all lanes of the warp arrive; their writes are then visible."""
        cuda.syncwarp(0xFFFFFFFF)

    @device_function
    def total(value, lanes):
        """The sum of a number over the lanes of a team; each lane gets the same sum."""
        offset = lanes >> 1
        while offset > 0:
            value += cuda.shfl_xor_sync(0xFFFFFFFF, value, offset)
            offset >>= 1
        return value

    @device_function
    def any_lane(value):
        """Whether a lane of the warp says so."""
        return cuda.any_sync(0xFFFFFFFF, value)

    @device_function
    def add(array, place, value):
        """Add to a place that other threads add to."""
        cuda.atomic.add(array, place, value)


@device_function
def index(i):
    """An unsigned index. It cannot count from the end, so no check of its sign is needed."""
    return np.uint64(i)


@device_function
def short(i):
    """An index of 32 bits. It takes half as many instructions as one of 64 if no part of it is constant."""
    return np.uint32(i)


def device_kernel(function: Any = None, **options: Any) -> Any:
    """Compile a kernel, once for each kind of arguments, and keep it between processes.

    Arguments:
        function: the kernel. Constants in its closure are built in.
        options: further options of ``numba.cuda.jit``.
    """
    if function is None:
        return partial(device_kernel, **options)
    if SIMULATED:
        return cuda.jit(function)
    if "lto" in signature(cuda.jit).parameters:
        # All code is in one module already, which numba-cuda would compile a second time for its linker.
        options["lto"] = False
    made = cuda.jit(function, **options)
    made._cache = KeptKernels(function, options)
    made.compile = one_at_a_time(made.compile)
    return made


def require_device() -> None:
    """Refuse to go on without a device or its simulator."""
    if _SETTINGS.ENABLE_CUDASIM:
        if not _SETTINGS.DISABLE_JIT:
            raise InputError(
                "the CUDA simulator cannot call compiled functions: set NUMBA_DISABLE_JIT=1 and "
                "NUMBA_ENABLE_CUDASIM=1"
            )
        return
    with _FIRST_CALL:
        available = cuda.is_available()
    if not available:
        raise InputError(
            "engine cuda finds no CUDA device that it can use (a driver and numba's CUDA toolkit): "
            "use engine cpu or reference, or, for tests of small sizes, the simulator "
            "(NUMBA_ENABLE_CUDASIM=1 and NUMBA_DISABLE_JIT=1)"
        )


def free_bytes() -> float:
    """Free memory of the current device; infinite in the simulator."""
    return float(cuda.current_context().get_memory_info().free)


_OWN = local()


def stream() -> Any:
    """The thread's own stream of the device, so that blocks of several threads run in parallel."""
    if not hasattr(_OWN, "stream"):
        _OWN.stream = cuda.stream()
    return _OWN.stream


class Price(NamedTuple):
    """The price of a kernel for one shape alone, and what it saves.

    The choice is a function of the work that a plan asks for, and of nothing else: kernels may differ in a
    last bit, so what this machine has compiled before must not count.

    Arguments:
        seconds: those of its compilation.
        saved: nanoseconds that it saves in each unit of work.

    >>> Price(seconds=4.0, saved=0.1).pays(10**10), Price(seconds=4.0, saved=0.1).pays(10**11)
    (False, True)
    """

    seconds: float
    saved: float

    def pays(self, work: float) -> bool:
        """Whether compiling it takes less time than it saves."""
        return self.saved * work >= 1e9 * self.seconds


OUTPUTS = Price(seconds=1.0, saved=0.02)
"""The price of gradients, by outputs: .02 ns or more with the kernel for all shapes, .003 to .006 with one's
own. These numbers, like those below, follow from compiled code and have not been measured.
"""

STEPS = Price(seconds=1.0, saved=0.03)
"""The price of training runs, by steps: .04 to .10 ns with the kernel for all shapes, .01 to .04."""


class Launch(NamedTuple):
    """A kernel with its arguments, and the threads that run it.

    Arguments:
        kernel: a compiled kernel.
        blocks, threads: thread blocks, and the threads of each.
        shared: the bytes of a thread block's shared memory.
        arguments: numbers, and arrays on the device.
    """

    kernel: Any
    blocks: int
    threads: int
    shared: int
    arguments: tuple[Any, ...]

    def run(self) -> None:
        """Start the kernel on the thread's own stream."""
        self.kernel[self.blocks, self.threads, stream(), self.shared](*self.arguments)


def empty(shape: Any, kind: Any = np.float64) -> Any:
    """Uninitialised device memory."""
    return cuda.device_array(shape, kind)


def upload(value: Any) -> Any:
    """A copy of a nested tuple of arrays and numbers, with its arrays on the device."""
    if isinstance(value, np.ndarray):
        return cuda.to_device(np.ascontiguousarray(value))
    if isinstance(value, tuple):
        return type(value)(*(upload(part) for part in value))
    return value


def power_of_2(number: int) -> int:
    """The least power of 2 that is not smaller.

    >>> [power_of_2(number) for number in (1, 2, 3, 8, 9)]
    [1, 2, 4, 8, 16]
    """
    return 1 << (number - 1).bit_length()
