"""The noise of a training's own steps, in any loop; it needs only torch and NumPy."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ..validation import needed

if TYPE_CHECKING:
    from .alarms import Alarms
    from .completions import Alternative
    from .estimate import NoiseEstimate
    from .meter import NoiseMeter
    from .turns import EpisodePool, TurnsOfPool, turns_of_pool

_HOME = {
    "Alarms": "alarms",
    "Alternative": "completions",
    "EpisodePool": "turns",
    "NoiseEstimate": "estimate",
    "NoiseMeter": "meter",
    "TurnsOfPool": "turns",
    "turns_of_pool": "turns",
}

__all__ = [
    "Alarms",
    "Alternative",
    "EpisodePool",
    "NoiseEstimate",
    "NoiseMeter",
    "TurnsOfPool",
    "turns_of_pool",
]


def __getattr__(name: str) -> Any:
    """Import late, so that modules without torch do not import it."""
    if name in _HOME:
        with needed(name, "torch"):
            return getattr(import_module(f".{_HOME[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
