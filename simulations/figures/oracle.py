"""The figure of Corollary 4 (oracle): its texts and its points."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from ustat_pg.engines import GradientCell
from ustat_pg.predictions import oracle_ratio

from ..evidence import Point
from ..evidence.figure import Axis, Curve, Figure, Line, Panel
from ..oracle import NOISY, batches_of, excess_of
from ..problems import BanditEntry, Suite
from ..problems.bandits import shipped


def points(cases: Iterable[tuple[BanditEntry, int]], group_sizes: Sequence[int]) -> Iterator[Point]:
    """The excess of the ratio over 1 against G, for problems with their batch sizes."""
    for entry, batch_size in cases:
        moments = entry.problem.moments()
        for group_size in group_sizes:
            excess = oracle_ratio(moments, group_size, batch_size) - 1
            if excess < 1e3:
                at = {"problem": entry.name, "group_size": group_size, "batch_size": batch_size}
                at["one_prompt"] = str(entry.problem.contexts == 1)
                cell = GradientCell(entry.problem, group_size, batch_size)
                yield Point("ratio", entry.name, at, excess, excess_of(cell))


FIGURES = (
    Figure(
        "oracle",
        "grpo against the oracle",
        "On the left the ratio of grpo's error to the oracle's falls to 1 as the group grows, for a "
        "nearly pure-noise reward along G/(G-1); on the right its excess over 1 on logarithmic axes "
        "falls with slope -1 at one prompt and towards slope -2 in a minibatch of different prompts.",
        "ratio",
        lines=(
            Line("", "{series}, one prompt", at={"one_prompt": True}),
            Line("", "{series}, B = {batch_size:g}", at={"one_prompt": False}),
        ),
        panels=(
            Panel(
                "the ratio",
                y=Axis("MSE of grpo / MSE of the oracle", limits=(0.92, 4)),
                curves=(Curve(lambda g: g / (g - 1), "G/(G-1)", "limit"),),
                levels=(1,),
                plus=1,
            ),
            Panel(
                "its excess over 1",
                y=Axis("ratio - 1", scale="log"),
                curves=(Curve(lambda g: 1 / (g - 1), look="limit"),),
                slopes=((-1, 0.52, 0.9), (-2, 0.12, 0.26)),
                precise=True,
            ),
        ),
        names="outside right center",
        height=2.55,
    ),
)


def curves(suite: Suite) -> Iterator[Point]:
    """The excess at one prompt, and in a minibatch of many."""
    shown = [(entry, 1) for entry, _ in suite.shown if entry.problem.contexts == 1]
    shown += [(suite.skewed, 1), (shipped(NOISY), 1), *batches_of(suite)]
    cases = [case for case in shown if case[0].origin != "generated"]
    yield from points(cases, suite.curve_sizes)


def curves_on_networks(suite: Suite) -> Iterator[Point]:
    one_prompt = [(entry, 1) for entry, _ in suite.shown if entry.problem.contexts == 1]
    yield from points(one_prompt, suite.curve_sizes)
