"""Run what frameworks compare over turns on fixed episodes, and keep the numbers as data.

``python -m tests.conformance.turns verl-agent CHECKOUT`` writes ``tests/data/turns/verl-agent.json``;
agent-lightning has verl's checkout behind its own. Each function below is a framework's: the advantages of
every turn of a batch of groups, under these values of the options by their full names.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import torch
from sphinx.ext.autodoc.mock import mock

from ustat_pg.catalogue import catalogue
from ustat_pg.catalogue.turns import turn_rows

from .record import foreign, part, passage

DATA = Path(__file__).parents[1] / "data" / "turns"

REWARDS = [
    [[0.0, 0.0, 1.0], [0.0, 1.0], [0.5], [0.0, 0.0, 0.25]],
    [[1.0], [0.0, 1.0, 0.0], [0.0, 0.0]],
]
"""Rewards of turns, of the episodes of two groups."""

STATES = [
    [[0, 1, 2], [0, 1], [0], [0, 2, 1]],
    [[0], [0, 1, 0], [0, 1]],
]
"""The state that each turn is taken in; one is met twice by an episode."""

Advantages = list[list[list[float]]]

GROUP = [g for g, group in enumerate(REWARDS) for episode in group for _ in episode]
EPISODE = [(g, i) for g, group in enumerate(REWARDS) for i, each in enumerate(group) for _ in each]
NAMES = np.array([f"{g}-{i}" for g, i in EPISODE])
RETURNS = torch.tensor([sum(REWARDS[g][i]) for g, i in EPISODE])
LAST = np.array([*(NAMES[1:] != NAMES[:-1]), True])
"""For every turn in a row: its group, its episode, the episode's return, and whether it is the last."""


def by_episode(values: Any) -> Advantages:
    """Numbers of all turns in a row, by group and episode."""
    rest = iter(np.asarray(values, dtype=float).ravel().tolist())
    return [[[next(rest) for _ in episode] for episode in group] for group in REWARDS]


def verl_agent(options: dict[str, str]) -> Advantages:
    """By what compute_advantage of its trainer calls."""
    name, flag = options["algorithm.adv_estimator"], options["algorithm.norm_adv_by_std_in_grpo"]
    mask, index = torch.ones(len(GROUP), 1), np.array(GROUP)
    if name == "gigpo":
        core = foreign("gigpo.core_gigpo", "verl")
        flat = np.array([r for group in REWARDS for episode in group for r in episode])
        batch = SimpleNamespace(
            non_tensor_batch={
                "rewards": flat,
                "traj_uid": NAMES,
                "active_masks": np.ones(len(flat)),
            },
            batch={"input_ids": mask},
        )
        gamma = float(options["algorithm.gamma"])
        result, _ = core.compute_gigpo_outcome_advantage(
            RETURNS[:, None].clone(),
            core.compute_step_discounted_returns(batch, gamma),
            mask,
            np.array([s for group in STATES for episode in group for s in episode]),
            index,
            NAMES,
            step_advantage_w=float(options["algorithm.gigpo.step_advantage_w"]),
            mode=options["algorithm.gigpo.mode"],
        )
        return by_episode(result)
    function = f"compute_{name}_outcome_advantage"
    known = part(
        "verl/trainer/ppo/core_algos.py", function, torch=torch, np=np, defaultdict=defaultdict
    )
    more = {"norm_adv_by_std_in_grpo": flag == "true"} if name == "grpo" else {}
    result, _ = known[function](RETURNS[:, None].clone(), mask, index, NAMES, **more)
    return by_episode(result)


class Rows:
    """As much of verl's DataProto as rollout-level advantages take."""

    def __init__(self, batch: dict[str, Any], names: dict[str, Any]) -> None:
        self.batch, self.non_tensor_batch = batch, names

    def __len__(self) -> int:
        return len(self.batch["response_mask"])

    def __getitem__(self, rows: list[int]) -> Rows:
        return Rows(
            {name: each[rows] for name, each in self.batch.items()},
            {name: each[rows] for name, each in self.non_tensor_batch.items()},
        )


def agent_lightning(options: dict[str, str]) -> Advantages:
    """By its advantages of rollouts, or by verl's of rows, as its trainer has them."""
    name = options["algorithm.adv_estimator"]
    function = f"compute_{name}_outcome_advantage"
    file = Path(sys.path[1]) / "verl/trainer/ppo/core_algos.py"
    verl = part(str(file), function, torch=torch, np=np, defaultdict=defaultdict)[function]

    def compute_advantage(rows: Rows, norm_adv_by_std_in_grpo: bool, **unread: Any) -> Rows:
        more = {"norm_adv_by_std_in_grpo": norm_adv_by_std_in_grpo} if name == "grpo" else {}
        rows.batch["advantages"], _ = verl(
            rows.batch["token_level_rewards"].clone(),
            rows.batch["response_mask"],
            rows.non_tensor_batch["uid"],
            **more,
        )
        return rows

    whole = "compute_rollout_level_advantage"
    helpers = ("_required_non_tensor", "_required_tensor", "_validate_same_uid")
    helpers += ("_validate_same_reward", "_extract_rollout_scalars", "_broadcast_rollout_scalars")
    own = part(
        "agentlightning/verl/rollout_level_advantage.py",
        *(whole, *helpers),
        torch=torch,
        compute_advantage=compute_advantage,
    )
    rows = Rows(
        {"response_mask": torch.ones(len(GROUP), 1), "token_level_rewards": RETURNS[:, None]},
        {"rollout_id_list": NAMES, "uid": np.array(GROUP)},
    )
    asked: dict[str, Any] = {"adv_estimator": name, "gamma": 1.0, "lam": 1.0, "num_repeat": 1}
    asked["norm_adv_by_std_in_grpo"] = options["algorithm.norm_adv_by_std_in_grpo"] == "true"
    if options["algorithm.enable_rollout_level_advantage"] == "true":
        rows, _ = own[whole](rows, **asked)
    else:
        rows = compute_advantage(rows, **asked)
    return by_episode(rows.batch["advantages"])


def rllm(options: dict[str, str]) -> Advantages:
    """By its unified trainer's function of trajectory groups."""
    module = foreign("rllm.trainer.algorithms.advantage", "rllm.trainer.algorithms.performance")
    groups = [
        SimpleNamespace(
            group_role="agent",
            trajectories=[
                SimpleNamespace(
                    reward=sum(episode), steps=[SimpleNamespace(advantage=None) for _ in episode]
                )
                for episode in group
            ],
        )
        for group in REWARDS
    ]
    configuration = SimpleNamespace(
        stepwise_advantage_mode="broadcast",
        use_precomputed_advantage=False,
        estimator=module.rLLMAdvantageEstimator(options["adv_estimator"]),
        estimator_map={},
        norm_adv_by_std_in_grpo=options["norm_adv_by_std_in_grpo"] == "true",
    )
    module.collect_reward_and_advantage_from_trajectory_groups(groups, configuration)
    return [
        [[step.advantage for step in each.steps] for each in group.trajectories] for group in groups
    ]


def skyrl(options: dict[str, str]) -> Advantages:
    """By its trainer's own lines on step-wise trajectories, which read the last step's reward."""
    from .skyrl import utils

    lines = passage(
        "skyrl/train/trainer.py",
        'is_last_step = torch.tensor(data.metadata["is_last_step"]',
        "returns = last_step_returns[traj_ids] * response_mask_float",
    )

    class Data(dict):  # type: ignore[type-arg]
        metadata: ClassVar = {"is_last_step": LAST.tolist(), "uids": [str(g) for g in GROUP]}

    algorithm = SimpleNamespace(
        advantage_estimator=options["trainer.algorithm.advantage_estimator"],
        grpo_norm_by_std=options["trainer.algorithm.grpo_norm_by_std"] == "true",
        gamma=1.0,
        lambd=1.0,
    )
    this = SimpleNamespace(cfg=SimpleNamespace(trainer=SimpleNamespace(algorithm=algorithm)))
    data = Data(response_mask=torch.ones(len(GROUP), 1), values=None)
    scope: dict[str, Any] = {
        "self": this,
        "data": data,
        "torch": torch,
        "np": np,
        "ppo_utils": SimpleNamespace(**utils),
        "token_level_rewards": torch.where(torch.tensor(LAST), RETURNS, 7.0)[:, None],
    }
    with mock(["loguru"]):
        exec(lines, scope)
    return by_episode(scope["advantages"])


def nemo_rl(options: dict[str, str]) -> Advantages:
    """By its estimator of the episodes' total rewards."""
    from .nemo_rl import known

    names = ("use_leave_one_out_baseline", "normalize_rewards")
    flags = {name: options[f"grpo.adv_estimator.{name}"] == "true" for name in names}
    estimator = known["GRPOAdvantageEstimator"](SimpleNamespace(**flags), None)
    result = estimator.compute_advantage(
        torch.tensor(GROUP)[LAST][:, None], RETURNS[LAST], torch.ones(int(LAST.sum()), 3)
    )
    rows = iter(result.tolist())
    return [[next(rows)[: len(episode)] for episode in group] for group in REWARDS]


def prime_rl(options: dict[str, str]) -> Advantages:
    """By its algorithm's scoring of a group of episodes."""
    folder = "src/prime_rl/orchestrator/algo"
    known = part(f"{folder}/routing.py", "assign_advantages")
    known = part(f"{folder}/base.py", "iter_trainable_traces", **known)
    known = part(f"{folder}/grpo.py", "GRPOAlgorithm", Algorithm=object, torch=torch, **known)
    owner, answers = SimpleNamespace(length_penalty=None), []
    for group in REWARDS:
        traces = [
            SimpleNamespace(
                reward=sum(episode),
                has_error=False,
                agent=SimpleNamespace(trainable=True, name="policy"),
                nodes=[SimpleNamespace(mask=[True], token_ids=[1]) for _ in episode],
            )
            for episode in group
        ]
        episodes = [SimpleNamespace(traces=[trace]) for trace in traces]
        asyncio.run(known["GRPOAlgorithm"].score_group(owner, episodes))
        answers.append([[node.advantages[0] for node in trace.nodes] for trace in traces])
    return answers


def trinity(options: dict[str, str]) -> Advantages:
    """By its operators of the explorer's steps; that of GRPO reads the last step's reward."""
    from .trinity import KIND, MARK, OPTIONS, algorithm, experience, made_of

    gigpo = options[MARK + KIND] == "gigpo"
    own = ("fnorm", "gamma", "omega") if gigpo else ("std_cal_level", "enable_step_norm")
    given = {name: options[name] for name in options if name.rpartition(".")[2] in (*own, KIND)}
    options = {**{each.name: each.default or "none" for each in OPTIONS.values()}, **given}
    made, arguments = made_of(algorithm.ADVANTAGE_FN, KIND, options)
    steps = [
        experience.Experience(
            eid=experience.EID(batch=0, task=g, run=i, step=t),
            tokens=[0, 0],
            logprobs=[-0.5],
            reward=sum(episode) if t + 1 == len(episode) else 7.0,
            info={"step_reward": reward, "env_state_hash": (g, STATES[g][i][t])} if gigpo else {},
        )
        for g, group in enumerate(REWARDS)
        for i, episode in enumerate(group)
        for t, reward in enumerate(episode)
    ]
    made(**arguments).process(steps)
    return by_episode([each.advantages[0].item() for each in steps])


DRIVERS: dict[str, Callable[[dict[str, str]], Advantages]] = {
    each.__name__.replace("_", "-"): each
    for each in (verl_agent, agent_lightning, rllm, skyrl, nemo_rl, prime_rl, trinity)
}


def chosen(name: str) -> list[dict[str, str]]:
    """Every choice of values that a framework's rows over turns look at; γ is .9, weights are 2."""
    rows = turn_rows()[name]
    options = catalogue().frameworks[name].options
    asked = {option: options[option] for row in rows for option in row.when}
    values = {option.name: option.default or "none" for option in options.values()}
    values |= {each.discount: "0.9" for row in rows for each in row.terms if each.discount}
    values |= {each.times: "2.0" for row in rows for each in row.terms if each.times in options}
    choices = (
        {**values, **dict(zip(asked, each, strict=True))}
        for each in product(*(o.values for o in asked.values()))
    )
    return [choice for choice in choices if any(row.fits(choice) for row in rows)]


def write(name: str, *checkouts: str) -> Path:
    """Record a framework's answers, a line for each row."""
    sys.path[:0] = checkouts
    framework, rows = catalogue().frameworks[name], turn_rows()[name]
    lines = []
    for values in chosen(name):
        [place] = [i for i, row in enumerate(rows) if row.fits(values)]
        answer = [[[round(a, 6) for a in each] for each in g] for g in DRIVERS[name](values)]
        lines.append(json.dumps({"row": place, "advantages": answer}))
    asked = ["git", "-C", checkouts[0], "rev-parse", "HEAD"]
    found = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()
    head = {"repository": framework.repository, "commit": found or framework.commit}
    path = DATA / f"{name}.json"
    path.parent.mkdir(exist_ok=True)
    runs = ",\n".join(sorted(set(lines)))
    path.write_text(f'{json.dumps(head, indent=0)[:-2]},\n"runs": [\n{runs}\n]\n}}\n', "utf-8")
    return path


if __name__ == "__main__":
    print(write(*sys.argv[1:]))
