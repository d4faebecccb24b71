"""The paper's training experiments: its own numbers as data, and its runs as sweeps.

The paper (arXiv 2603.01162, section 5.2) states models, data, budgets, group sizes, the number of
runs and the checkpoints. It does not state the optimizer, the learning rate, the number of steps,
the greatest completion length or how the tested answers are drawn: :data:`NOT_STATED` lists what is
chosen here instead, and a result of these sweeps is to be read with that. No run of this size has
been made with this code: the configurations are tested by a dry run, which loads prompts alone and asks
TRL, on small local files in the form of the data sets.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pandas as pd

from .runs import CHECKPOINTS

if TYPE_CHECKING:
    from .grid import Sweep

__all__ = [
    "FIGURE_5",
    "GROUP_SIZES",
    "NOT_STATED",
    "TABLE_2",
    "TABLE_2_OF",
    "gsm8k_sweep",
    "is_papers",
    "math_sweep",
    "table_2",
]

GROUP_SIZES = (4, 8, 16, 32, 64, 128)
"""Figure 5's and Table 2's group sizes."""

_MATH = "DigitalLearningGmbH/MATH-lighteval"

_TABLE_2 = {
    1024: (0.7677, 0.7491, 0.7753, 0.7627, 0.7817, 0.7743),
    2048: (0.7703, 0.7679, 0.7697, 0.7793, 0.7819, 0.7665),
    4096: (0.7691, 0.7713, 0.7701, 0.7673, 0.7703, 0.7757),
}

TABLE_2: Mapping[tuple[int, int], float] = MappingProxyType(
    {
        (budget, size): accuracy
        for budget, row in _TABLE_2.items()
        for size, accuracy in zip(GROUP_SIZES, row, strict=True)
    }
)
"""Final test accuracy on MATH of Qwen2.5-Math-7B by (budget, group size), one run each."""

TABLE_2_OF: Mapping[str, str] = MappingProxyType({"model": "Qwen/Qwen2.5-Math-7B", "task": "math"})
"""Whose accuracies Table 2 has."""

FIGURE_5: Mapping[str, Any] = MappingProxyType(
    {
        "model": "Qwen/Qwen2.5-1.5B-Instruct",
        "task": "gsm8k",
        "budget": 1024,
        "group_sizes": GROUP_SIZES,
        "checkpoints": CHECKPOINTS,
        "seeds": 5,
        "findings": (
            "accuracy rises with the group size and then falls, except at step 200",
            "the best group size is the same at all checkpoints but one",
            "it is smaller than that of Table 2 at the same budget",
            "most differences between group sizes are not significant",
        ),
    }
)
"""What is stated of Figure 5. Its accuracies are drawn and not printed, so none stand here."""

NOT_STATED: Mapping[str, str] = MappingProxyType(
    {
        "trainer": "rloo, whose step is the gradient of the theory",
        "optimizer": "AdamW, as in TRL's default, without clipping of the gradient and without decay",
        "learning rate": "1e-6, constant",
        "steps": "1000",
        "completion length": "at most 512 tokens on GSM8K, 1024 on MATH",
        "test answers": "greedy",
        "prompt": "the question as a chat message with an instruction on how to answer",
        "test set of MATH": (
            "all 5,000 problems: the accuracies of Table 2 differ by multiples of 1/5000"
        ),
    }
)
"""What the paper leaves open, and what the sweeps of this module take."""


def table_2() -> pd.DataFrame:
    """Table 2 as a tidy frame: budget, group_size, accuracy.

    >>> table_2().loc[4].to_dict()
    {'budget': 1024.0, 'group_size': 64.0, 'accuracy': 0.7817}
    """
    return pd.DataFrame(
        [
            {"budget": budget, "group_size": size, "accuracy": accuracy}
            for (budget, size), accuracy in TABLE_2.items()
        ]
    )


def is_papers(of: Mapping[str, Any], model: str, task: str, evaluation: str | None) -> bool:
    """Whether a run has the model and the task, trained and tested on, that the paper's numbers are of.

    Arguments:
        of: :data:`TABLE_2_OF` or :data:`FIGURE_5`.
        model: of the run; a copy in a local folder counts by the folder's name.
        task, evaluation: of the run, as :func:`ustat_pg.llm.tasks.load_task` reads them.

    >>> is_papers(FIGURE_5, "copies/Qwen2.5-1.5B-Instruct", "gsm8k", "gsm8k:split=test")
    True
    >>> is_papers(TABLE_2_OF, "embedded:base", "math", "math")
    False
    """
    names = [str(each).partition(":")[0] for each in (task, evaluation)]
    return PurePath(model).name == PurePath(of["model"]).name and names == [of["task"]] * 2


def gsm8k_sweep(**changes: Any) -> Sweep:
    """Figure 5's runs: six group sizes, five seeds, a budget of 1024.

    Arguments:
        changes: fields of :class:`ustat_pg.llm.grid.Sweep` to set otherwise.

    >>> len(gsm8k_sweep().plan())
    30
    """
    return _sweep(
        {
            "model": FIGURE_5["model"],
            "task": "gsm8k:split=train",
            "evaluation": "gsm8k:split=test",
            "budgets": (1024,),
            "seeds": tuple(range(5)),
            "max_new_tokens": 512,
            "processes": 4,
        }
        | changes
    )


def math_sweep(**changes: Any) -> Sweep:
    """Table 2's runs: six group sizes at three budgets, one run each.

    Arguments:
        changes: fields of :class:`ustat_pg.llm.grid.Sweep` to set otherwise, such as ``task`` for
            another source of the problems.

    >>> sorted({run.budget for run in math_sweep().plan()})
    [1024, 2048, 4096]
    """
    return _sweep(
        {
            "model": TABLE_2_OF["model"],
            "task": f"math:source={_MATH},split=train",
            "evaluation": f"math:source={_MATH},split=test",
            "budgets": tuple(_TABLE_2),
            "seeds": (0,),
            "max_new_tokens": 1024,
            "processes": 8,
            # Whole in float32 for every process, gradients and moments would take four times as much.
            "launch": ("--use_deepspeed", "--zero_stage", "2"),
            "vllm": {"mode": "colocate", "gpu_memory_utilization": 0.2},
        }
        | changes
    )


def _sweep(settings: dict[str, Any]) -> Sweep:
    from .grid import Sweep

    common: dict[str, Any] = {
        "group_sizes": GROUP_SIZES,
        "steps": 1000,
        "learning_rate": 1e-6,
        "checkpoints": CHECKPOINTS,
        "optimizer": "adamw",
        "greedy": True,
        "device": "cuda",
        "bf16": True,
        "checkpointing": True,
        "micro_batch": 8,
        "save_every": 100,
        "vllm": {"mode": "colocate", "gpu_memory_utilization": 0.3},
    }
    return Sweep(**(common | settings))
