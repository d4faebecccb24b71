"""``ustat-pg llm mse``, and the progress of all that samples or scores."""

from __future__ import annotations

import argparse
import json
import logging
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pandas as pd

from ..llm.commands import GROUP_SIZES, errors_of_pool, errors_text
from ..llm.model_pool import ModelPool, refuse_another_policy
from ..llm.pool import ScoredPool, TokenWeights
from ..llm.printing import records
from ..llm.rollouts import greedy_rewards
from ..validation import InputError, integer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from ..llm.rollouts import Progress

__all__ = ["mse", "shown_progress"]

_EVERY = 30.0
"""Seconds between two lines of progress in a log."""


class _Lines(logging.Handler):
    """What the library says while it works: lines on stderr, above the bar where there is one."""

    def emit(self, record: logging.LogRecord) -> None:
        from tqdm import tqdm

        tqdm.write(record.getMessage(), file=sys.stderr)


@contextmanager
def shown_progress() -> Iterator[Progress]:
    """One bar on a terminal's stderr; in a log a line now and then."""
    log, lines = logging.getLogger("ustat_pg.llm"), _Lines()
    level = log.level
    log.addHandler(lines)
    log.setLevel(logging.INFO)
    try:
        with _bar() as show:
            yield show
    finally:
        log.removeHandler(lines)
        log.setLevel(level)


@contextmanager
def _bar() -> Iterator[Progress]:
    if not sys.stderr.isatty():
        began = told = time.monotonic()

        def line(what: str, done: int, of: int) -> None:
            nonlocal told
            now = time.monotonic()
            if now - told >= _EVERY:
                told = now
                print(f"{what}: {done} of {of} prompts, {now - began:.0f} s", file=sys.stderr)

        yield line
        return
    from tqdm import tqdm

    with tqdm(unit="prompt", leave=False) as bar:

        def show(what: str, done: int, of: int) -> None:
            bar.set_description(what)
            bar.total, bar.n = of, done
            bar.refresh()

        yield show


def mse(options: argparse.Namespace) -> None:
    """Print every baseline's gradient MSE at every group size; of an older policy's rollouts their noise."""
    given = dict(vars(options))
    as_json, sizes = given.pop("form", None) == "json", given.pop("group_sizes", None)
    for name in ("command", "part"):
        del given[name]
    for size in sizes or ():
        integer("group size", size, 2)
    with shown_progress() as progress:
        pool, greedy = _pool(given, progress)
    sizes = sizes or [size for size in GROUP_SIZES if size <= pool.rollouts]
    found = errors_of_pool(pool, sizes, greedy)
    frames = {name: each for name, each in found.items() if isinstance(each, pd.DataFrame)}
    out = given.get("out")
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        for name, frame in frames.items():
            frame.to_csv(out / f"{name}.csv", index=False)
    if as_json:
        config = {name: own for name, own in pool.config.items() if name != "made_of"}
        told = {"prompts": pool.size, "rollouts": pool.rollouts, "config": config}
        told |= {name: records(each) if name in frames else each for name, each in found.items()}
        print(json.dumps(told, allow_nan=False))
        return
    print(errors_text(pool, found))
    if out is not None:
        kept = (f"{name}.csv" for name in frames)
        print(f"\nKept in {out}: rollouts.jsonl, scored.npz,\n{', '.join(kept)}")


def _pool(given: dict[str, Any], progress: Progress) -> tuple[ScoredPool, NDArray[Any] | None]:
    """The scored pool that is asked of, and rewards of greedy completions where they are wanted."""
    if "scored" in given:
        pool = ScoredPool.load(given["scored"])
        refuse_another_policy(pool, given.get("off_policy", False))
        return pool, None
    remax, ratio = given.pop("remax", False), given.pop("ratio", None)
    bounds = {name: given.pop(name) for name in ("clip", "truncate") if name in given}
    if ratio is None and bounds:
        raise InputError(f"without --ratio: leave out {', '.join(f'--{name}' for name in bounds)}")
    if ratio is not None:
        if remax:
            raise InputError(
                "--ratio is of rollouts of an older policy: leave out --remax, which samples anew"
            )
        low, high = bounds.get("clip", (None, None))
        given["token_weights"] = TokenWeights(
            ratio=ratio, clip=low, clip_high=high, truncate=bounds.get("truncate")
        )
    wanted = ModelPool(**given)
    (pool,) = wanted.pools(progress)
    if not remax:
        return pool, None
    model, task = wanted.parts
    if task is None:
        raise InputError("--remax completes prompts anew: it needs the task, --prompts")
    return pool, greedy_rewards(model, task, pool.prompts)
