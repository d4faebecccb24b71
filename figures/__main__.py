"""``python -m figures DIR``: draw the figures of a run from its stored results."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from . import verdicts


def main(arguments: Sequence[str] | None = None) -> int:
    """Write ``DIR/figures/verdicts.png`` and ``.svg``; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m figures", description=__doc__)
    parser.add_argument("folder", type=Path, metavar="DIR", help="a run's results folder")
    folder = parser.parse_args(arguments).folder
    try:
        document = json.loads((folder / "verdicts.json").read_text(encoding="utf-8"))
        import matplotlib

        matplotlib.use("Agg")
        # Byte-stable files: no dates, and names in the SVG that do not change from run to run.
        matplotlib.rcParams["svg.hashsalt"] = "ustat_pg"
        figure = verdicts.draw(document)
        (folder / "figures").mkdir(exist_ok=True)
        for suffix, metadata in (("png", {"Software": None}), ("svg", {"Date": None})):
            target = folder / "figures" / f"verdicts.{suffix}"
            figure.savefig(target, dpi=200, metadata=metadata)
            print(f"Figure: {target}")
    except (OSError, ValueError, KeyError, TypeError) as error:
        print(f"figures: {folder}: no finished run: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
