"""The paper's own numbers (arXiv 2603.01162, section 5.2) and what they are of.

Its runs are the sweeps ``figure5.yaml`` and ``table2.yaml`` in :data:`ustat_pg.llm.grid.PRESETS`, which
say what the paper leaves open and what is taken in its place. No run of this size has been made with
this code: the configurations are tested by a dry run, which loads prompts alone and asks TRL, on small
local files in the form of the data sets.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath
from types import MappingProxyType
from typing import Any

import pandas as pd

__all__ = ["FIGURE_5", "GROUP_SIZES", "TABLE_2", "TABLE_2_OF", "is_papers", "table_2"]

GROUP_SIZES = (4, 8, 16, 32, 64, 128)
"""Figure 5's and Table 2's group sizes."""

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
        "checkpoints": (200, 300, 400, 600, 800),
    }
)
"""Where Figure 5 has points. Its accuracies are drawn and not printed, so none stand here."""


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
