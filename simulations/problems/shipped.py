"""The suite's problems as files that ship with the library: ``python -m simulations.problems.shipped``.

A file that is there is left as it is: it may have been cited. Tests hold it to what is made here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import ustat_pg
from ustat_pg.moments import Moments
from ustat_pg.predictions import mse_constants

from . import two_valued
from .bandits import BanditEntry, Bandits, spread
from .entry import Entry

__all__ = ["FOLDER", "documents"]

FOLDER = Path(ustat_pg.__file__).parent / "problems" / "named"

_DIGITS = (
    "E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits (UCI, 1998), as in "
    "scikit-learn; a policy fitted to it by ustat_pg, at a mean pass rate of 0.6 over all digits"
)
_IRIS = (
    "R. A. Fisher, Iris (UCI, 1936), as in scikit-learn; a policy fitted to it by ustat_pg, at a mean "
    "pass rate of 0.7"
)
SOURCES = {"digits-3": _DIGITS, "iris": _IRIS}
"""Sources of the problems that are not ours, which have the licence of their data."""

_OF_MOMENTS = tuple(
    name for name in Moments.__annotations__ if name not in ("matrices", "weighted_gradient")
)


def entries() -> Iterator[tuple[BanditEntry, str]]:
    suite = Bandits("smoke")
    yield suite.skewed, "a strong policy, the likely arm rewarded: outside Assumption 2"
    yield suite.balanced, "inside Assumption 2 with unequal norms of scores: V = b* = 0.3"
    yield suite.coin, "two equal arms, noisy rewards: the explicit bound is twice the exact term"
    yield suite.several, "two prompts of unequal probability, graded and noisy rewards"
    yield suite.features, "four equally likely prompts, features of the arms, negative rewards"
    yield suite.uneven, "a hard prompt asked often, a middling and an easy one, rewards 0 and 1"
    yield suite.repeated, "three prompts, arms with equal rewards, rewards that occur twice"
    yield next(suite.sure_coins()), "two prompts that attain half the explicit bound"
    yield next(suite.few()), "five arms and one parameter: rewards do not grow with a score"
    yield next(suite.worthless()), "two prompts whose mean reward is 0"
    yield suite.rare_rewards[0], "two close rewards and a rare one far from them"
    probs = [[0.5, 0.3, 0.2], [0.2, 0.5, 0.3], [0.3, 0.3, 0.4]]
    yield spread("spread", "made-up", probs), "three prompts whose gradients differ much"
    noisy = two_valued([0.25] * 4, [0.55, 0.5, 0.5, 0.45])
    yield Entry("noisy", "made-up", noisy), "equal arms, rewards that are almost noise"
    yield suite.digits_rows(3), "three handwritten digits, ten classes, 650 parameters"
    yield suite.iris, "150 irises, three species, 15 parameters"


def documents() -> dict[str, dict[str, Any]]:
    files = {}
    for entry, title in entries():
        name, moments = entry.name.replace(" ", "-"), entry.problem.moments()
        constants = mse_constants(moments)
        files[name] = {
            "name": name,
            "version": 1,
            "title": title,
            "origin": entry.origin,
            "source": SOURCES.get(name, "made up for ustat_pg, simulations/problems/bandits.py"),
            "licence": "CC BY 4.0" if name in SOURCES else "MIT",
            "problem": {key: array.tolist() for key, array in entry.problem.arrays().items()},
            "moments": {key: np.asarray(getattr(moments, key)).tolist() for key in _OF_MOMENTS},
            "constants": {key: getattr(constants, key) for key in ("c1", "c2", "c3", "vanilla")},
            "objective": entry.problem.objective(),
            "digest": entry.problem.digest,
        }
    return files


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name, document in documents().items():
        file = FOLDER / f"{name}.json"
        if not file.exists():
            lines = (f" {json.dumps(key)}: {json.dumps(value)}" for key, value in document.items())
            file.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
            print(file)


if __name__ == "__main__":
    main()
