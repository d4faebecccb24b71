"""The command ``ustat-pg problems``, which lists the named problems."""

from __future__ import annotations

import argparse
import json
from importlib.resources import files

from ..display.numbers import readable
from ..predictions import MseConstants, optimal_group_size
from ..problems import NamedProblem, example_problem, named_problem, named_problems


def run(options: argparse.Namespace) -> None:
    """Print the list of problems, or the file of one problem."""
    if options.name is not None:
        name = named_problem(options.name).name
        print((files("ustat_pg.problems") / "named" / f"{name}.json").read_text(encoding="utf-8"))
        return
    named = named_problems()
    if options.json:
        print(json.dumps({one.cited: _facts(one) for one in named}))
        return
    from tabulate import tabulate

    rows = []
    for one in named:
        facts = _facts(one)
        star = "-" if facts["g_star"] is None else f"{facts['g_star']:.3g}"
        sizes = (facts["prompts"], facts["arms"], facts["parameters"])
        rows.append(
            [one.cited, *sizes, readable(round(one.objective, 12)), star, one.licence, one.title]
        )
    header = ["problem", "prompts", "arms", "d", "mean reward", "best G", "licence", "description"]
    align = ("left",) + ("right",) * 5 + ("left",) * 2
    print(tabulate(rows, header, disable_numparse=True, colalign=align))


def example(options: argparse.Namespace) -> None:
    """Print an example of a problem file."""
    print(json.dumps(example_problem(), indent=1))


def _facts(known: NamedProblem) -> dict[str, object]:
    star = optimal_group_size(MseConstants(**known.constants))
    return {
        "title": known.title,
        "origin": known.origin,
        "source": known.source,
        "licence": known.licence,
        "prompts": known.problem.contexts,
        "arms": known.problem.arms,
        "parameters": known.problem.d,
        "mean_reward": known.objective,
        "g_star": star if star != float("inf") else None,
        **known.constants,
    }
