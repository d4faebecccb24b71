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

__all__ = ["CURVES_FILE", "RESULTS_FILE", "curves", "verdicts"]

CURVES_FILE = "curves.csv"
RESULTS_FILE = "verdicts.json"

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
