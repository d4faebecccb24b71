"""The figure of Beyond 9 (reward_memory): its texts and its points."""

from __future__ import annotations

from collections.abc import Iterator

from ustat_pg.predictions import best_memory_weight, gradient_mse, memory_mse

from ..engines import MemoryCell
from ..evidence import Linear, Point
from ..evidence.figure import Axis, Figure, Line, Panel
from ..problems import Suite, mse_of
from ..reward_memory import earlier

STEM = "reward_memory"

SIZES = (1, 2, 3, 4, 6, 12)
"""The group sizes of the left panel."""

MEMORIES = (0, 1, 4)
"""Its earlier rewards of each prompt."""

MOVED = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0)
"""The lengths of the steps since the earlier policy in the right panel."""

FIGURES = (
    Figure(
        "reward_memory",
        "A memory of earlier rewards",
        "Two panels. On the left errors at a budget against the group size, over the least without a "
        "memory: the curve without memory has its least at three, those with one and four earlier rewards of "
        "each prompt at one, and the more is remembered the lower they are. On the right errors in groups "
        "of three against the drift of the memory's mean: with equal weights of all rewards the error rises "
        "above that without a memory, with the best weight it stays below.",
        STEM,
        lines=(
            Line("n=0", "no memory", "grpo"),
            Line("n=1", look="orange"),
            Line("n=4", look="blue"),
            Line("equal", "equal weights", "orange"),
            Line("best", "best weight", "blue"),
        ),
        by="panel",
        panels=(
            Panel("one budget", "size", y=Axis("error / the least without memory"), levels=(1,)),
            Panel(
                "a memory of 4 from another policy, G = 3",
                "drift",
                x=Axis("drift of the memory's mean, root mean square"),
                y=Axis("error / that without memory"),
                levels=(1,),
            ),
        ),
    ),
)


def curves(suite: Suite) -> Iterator[Point]:
    """Errors at a budget against G, and errors in groups of three against the drift of a memory of four."""
    problem = suite.uneven.problem
    moments = problem.moments()
    unit = min(g * gradient_mse(moments, "grpo", g).mse for g in SIZES[1:])
    for memory in MEMORIES:
        name = f"memory:{memory}" if memory else "grpo"
        for size in SIZES if memory else SIZES[1:]:
            value = size * gradient_mse(moments, name, size).mse / unit
            measured = Linear(MemoryCell(problem, size), ((mse_of(name), size / unit),))
            yield Point(STEM, f"n={memory}", {"panel": "size", "group_size": size}, value, measured)
    size, memory = 3, 4
    unit = gradient_mse(moments, "grpo", size).mse
    for length in MOVED:
        past = earlier(problem, length)
        before = past.moments()
        off = before.value - moments.value
        known = {"drift": off, "past_variance": before.reward_variance}
        weight = best_memory_weight(moments, size, memory, **known)
        cell = MemoryCell(problem, size, past=past)
        drift = float(moments.context_probs @ off**2) ** 0.5
        for series, given in (("equal", None), ("best", weight)):
            name = f"memory:{memory}" if given is None else f"weighted-memory:{memory},{given!r}"
            value = memory_mse(moments, size, memory, weight=given, **known) / unit
            at = {"panel": "drift", "drift": drift}
            yield Point(STEM, series, at, value, Linear(cell, ((mse_of(name), 1 / unit),)))
