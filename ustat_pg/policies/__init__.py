"""Policies, which map parameters and a context to probabilities and scores."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from ..validation import InputError
from .outputs import OutputSpace
from .softmax import ArmLinearSoftmax, SharedLinearSoftmax, SoftmaxPolicy, TabularSoftmax
from .tabulated import TabulatedPolicy, WeightedScores
from .tokens import PrefixSoftmax

if TYPE_CHECKING:
    from .transformer import TransformerPolicy as TransformerPolicy

__all__ = [
    "ArmLinearSoftmax",
    "OutputSpace",
    "PrefixSoftmax",
    "SharedLinearSoftmax",
    "SoftmaxPolicy",
    "TabularSoftmax",
    "TabulatedPolicy",
    "WeightedScores",
]
"""``TransformerPolicy`` is here too, but not in a star import, because it needs torch."""


def __getattr__(name: str) -> Any:
    # The import is late, because torch takes seconds to import and the library works without it.
    if name != "TransformerPolicy":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if find_spec("torch") is None:
        raise InputError("TransformerPolicy needs torch: pip install 'ustat_pg[torch]'")
    return import_module(".transformer", __name__).TransformerPolicy
