"""``python -m figures DIR [NAME...]``: draw the figures of a run from its stored results; with ``--report``
the whole run as one page.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from signal import SIG_IGN, SIGINT
from typing import TYPE_CHECKING, Any

from simulations.evidence.results import FIGURES_FOLDER, HTML_FILE, Results, load_run
from ustat_pg.cli import Parser, guarded
from ustat_pg.validation import InputError, one_of

from . import data
from .catalogue import PICTURES
from .render import FORMATS, draw, missed, save
from .style import theme

if TYPE_CHECKING:
    import pandas as pd


MOST_PROCESSES = 4
"""Processes that draw; more would wait for the slowest figure."""


def paint(
    results: Results,
    folder: Path,
    out: Path,
    names: Sequence[str] = (),
    formats: Sequence[str] = ("svg", "png"),
    look: str | None = None,
) -> tuple[list[Path], list[str]]:
    """Draw what a run has data for, all figures unless some are named; returns the files, and the names of
    figures without data.
    """
    for name in names:
        one_of("figure", name, PICTURES)
    try:
        import matplotlib
        import seaborn  # noqa: F401
    except ImportError:
        raise InputError("figures need pip install 'ustat_pg[figures]'") from None
    matplotlib.use("Agg")
    with theme(look):
        pass  # A style that cannot be read is refused here, and not by the processes that draw.
    out.mkdir(parents=True, exist_ok=True)
    names = names or list(PICTURES)
    points = _points([data.curves(folder), data.sweep(folder)])
    sources = [
        points.get(PICTURES[name].source) if PICTURES[name].source else results for name in names
    ]
    run = f"{results.run.command}, code {results.run.versions.get('code')}"
    one = partial(_paint, folder, run, out, formats, look)
    count = min(len(names), os.cpu_count() or 1, MOST_PROCESSES)
    # Matplotlib holds the interpreter: threads would wait. An interruption is this process's alone.
    with ProcessPoolExecutor(count, None, signal.signal, (SIGINT, SIG_IGN)) as pool:
        drawn = list(pool.map(one, names, sources))
    missing = [name for name, files in zip(names, drawn, strict=True) if not files]
    return [file for files in drawn for file in files], missing


def _points(parts: Sequence[pd.DataFrame | None]) -> dict[str | None, pd.DataFrame]:
    import pandas as pd

    frames = [part for part in parts if part is not None]
    if not frames:
        return {}
    rows = pd.concat(frames, ignore_index=True).groupby("figure", sort=False)
    return {str(name): frame.reset_index(drop=True) for name, frame in rows}


def _paint(
    folder: Path,
    run: str,
    out: Path,
    formats: Sequence[str],
    look: str | None,
    name: str,
    source: Any,
) -> list[Path]:
    """The files of one figure; none where there is nothing to draw."""
    import matplotlib.pyplot as plt

    if source is None:
        return []
    with theme(look):
        try:
            drawing = draw(PICTURES[name], source)
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise InputError(
                f"{folder}: not the results that figure {name} is drawn from: {error!r}"
            ) from error
        counted = PICTURES[name].source and PICTURES[name].counted
        said = missed(source) if counted else ""
        files = (
            [] if drawing is None else list(save(PICTURES[name], drawing, out, formats, said, run))
        )
    plt.close("all")
    return files


def write_report(folder: Path) -> Path:
    """Write a run as one HTML page, its figures drawn in SVG; returns the file."""
    from simulations.evidence import Store
    from simulations.evidence.report import Drawing, html

    results = load_run(folder)
    files, _ = paint(results, folder, folder / FIGURES_FOLDER, formats=("svg",))
    drawn = [
        Drawing(file.stem, PICTURES[file.stem].title, PICTURES[file.stem].alt, file.read_bytes())
        for file in files
    ]
    Store(folder / "blocks").write(folder / HTML_FILE, html(results, drawn))
    return folder / HTML_FILE


def main(arguments: Sequence[str] | None = None) -> int:
    parser = Parser(prog="python -m figures", description=__doc__)
    parser.add_argument("folder", type=Path, metavar="DIR", help="a run's results folder")
    parser.add_argument(
        "names", nargs="*", default=[], metavar="NAME", help=f"of: {', '.join(PICTURES)}"
    )
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="default: DIR/figures")
    parser.add_argument(
        "--format", choices=FORMATS, nargs="+", action="extend", help="default: svg png"
    )
    parser.add_argument(
        "--style", metavar="STYLE", help="of Matplotlib, a name or a .mplstyle file"
    )
    parser.add_argument(
        "--report", action="store_true", help="the run as one HTML page instead: DIR/report.html"
    )

    def command() -> int:
        options = parser.parse_args(arguments)
        folder: Path = options.folder
        if options.report:
            print(f"Report: {write_report(folder)}")
            return 0
        out = options.out or folder / FIGURES_FOLDER
        files, missing = paint(
            load_run(folder),
            folder,
            out,
            options.names,
            options.format or ("svg", "png"),
            options.style,
        )
        for file in files:
            print(f"Figure: {file}")
        if missing:
            print(f"No data in this run for: {', '.join(missing)}")
        return 0

    return guarded("figures", command)


if __name__ == "__main__":
    sys.exit(main())
