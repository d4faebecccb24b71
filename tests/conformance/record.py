"""Run a framework's own advantage function on fixed rewards, and keep its numbers as data.

``python -m tests.conformance verl CHECKOUT`` writes ``tests/data/conformance/verl.json``; CHECKOUT is
the framework's repository at the commit to be recorded, or a folder that ``pip install --no-deps
--target`` put a release in, and is left out where the framework is installed: its release is
recorded. A driver is the module beside this one of the framework's name, ``-`` written ``_``, with

- ``FUNCTION``: what it calls, as a dotted name;
- ``advantages(options, batch)``: the advantages of a batch of groups of rewards, a list a group, under
  these values of the framework's options by their full names. It raises `Refused` where the framework
  itself refuses them or the batch.
- ``several(options, batch, weights)``, where it takes several rewards: the same, of a list an output;
- ``loss`` and what belongs to it, where its loss can be run: `losses` says how.
"""

import ast
import importlib
import importlib.metadata
import itertools
import json
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sphinx.ext.autodoc.mock import _MockObject, mock

from ustat_pg.catalogue import Framework, catalogue

from . import losses
from .losses import Refused

DATA = Path(__file__).parents[1] / "data" / "conformance"

SIZES = range(2, 9)

BATCHES = {
    "mixed": [[1, 0, 0, 0], [1, 1, 0, 1], [0, 1, 1, 0]],
    "equal rewards": [[0, 0, 0, 0], [1, 1, 1, 1], [1, 0, 1, 0]],
    "graded": [[0.2, 0.9, 0.4, 0.4], [0.0, 0.5, 1.0, 0.7], [0.3, 0.1, 0.6, 0.0]],
    "negative": [[-1.0, 1.0, 1.0, -1.0], [-1.0, -1.0, 0.5, -1.0]],
    "unequal groups": [[1, 0], [1, 0, 0, 1, 1], [0, 1, 0]],
    "one output": [[1], [0], [1]],
}
"""Rewards of several groups at once."""

SEVERAL = [
    [[1, 0], [1, 1], [0, 0], [1, 0]],
    [[1, 0], [1, 0], [1, 1], [1, 0]],
    [[0, 1], [0, 1], [1, 0], [0, 0]],
]
WEIGHTS = (1.0, 0.5)
"""Two rewards of each output, and what multiplies them."""


# Annotations join stand-ins by "|".
_MockObject.__or__ = _MockObject.__ror__ = lambda self, other: object


def lengths(batch: list[list[float]]) -> list[list[int]]:
    """Tokens of each output, for advantages that depend on lengths: 2, 3, 4, 2, 3, ..."""
    counter = itertools.count()
    return [[2 + next(counter) % 3 for _ in group] for group in batch]


def flat(batch: list[list[float]]) -> tuple[Any, Any, Any]:
    """The rewards of all outputs, their tokens, and the mask of these, as tensors."""
    import torch

    tokens = torch.tensor([each for group in lengths(batch) for each in group])
    mask = (torch.arange(int(tokens.max())) < tokens[:, None]).float()
    return torch.tensor([float(each) for group in batch for each in group]), tokens, mask


def padded(batch: list[list[float]]) -> tuple[Any, Any]:
    """The rewards at each output's last token, and the mask of its tokens, as tensors."""
    rewards, tokens, mask = flat(batch)
    placed = mask * 0
    placed[range(len(tokens)), tokens - 1] = rewards
    return placed, mask


def summed(batch: list[list[list[float]]], weights: tuple[float, ...]) -> list[list[float]]:
    """The weighted sum of the rewards of each output."""
    return [
        [sum(w * z for w, z in zip(weights, each, strict=True)) for each in group]
        for group in batch
    ]


def size_of(batch: list[list[float]]) -> int:
    """The size of all groups; refused where they differ."""
    size, *more = {len(group) for group in batch}
    if more:
        raise Refused("groups have one size")
    return size


def foreign(name: str, *unused: str) -> Any:
    """A module of the checkout; stand-ins replace what it imports and is unused, or not installed."""
    missing = [*unused]
    while True:
        with mock(missing):
            try:
                return importlib.import_module(name)
            except ModuleNotFoundError as error:
                if error.name is None or error.name in missing or error.name == name:
                    raise
                for loaded in [each for each in sys.modules if each.startswith(name.split(".")[0])]:
                    del sys.modules[loaded]
                missing.append(error.name)


def part(path: str, *names: str, **scope: Any) -> dict[str, Any]:
    """What a file of the checkout calls by these names, wherever in it, and nothing else of the file.

    Functions and classes lose their decorators; assignments are run with ``scope``, and so are those that
    begin the branches of an if.
    """

    def wanted(node: Any) -> bool:
        if isinstance(node, ast.If):
            return wanted(node.body[0]) and isinstance(node.body[0], ast.Assign)
        if isinstance(node, ast.Assign):
            return any(isinstance(each, ast.Name) and each.id in names for each in node.targets)
        return getattr(node, "name", None) in names

    def found(node: Any) -> list[Any]:
        inside = ast.iter_child_nodes(node)
        return [node] if wanted(node) else [each for child in inside for each in found(child)]

    tree = ast.parse((Path(sys.path[0]) / path).read_text("utf-8"))
    body = found(tree)
    for node in body:
        if hasattr(node, "decorator_list"):
            node.decorator_list = []
    # Annotations are not looked at: this module's own __future__ holds for what it compiles.
    exec(compile(ast.Module(body, []), path, "exec"), scope)
    return scope


def passage(checkout: str, first: str, last: str) -> str:
    """A file's own lines between two that hold these texts, for what stands inside a longer function."""
    result = next(Path(each, checkout) for each in sys.path if Path(each, checkout).is_file())
    lines = result.read_text("utf-8").splitlines()
    start = next(i for i, line in enumerate(lines) if first in line)
    end = next(i for i, line in enumerate(lines[start:], start) if last in line)
    return textwrap.dedent("\n".join(lines[start : end + 1]))


def table(function: Callable[..., list[list[float]]], options: dict[str, str], size: int) -> Any:
    """The advantages of a success and of a failure by the successes, from every 0/1 group.

    Raises:
        AssertionError: they depend on more than the number of successes.
    """
    ones: dict[int, float] = {}
    zeros: dict[int, float] = {}
    for group in itertools.product((0, 1), repeat=size):
        (values,) = function(options, [list(group)])
        for reward, value in zip(group, values, strict=True):
            known = (ones if reward else zeros).setdefault(sum(group), value)
            assert abs(known - value) <= 1e-5 * (1 + abs(known)), (group, values)
    return [[_short(ones[n]) for n in sorted(ones)], [_short(zeros[n]) for n in sorted(zeros)]]


def _short(value: float) -> float:
    return float(f"{value:.7g}")


def run(driver: Any, framework: Framework, commit: str) -> dict[str, Any]:
    """Everything that a driver's framework answers."""
    defaults = {option.name: option.default or "none" for option in framework.options.values()}
    runs: list[dict[str, Any]] = []
    for chosen in framework.combinations():
        values = {**defaults, **chosen}
        record: dict[str, Any] = {}
        try:
            if framework.row(values).estimator:
                record["tables"] = {
                    str(size): table(driver.advantages, values, size) for size in SIZES
                }
        except Refused as refusal:
            record["refused"] = str(refusal)
        record["batches"] = {}
        for label, batch in BATCHES.items():
            try:
                answer = driver.advantages(values, batch)
            except Refused as refusal:
                record["batches"][label] = str(refusal)
            else:
                record["batches"][label] = [[_short(each) for each in group] for group in answer]
        if hasattr(driver, "several"):
            try:
                answer = driver.several(values, SEVERAL, WEIGHTS)
            except Refused as refusal:
                record["several"] = str(refusal)
            else:
                record["several"] = [[_short(each) for each in group] for group in answer]
        losses.add(runs, chosen, record)
    return {**losses.head(framework, commit, driver.FUNCTION), "runs": runs}


def _commit(driver: Any, checkout: Path | None) -> str:
    if checkout is None:
        return "v" + importlib.metadata.version(driver.FUNCTION.partition(".")[0])
    if releases := [*checkout.glob("*.dist-info")]:
        return "v" + releases[0].stem.split("-")[1]
    asked = ["git", "-C", str(checkout), "rev-parse", "HEAD"]
    return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()


def write(name: str, checkout: Path | None = None) -> list[Path]:
    """Record a framework's answers, a line for each choice of options; its loss beside them."""
    if checkout is not None:
        sys.path.insert(0, str(checkout))
    driver = importlib.import_module(f"tests.conformance.{name.replace('-', '_')}")
    framework = catalogue().frameworks[name]
    commit = _commit(driver, checkout)
    records = {DATA / f"{name}.json": run(driver, framework, commit)}
    if hasattr(driver, "loss"):
        records[DATA / "losses" / f"{name}.json"] = losses.run(driver, framework, commit)
    for path, record in records.items():
        runs = ",\n".join(json.dumps(each) for each in record.pop("runs"))
        head = json.dumps(record, indent=0)[:-2]
        path.parent.mkdir(exist_ok=True)
        path.write_text(f'{head},\n"runs": [\n{runs}\n]\n}}\n', "utf-8")
    return [*records]
