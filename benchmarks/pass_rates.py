"""Pass rates of models in named settings, all or those that are named: ``python -m benchmarks.pass_rates``.

Each is measured at temperature 1 on prompts that are drawn as ``--limit`` and ``--seed 0`` of the commands
draw them, and printed as a row of Markdown. ``--write`` puts them into the table that ships with the library,
``ustat_pg/llm/tasks/settings.toml``.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from time import process_time
from typing import Any

import numpy as np

from ustat_pg.llm.models.loading import load_model
from ustat_pg.llm.rollouts.stored import sample
from ustat_pg.llm.tasks.named import SETTINGS, drawn, load_task, settings
from ustat_pg.validation import one_of

PROMPTS, SAMPLES = 16, 16
COLUMNS = ("tokens", "rate", "rate_se", "silent", "middle")
HEAD = "# Settings with their pass rates, as `python -m benchmarks.pass_rates --write` measures them.\n"


def measured(model: Any, task: str) -> dict[str, Any]:
    """A setting with its pass rate, the standard error over prompts, and how rates spread over prompts."""
    loaded = load_task(task)
    some = replace(loaded, prompts=tuple(drawn(loaded.prompts, PROMPTS, 0)))
    rates = np.array([each.rewards.mean() for each in sample(model, some, SAMPLES)])
    facts = {
        "rate": rates.mean(),
        "rate_se": rates.std(ddof=1) / np.sqrt(len(rates)),
        "silent": np.isin(rates, (0, 1)).mean(),
        "middle": ((rates >= 0.2) & (rates <= 0.8)).mean(),
    }
    return {
        "task": task,
        "tokens": loaded.max_new_tokens,
        "prompts": PROMPTS,
        "samples": SAMPLES,
        **{name: round(float(value), 3) for name, value in facts.items()},
    }


def written(table: dict[str, dict[str, dict[str, Any]]]) -> str:
    """The table as TOML."""
    blocks = [
        "\n".join(
            [f"[{model}.{name}]", *(f"{key} = {json.dumps(value)}" for key, value in row.items())]
        )
        for model, rows in table.items()
        for name, row in rows.items()
    ]
    return "\n\n".join([HEAD.rstrip(), *blocks]) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure settings, print them and perhaps keep them."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pass_rates")
    parser.add_argument("names", nargs="*", metavar="NAME", help="smollm2:ask, ... (default: all)")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args(arguments)
    table: dict[str, dict[str, Any]] = {model: dict(rows) for model, rows in settings().items()}
    every = [f"{model}:{name}" for model, rows in table.items() for name in rows]
    models: dict[str, Any] = {}
    print(f"| setting | {' | '.join(COLUMNS)} | CPU s |")
    print(f"|{'---|' * (len(COLUMNS) + 2)}")
    for whole in options.names or every:
        one_of("setting", whole, every)
        model, _, name = whole.partition(":")
        if model not in models:
            models[model] = load_model(model)
        begun = process_time()
        row = table[model][name] = measured(models[model], table[model][name]["task"])
        cells = [whole, *(row[column] for column in COLUMNS), f"{process_time() - begun:.0f}"]
        print(f"| {' | '.join(map(str, cells))} |", flush=True)
        if options.write:
            SETTINGS.write_text(written(table), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
