"""The files that ``--plot`` writes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..validation import InputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def refuse_plot(path: Path) -> None:
    """Raise an error if no picture can be written to a file."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise InputError("a picture needs matplotlib: pip install 'ustat_pg[figures]'") from None
    known = sorted(Figure().canvas.get_supported_filetypes())
    if path.suffix[1:].lower() not in known:
        raise InputError(f"--plot {path}: its name must end in one of {', '.join(known)}")
    if not path.parent.is_dir():
        raise InputError(f"--plot {path}: there is no folder {path.parent}")


def save(axes: Axes, path: Path) -> None:
    """Write the plot on these axes to a file."""
    figure: Any = axes.figure
    try:
        figure.savefig(path)
    except OSError as error:
        raise InputError(f"--plot {path}: {error.strerror}") from None
