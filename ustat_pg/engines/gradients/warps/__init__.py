"""The warps of the cuda engine: a few lanes of a warp per replication, with sums on the device."""

from .kernels import built_in, kernel
from .one_prompt import one_prompt
from .shapes import KEPT, LINEAR, NORM, PROB, REWARD, Places, Shape, There

__all__ = [
    "KEPT",
    "LINEAR",
    "NORM",
    "PROB",
    "REWARD",
    "Places",
    "Shape",
    "There",
    "built_in",
    "kernel",
    "one_prompt",
]
