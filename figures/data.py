"""Tables that figures read beside a run's records: points of curves, and those of a training sweep."""

from __future__ import annotations

from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING

from simulations.evidence.results import CURVES_FILE, load_curves
from ustat_pg.files.reading import read_text
from ustat_pg.validation import InputError

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["curves", "sweep"]

SWEEP_FILES = {"figure5.csv": "group_size_lm", "table2.csv": "group_size_lm_final"}
"""Tables of a training sweep in the folder ``sweep`` of a run, with the figures that show them."""


def curves(folder: Path) -> pd.DataFrame | None:
    """The points of a run's figures, tidy; None where the run has left none."""
    frame = load_curves(folder) if (folder / CURVES_FILE).exists() else None
    return None if frame is None or frame.empty else frame


def sweep(folder: Path) -> pd.DataFrame | None:
    """The tables of a training sweep in a run's folder ``sweep``, in the form of :func:`curves`.

    A row for each mean accuracy: figure, panel (trained; final, or paper for the paper's own), series (the
    trainer), budget, step, group_size, estimate, low, high; None where there is none.
    """
    import pandas as pd

    parts = []
    for file, figure in SWEEP_FILES.items():
        path = folder / "sweep" / file
        if not path.exists():
            continue
        try:
            table = pd.read_csv(StringIO(read_text(path))).rename(
                columns={"trainer": "series", "K": "budget", "G": "group_size"}
            )
            table = table.rename(columns={"accuracy": "estimate"})
            reached = table[["series", "budget", "group_size", "estimate", "low", "high"]]
            if file == "figure5.csv":
                parts.append(reached.assign(panel="trained", step=table["step"], figure=figure))
                continue
            parts.append(reached.assign(panel="final", figure=figure))
            paper = table[["budget", "group_size", "paper"]].rename(columns={"paper": "estimate"})
            # Each trainer's row has the paper's number beside it.
            paper = paper.drop_duplicates(["budget", "group_size"])
            parts.append(paper.assign(series="paper", panel="paper", figure=figure))
        except (ValueError, KeyError):
            raise InputError(f"{path}: not the table of a sweep") from None
    if not parts:
        return None
    points = pd.concat(parts, ignore_index=True)
    return points[points["estimate"].notna()].reset_index(drop=True)
