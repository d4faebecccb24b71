"""Progress of work, as a bar on a terminal or as occasional lines in a log."""

from __future__ import annotations

import sys
from collections.abc import Callable
from shutil import get_terminal_size
from typing import Any

from tqdm import tqdm

LOG_SECONDS = 60.0
"""The seconds between two lines of progress if stderr is not a terminal."""


class _Lines(tqdm):
    """Progress for a log, with occasional lines instead of a bar that is drawn repeatedly."""

    @staticmethod
    def status_printer(file: Any) -> Callable[[str], None]:
        def line(text: str) -> None:
            if text:
                print(text, file=file, flush=True)

        return line


def bar(what: str, total: float, shown: bool) -> tqdm[Any]:
    """A bar of progress on a terminal's stderr, or a line a minute in a log."""
    terminal = sys.stderr.isatty()
    drawn = "|{bar:30}|" if terminal else ","
    pace: dict[str, Any] = (
        {} if terminal else dict.fromkeys(("mininterval", "maxinterval", "delay"), LOG_SECONDS)
    )
    return (tqdm if terminal else _Lines)(
        total=total,
        desc=f"{what:9}",
        bar_format=f"{{desc}} {{percentage:3.0f}}%{drawn} {{elapsed}}, {{remaining}} left",
        disable=not shown,
        # A terminal of unknown size counts as small.
        ncols=min(get_terminal_size().columns, 80),
        nrows=20,
        leave=False,
        **pace,
    )
