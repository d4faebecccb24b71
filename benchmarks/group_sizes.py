"""The best group size of a model in named settings: ``python -m benchmarks.group_sizes``.

    python -m benchmarks.group_sizes                       every setting of smollm2
    python -m benchmarks.group_sizes sums-2 --model DIR    one, of a checkpoint

Each is what ``advise`` says of 24 prompts with 24 rollouts: c1, c2, c3, G* and the
critical budget, with 95% intervals, as a row of Markdown. Pools stay in ``--out``, and a rerun reads them.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from ustat_pg import ModelPool, advise
from ustat_pg.llm.pool.constants import ConstantsEstimate
from ustat_pg.llm.tasks.named import settings

PROMPTS, SAMPLES, BUDGET = 24, 24, 256
COLUMNS = ("setting", "pass rate", "c1", "c2", "c3", "G*", "critical budget")
OF = "smollm2"
"""The model whose settings these are."""


def number(value: float | None, low: float, high: float) -> str:
    """A number with its interval; an end that is not known is a dash."""
    texts = ["-" if v is None or not math.isfinite(v) else f"{v:.3g}" for v in (value, low, high)]
    return "{} [{}, {}]".format(*texts)


def row(name: str, rate: float, constants: ConstantsEstimate) -> str:
    """One setting as a row of Markdown."""
    known = constants.to_frame().set_index("name")
    names = ("c1", "c2", "c3", "g_star", "k_crit")
    cells = [number(*known.loc[n, ["value", "low", "high"]].map(float)) for n in names]
    return f"| {name} | {rate:.2f} | {' | '.join(cells)} |"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure settings and print them."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.group_sizes")
    every = list(settings()[OF])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of: {', '.join(every)}")
    parser.add_argument("--model", default=OF, help="smollm2, or a checkpoint of it")
    parser.add_argument("--prompts", type=int, default=PROMPTS)
    parser.add_argument("--samples", type=int, default=SAMPLES)
    parser.add_argument("--threads", type=int, default=2, help="of torch")
    parser.add_argument("--out", type=Path, metavar="FOLDER", default=Path("results/group_sizes"))
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    print(f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}")
    for name in options.names or every:
        asked = {"limit": options.prompts, "samples": options.samples, "out": options.out / name}
        pool = ModelPool(model=options.model, prompts=f"{OF}:{name}", device="cpu", **asked)
        advice = advise(pool, BUDGET, until="all")
        print(row(name, advice.pool.rewards.mean(), advice.constants), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
