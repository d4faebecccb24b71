"""The noise of a training's own steps, in any loop: torch and NumPy are all that it takes."""

from __future__ import annotations

from .alarms import Alarms
from .completions import Alternative
from .estimate import NoiseEstimate
from .meter import NoiseMeter

__all__ = ["Alarms", "Alternative", "NoiseEstimate", "NoiseMeter"]
