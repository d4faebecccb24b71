"""Flow-GRPO's own advantages, by the tracker of its prompts, or its script's line without one."""

from collections import deque

import numpy as np

from .record import part, passage

FUNCTION = "flow_grpo.stat_tracking.PerPromptStatTracker.update"

NAMES = {"np": np, "deque": deque}
Tracker = part("flow_grpo/stat_tracking.py", "PerPromptStatTracker", **NAMES)[
    "PerPromptStatTracker"
]
LINE = compile(
    passage("scripts/train_sd3.py", "advantages = (gathered_rewards['avg'] -", "+ 1e-4)"),
    FUNCTION,
    "exec",
)


def advantages(options, batch):
    sizes = [len(group) for group in batch]
    rewards = np.array([float(z) for group in batch for z in group])
    if options["per_prompt_stat_tracking"] == "true":
        prompts = np.repeat([f"prompt {n}" for n in range(len(batch))], sizes)
        answer = Tracker(options["sample.global_std"] == "true").update(prompts, rewards)
    else:
        names = {"gathered_rewards": {"avg": rewards}}
        exec(LINE, names)
        answer = names["advantages"]
    return [part.tolist() for part in np.split(answer, np.cumsum(sizes)[:-1])]
