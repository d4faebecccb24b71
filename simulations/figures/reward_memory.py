"""The figure of Beyond 9 (reward_memory): its texts and its points."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ustat_pg.predictions import best_memory_weight, gradient_mse, memory_mse
from ustat_pg.problems import SoftmaxBandit

from ..engines import MemoryCell
from ..evidence import Linear, Point
from ..evidence.figure import Axis, Figure, Line, Panel
from ..problems import Suite, mse_of

STEM = "reward_memory"

SIZES = (1, 2, 3, 4, 6, 12)
"""The group sizes of the left panel."""

MEMORIES = (0, 1, 4)
"""Its earlier rewards of each prompt."""

RATE = 0.4
"""The pass rate of the prompt in the right panel."""

RATES = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
"""Its pass rates when the memory was filled."""

FIGURES = (
    Figure(
        "reward_memory",
        "A memory of earlier rewards",
        "Two panels. On the left errors at a budget against the group size, over the least without a "
        "memory: the curve without memory has its least at three, those with one and four earlier rewards of "
        "each prompt at one, and the more is remembered the lower they are. On the right errors in groups "
        "of three against the drift of a memory of eight: with equal weights of all rewards the error rises "
        "above that without a memory, with the best weight it stays below.",
        STEM,
        lines=(
            Line("n=0", "no memory", "grpo"),
            Line("n=1", "one earlier reward", "orange"),
            Line("n=4", "four", "green"),
            Line("equal", "equal weights", "orange"),
            Line("best", "best weight", "green"),
        ),
        by="panel",
        names="upper left",
        panels=(
            Panel("one budget", "size", y=Axis("error / the least without memory"), levels=(1,)),
            Panel(
                "a memory of 8 from another policy, G = 3",
                "drift",
                x=Axis("drift of the memory's mean", "drift"),
                y=Axis("error / that without memory"),
                levels=(1,),
            ),
        ),
    ),
)


def prompt(rate: float) -> SoftmaxBandit:
    """A prompt of three answers, one of them right, with this pass rate."""
    return SoftmaxBandit.bernoulli([rate, (1 - rate) / 2, (1 - rate) / 2], [1, 0, 0])


def curves(suite: Suite) -> Iterator[Point]:
    """Errors at a budget against G, and errors in groups of three against the drift of a memory of eight."""
    problem = suite.uneven.problem
    moments = problem.moments()
    unit = min(g * gradient_mse(moments, "grpo", g).mse for g in SIZES[1:])
    for memory in MEMORIES:
        name = f"memory:{memory}" if memory else "grpo"
        for size in SIZES if memory else SIZES[1:]:
            value = size * gradient_mse(moments, name, size).mse / unit
            measured = Linear(MemoryCell(problem, size), ((mse_of(name), size / unit),))
            yield Point(STEM, f"n={memory}", {"panel": "size", "group_size": size}, value, measured)
    now, size, memory = prompt(RATE), 3, 8
    moments = now.moments()
    unit = gradient_mse(moments, "grpo", size).mse
    for rate in RATES:
        past = prompt(rate)
        known: dict[str, Any] = {"drift": rate - RATE, "past_variance": rate * (1 - rate)}
        weight = best_memory_weight(moments, size, memory, **known)
        cell = MemoryCell(now, size, past=past)
        for series, given in (("equal", None), ("best", weight)):
            name = f"memory:{memory}" if given is None else f"weighted-memory:{memory},{given!r}"
            value = memory_mse(moments, size, memory, weight=given, **known) / unit
            at = {"panel": "drift", "drift": rate - RATE}
            yield Point(STEM, series, at, value, Linear(cell, ((mse_of(name), 1 / unit),)))
