"""Language models: rollouts, scores, and what one pool of them says about every group size.

A pool of N rollouts for each prompt, rewarded by a verifier and scored by the model that wrote them,
holds every moment of the closed forms. So one pool gives the gradient MSE of every estimator at every
group size, the best group size, and what it costs not to know the critic.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ..validation import needed

if TYPE_CHECKING:
    from .prompt_sampler import PromptSampler
    from .trl.monitor import NoiseMonitor
    from .trl.prompt_trainer import PromptTrainer
    from .trl.trainers import EstimatorTrainer
    from .trl.two_stage_trainer import TwoStageTrainer

_HOME = {
    "EstimatorTrainer": "trl.trainers",
    "NoiseMonitor": "trl.monitor",
    "PromptSampler": "prompt_sampler",
    "PromptTrainer": "trl.prompt_trainer",
    "TwoStageTrainer": "trl.two_stage_trainer",
}

__all__ = [
    "EstimatorTrainer",
    "NoiseMonitor",
    "PromptSampler",
    "PromptTrainer",
    "TwoStageTrainer",
]


def __getattr__(name: str) -> Any:
    """Late, so that what needs no torch does not import it."""
    if name in _HOME:
        with needed(name, "llm"):
            return getattr(import_module(f".{_HOME[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
