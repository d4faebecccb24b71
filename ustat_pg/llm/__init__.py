"""Language models: rollouts, scores, and what one pool of them says about every group size.

A pool of N rollouts for each prompt, rewarded by a verifier and scored by the model that wrote them,
holds every moment of the closed forms. So one pool gives the gradient MSE of every baseline at every
group size, the best group size, and what it costs not to know the critic.

=============== ====================================================================
module          what
=============== ====================================================================
tasks           prompts and the verifier that rewards completions
arithmetic      the paper's synthetic arithmetic
models          Hugging Face models, from the hub, a folder, or shipped with the library
embedded        the models that ship with the library
generation      draws of completions, by address
vllm_process    draws through vLLM, in a process of its own
rollouts        sampled completions, stored as they come; a user's own file
scores          norms, weighted sums and sketches of scores through hooks, in one pass
scoring         scores of a whole pool, prompt by prompt
scored          the pool once scored: rewards, norms and a few sums
moments         unbiased moments of each prompt, and their means with jackknife errors
constants       c1, c2, c3, the best group size, and how well they are known
summary         what a pool says of its prompts
tables          estimators that go by the number of successes: std, MaxRL, the best table
groups          baselines that weight rollouts, by random groups; the best constant
errors          the moments of every baseline's gradient at each prompt
batches         from one group's gradient to the error, noise and signal of a minibatch
ratios          noise over signal; grpo's error over the oracle's
estimates       error curves of a scored pool, orders of baselines
pipeline        from a model and a task to a scored pool
training        one run's settings as TRL has them, and how far its step is from the theory's
budgets         which group sizes a budget of completions holds
trainers        TRL trainers whose step is the gradient of the theory
trl_trainers    their classes, to be dropped into a script of one's own
runs, grid      one training run as data; grids of them over the group size, planned and supervised
sweep           the process that makes one run, and what users import
records         the files of a run's folder
evaluation      held-out prompts, evaluated by TRL with draws of their own
results         what the runs of a folder have found
paper_runs      the paper's own numbers; its runs are the sweeps in the folder ``presets``
noise           the constants and the critical budget from a training run's own gradients
pairs           what its micro-batches say, by pairs
gradients       what hooks see of one backward pass
looks           a pool that grows until the group size is known well enough
asked_pool      the scored pool that a command's options name or ask for
commands        ``ustat-pg llm mse``; ``advise`` and ``sweep_command`` the other two
=============== ====================================================================
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .noise import NoiseMonitor
    from .trl_trainers import BaselineTrainer, CorrectedGRPOTrainer

_HOME = {
    "BaselineTrainer": "trl_trainers",
    "CorrectedGRPOTrainer": "trl_trainers",
    "NoiseMonitor": "noise",
}

__all__ = ["BaselineTrainer", "CorrectedGRPOTrainer", "NoiseMonitor"]


def __getattr__(name: str) -> Any:
    """Late, so that what needs no torch does not import it."""
    if name in _HOME:
        return getattr(import_module(f".{_HOME[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
