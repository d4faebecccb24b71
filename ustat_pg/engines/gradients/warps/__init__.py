"""The warps of the cuda engine: a replication to a few lanes of a warp, its sums added up on the device."""

from .kernels import built_in, kernel
from .shapes import KEPT, NORM, Asked, Shape, There

__all__ = ["KEPT", "NORM", "Asked", "Shape", "There", "built_in", "kernel"]
