"""prime-rl's own advantages, by the algorithms' scoring of a group."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from types import SimpleNamespace

from .record import foreign

FUNCTION = "prime_rl.orchestrator.algo.grpo.GRPOAlgorithm.score_group"

MODULES = {
    name: foreign(f"prime_rl.orchestrator.algo.{name}")
    for name in ("grpo", "max_rl", "rae", "hierarchical_grpo")
}


def advantages(options, batch):
    module = MODULES[options["orchestrator.algo.type"]]
    [algorithm] = [
        each
        for each in vars(module).values()
        if isinstance(each, type)
        and "score_group" in vars(each)
        and each.__module__ == module.__name__
    ]
    owner = SimpleNamespace(
        length_penalty=None, decay=0.9, baselines=defaultdict(float), episode_agents=set()
    )
    answers = []
    for group in batch:
        traces = [trace(float(each)) for each in group]
        episode = SimpleNamespace(traces=traces)
        asyncio.run(algorithm.score_group(owner, [episode]))
        answers.append([each.nodes[0].advantages[0] for each in traces])
    return answers


def trace(reward):
    return SimpleNamespace(
        reward=reward,
        has_error=False,
        agent=SimpleNamespace(trainable=True, name="policy"),
        nodes=[SimpleNamespace(mask=[True], token_ids=[1])],
    )
