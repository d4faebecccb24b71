"""A bar of progress on a terminal, or a line now and then in a log."""

from __future__ import annotations

import sys
from collections.abc import Callable
from shutil import get_terminal_size
from typing import Any

from tqdm import tqdm

LOG_SECONDS = 60.0
"""Seconds between two lines of progress where stderr is not a terminal."""


class _Lines(tqdm):
    """Progress for a log: a line now and then, where a terminal draws one bar again and again."""

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
        # A terminal that does not know its size is taken for a small one.
        ncols=min(get_terminal_size().columns, 80),
        nrows=20,
        leave=False,
        **pace,
    )
