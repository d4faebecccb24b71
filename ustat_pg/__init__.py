"""Checks, result by result, the theory of GRPO as a U-statistic, and turns it into advice.

The public names load on first use, so that ``import ustat_pg`` stays fast.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ._version import __version__

if TYPE_CHECKING:
    from .commands.advise import advise_problem
    from .commands.explain import explain
    from .comparison import compare
    from .llm.advise import advise_model, advise_pool
    from .moments import Moments
    from .predictions import gradient_covariance, gradient_mse, group_size_advice
    from .problems import SoftmaxBandit, load_problem
    from .validation import InputError

_HOME = {
    "InputError": "validation",
    "Moments": "moments",
    "SoftmaxBandit": "problems",
    "advise_model": "llm.advise",
    "advise_pool": "llm.advise",
    "advise_problem": "commands.advise",
    "compare": "comparison",
    "explain": "commands.explain",
    "gradient_covariance": "predictions",
    "gradient_mse": "predictions",
    "group_size_advice": "predictions",
    "load_problem": "problems",
}

__all__ = [
    "InputError",
    "Moments",
    "SoftmaxBandit",
    "__version__",
    "advise_model",
    "advise_pool",
    "advise_problem",
    "compare",
    "explain",
    "gradient_covariance",
    "gradient_mse",
    "group_size_advice",
    "load_problem",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f".{_HOME[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
