"""RLinf's own advantages, by the function that its workers call, as where it reasons."""

from typing import Optional

import torch

from .record import Refused, flat, part, size_of

FUNCTION = "rlinf.algorithms.registry.calculate_adv_and_returns"

FUNCTIONS = {name: f"compute_{name}_advantages" for name in ("grpo", "reinpp", "raw")}

known = part("rlinf/utils/utils.py", "masked_mean", "_reduce_sum", "_reduce_mean", torch=torch)
known |= part("rlinf/algorithms/advantages.py", *FUNCTIONS.values(), **known, Optional=Optional)
known |= part(
    "rlinf/algorithms/utils.py",
    *("preprocess_reasoning_advantages_inputs", "postprocess_reasoning_advantages_outputs"),
    **known,
)
known |= part(
    "rlinf/algorithms/registry.py",
    "calculate_adv_and_returns",
    **known,
    get_adv_and_returns=lambda name: known[FUNCTIONS[name]],
)

WANTED = {
    "gae": "a critic's values are wanted",
    "opd": "a teacher is wanted",
    "grpo_dynamic": "turns are wanted",
    "grpo_video": "frames are wanted",
}


def advantages(options, batch):
    name = options["algorithm.adv_type"]
    if name in WANTED:
        raise Refused(WANTED[name])
    size = size_of(batch)
    rewards, _, mask = flat(batch)
    try:
        answer, _ = known["calculate_adv_and_returns"](
            task_type="reasoning",
            adv_type=name,
            rewards=rewards,
            loss_mask=mask.bool(),
            group_size=size,
            use_reinpp_baseline=options["algorithm.use_reinpp_baseline"] == "true",
            normalize_advantages=options["algorithm.normalize_advantages"] == "true",
        )
    except IndexError as error:
        raise Refused(f"{type(error).__name__}: {error}") from None
    return [group.tolist() for group in answer[:, 0].split(size)]
