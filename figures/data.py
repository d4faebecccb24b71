"""What figures read: the files that a run left in its folder.

``ustat_pg.experiment.load_curves`` reads the same file, but comes with engines and predictions; a
figure that cannot import them cannot simulate.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ustat_pg.validation import InputError

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["CURVES_FILE", "RESULTS_FILE", "curves", "sweep", "verdicts"]

CURVES_FILE = "curves.csv"
RESULTS_FILE = "verdicts.json"
SWEEP_FILES = {"figure5.csv": "group_size_lm", "table2.csv": "group_size_lm_final"}
"""Tables of a training sweep in the folder ``sweep`` of a run, with the figures that show them."""

_COLUMNS = {"figure", "series", "prediction", "exact", "estimate", "low", "high"}


def curves(folder: Path) -> pd.DataFrame | None:
    """The points of a run's figures, tidy; None where the run has left none.

    Raises:
        InputError: the file is not the curves of a run.
    """
    import pandas as pd

    path = folder / CURVES_FILE
    if not path.exists():
        return None
    try:
        frame = pd.read_csv(path, low_memory=False)
    except pd.errors.EmptyDataError:
        return None
    except ValueError:
        raise InputError(f"{path}: not the curves of a run") from None
    if not len(frame):
        return None
    if not set(frame.columns) >= _COLUMNS:
        raise InputError(f"{path}: not the curves of a run")
    return frame


def sweep(folder: Path) -> pd.DataFrame | None:
    """What a training sweep left in a run's folder ``sweep``, in the form of :func:`curves`.

    Returns:
        a row for each mean accuracy: figure, panel (trained; final, or paper for the paper's own),
        series (the trainer), budget, step, group_size, estimate, low, high; None where there is
        none.

    Raises:
        InputError: a file is not the table of a sweep.
    """
    import pandas as pd

    parts = []
    for file, figure in SWEEP_FILES.items():
        path = folder / "sweep" / file
        if not path.exists():
            continue
        try:
            table = pd.read_csv(path).rename(
                columns={"trainer": "series", "K": "budget", "G": "group_size"}
            )
            table = table.rename(columns={"accuracy": "estimate"})
            here = table[["series", "budget", "group_size", "estimate", "low", "high"]]
            if file == "figure5.csv":
                parts.append(here.assign(panel="trained", step=table["step"], figure=figure))
                continue
            parts.append(here.assign(panel="final", figure=figure))
            paper = table[["budget", "group_size", "paper"]].rename(columns={"paper": "estimate"})
            # Each trainer's row has the paper's number beside it.
            paper = paper.drop_duplicates(["budget", "group_size"])
            parts.append(paper.assign(series="paper", panel="paper", figure=figure))
        except (ValueError, KeyError):
            raise InputError(f"{path}: not the table of a sweep") from None
    if not parts:
        return None
    found = pd.concat(parts, ignore_index=True)
    return found[found["estimate"].notna()].reset_index(drop=True)


def verdicts(folder: Path) -> dict[str, Any]:
    """The verdicts of a finished run.

    Raises:
        InputError: there is no finished run, or the file is damaged.
    """
    path = folder / RESULTS_FILE
    try:
        data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        assert isinstance(data["claims"], list)
    except OSError as error:
        raise InputError(f"{path}: no finished run: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AssertionError):
        raise InputError(f"{path}: not the results of a run") from None
    return data
