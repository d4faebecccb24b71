"""The command ``ustat-pg llm mse``, and the progress bars of sampling and scoring."""

from __future__ import annotations

import argparse
import json
import logging
import sys
from contextlib import contextmanager
from textwrap import fill
from typing import TYPE_CHECKING, Any

from ..display.progress import bar
from ..llm.advice.commands import errors_of_pool
from ..llm.advice.model_pool import ModelPool, refuse_another_policy
from ..llm.pool.scored import ScoredPool, TokenWeights
from ..validation import InputError, integer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..llm.rollouts.stored import Progress


class _Lines(logging.Handler):
    """The library's log as lines on stderr, above the progress bar if there is one."""

    def emit(self, record: logging.LogRecord) -> None:
        from tqdm import tqdm

        tqdm.write(record.getMessage(), file=sys.stderr)


@contextmanager
def shown_progress() -> Iterator[Progress]:
    """A progress bar, with the lines of the library's log above it."""
    log, lines = logging.getLogger("ustat_pg.llm"), _Lines()
    level = log.level
    log.addHandler(lines)
    log.setLevel(logging.INFO)
    phase, line = ("", 1), bar("", 1, shown=True)
    try:

        def show(what: str, done: int, of: int) -> None:
            nonlocal phase, line
            if (what, of) != phase:
                line.close()
                phase, line = (what, of), bar(what, of, shown=True)
            line.update(done - line.n)

        yield show
    finally:
        line.close()
        log.removeHandler(lines)
        log.setLevel(level)


def mse(options: argparse.Namespace) -> None:
    """Print each estimator's gradient MSE at every group size, or the noise of an older policy's rollouts."""
    settings = {
        name: value for name, value in vars(options).items() if name not in ("command", "part")
    }
    as_json, sizes = settings.pop("form", None) == "json", settings.pop("group_sizes", None)
    for size in sizes or ():
        integer("group size", size, 2)
    with shown_progress() as progress:
        pool = _pool(settings, progress)
    errors = errors_of_pool(pool, sizes)
    files, out = [], settings.get("out")
    if out is not None:
        for name, frame in errors.tables.items():
            if frame is not None:
                frame.to_csv(out / f"{name}.csv", index=False)
                files.append(f"{name}.csv")
    if as_json:
        print(json.dumps(errors.to_dict(), allow_nan=False))
        return
    print(errors)
    if files:
        print(f"\nKept in {out}: rollouts.jsonl, scored.npz,\n{fill(', '.join(files), 110)}")


def _pool(settings: dict[str, Any], progress: Progress) -> ScoredPool:
    if "scored" in settings:
        pool = ScoredPool.load(settings["scored"])
        pool = pool.in_metric(settings.get("metric", pool.metric))
        refuse_another_policy(pool, settings.get("off_policy", False))
        if "out" in settings:
            settings["out"].mkdir(parents=True, exist_ok=True)
        return pool
    ratio = settings.pop("ratio", None)
    bounds = {name: settings.pop(name) for name in ("clip", "truncate") if name in settings}
    if ratio is None and bounds:
        raise InputError(f"without --ratio: leave out {', '.join(f'--{name}' for name in bounds)}")
    if ratio is not None:
        low, high = bounds.pop("clip", (None, None))
        settings["token_weights"] = TokenWeights(ratio=ratio, clip=low, clip_high=high, **bounds)
    (pool,) = ModelPool(**settings).pools(progress)
    return pool
