"""The paper's own numbers (arXiv 2603.01162, section 5.2) and what they are of.

Its runs are the sweeps ``figure5.yaml`` and ``table2.yaml`` in :data:`ustat_pg.llm.grid.PRESETS`, which
say what the paper leaves open and what is taken in its place. No run of this size has been made with
this code: the configurations are tested by a dry run, which loads prompts alone and asks TRL, on small
local files in the form of the data sets. Figure 5's accuracies are drawn and not printed, so none stand
here.
"""

from __future__ import annotations

from pathlib import PurePath

import pandas as pd

__all__ = ["is_papers", "table_2"]

_MODEL, _TASK = "Qwen2.5-Math-7B", "math"
_GROUP_SIZES = (4, 8, 16, 32, 64, 128)
_TABLE_2 = {
    1024: (0.7677, 0.7491, 0.7753, 0.7627, 0.7817, 0.7743),
    2048: (0.7703, 0.7679, 0.7697, 0.7793, 0.7819, 0.7665),
    4096: (0.7691, 0.7713, 0.7701, 0.7673, 0.7703, 0.7757),
}


def table_2() -> pd.DataFrame:
    """Table 2 as a tidy frame: budget, group_size, accuracy.

    The accuracies are final, on the test problems of MATH, of Qwen2.5-Math-7B, one run each.

    >>> table_2().loc[4].to_dict()
    {'budget': 1024.0, 'group_size': 64.0, 'accuracy': 0.7817}
    """
    return pd.DataFrame(
        [
            {"budget": budget, "group_size": size, "accuracy": accuracy}
            for budget, row in _TABLE_2.items()
            for size, accuracy in zip(_GROUP_SIZES, row, strict=True)
        ]
    )


def is_papers(model: str, task: str, evaluation: str | None) -> bool:
    """Whether a run has the model and the task, trained and tested on, that Table 2 is of.

    Arguments:
        model: of the run; a copy in a local folder counts by the folder's name.
        task, evaluation: of the run, as :func:`ustat_pg.llm.tasks.load_task` reads them.

    >>> is_papers("copies/Qwen2.5-Math-7B", "math", "math:split=test")
    True
    >>> is_papers("embedded:base", "math", "math")
    False
    """
    names = [str(each).partition(":")[0] for each in (task, evaluation)]
    return PurePath(model).name == _MODEL and names == [_TASK] * 2
