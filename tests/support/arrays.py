"""Arrays of every library that advantages take."""

from importlib.util import find_spec

import numpy as np
import pytest

LIBRARIES = ["numpy", "array_api_strict", *(["torch"] if find_spec("torch") else [])]

WAYS = [
    *((library, dtype, None) for library in LIBRARIES for dtype in ("float64", "float32")),
    # A stand-in for a GPU: the strict library refuses to mix arrays of two devices.
    ("array_api_strict", "float64", "device1"),
    *(("torch", half, None) for half in ("float16", "bfloat16") if "torch" in LIBRARIES),
]
"""Libraries, types and devices that are served."""

ROUNDING = {"float64": 1e-14, "float32": 1e-6, "float16": 0.05, "bfloat16": 0.05}
"""What an entry of about 1 may be off, by type."""


def maker(library, dtype="float64", device=None):
    """The maker of a library's arrays of one type from nested lists, on a device of the strict library."""
    xp = pytest.importorskip(library)
    make = xp.tensor if library == "torch" else xp.asarray
    where = {} if device is None else {"device": xp.Device(device)}
    return lambda values: make(values, dtype=getattr(xp, dtype), **where)


def host(array):
    """NumPy's array of the same numbers."""
    if type(array).__module__.startswith("array_api_strict"):
        import array_api_strict as strict

        array = strict.asarray(array, device=strict.Device("CPU_DEVICE"))
    elif type(array).__module__ == "torch":
        array = array.double()
    return np.asarray(array)
