"""The warps of the cuda engine: a few lanes of a warp per replication, with sums on the device."""

from .kernels import built_in, kernel
from .shapes import KEPT, NORM, Asked, Shape, There

__all__ = ["KEPT", "NORM", "Asked", "Shape", "There", "built_in", "kernel"]
