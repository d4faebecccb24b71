"""rLLM's own advantages, by the function that its trainer calls for the groups of one role."""

from types import SimpleNamespace

import numpy as np

from .record import foreign

FUNCTION = "rllm.trainer.algorithms.advantage.get_rllm_adv_estimator"

module = foreign("rllm.trainer.algorithms.advantage")


def advantages(options, batch):
    configuration = SimpleNamespace(
        norm_adv_by_std_in_grpo=options["norm_adv_by_std_in_grpo"] == "true"
    )
    name = module.rLLMAdvantageEstimator(options["adv_estimator"])
    function = module.get_rllm_adv_estimator(name)
    rewards = [np.array(group, dtype=float) for group in batch]
    answers, _ = function(rewards=rewards, algorithm_config=configuration)
    return [np.asarray(each).tolist() for each in answers]
