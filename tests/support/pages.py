"""Commands and imports that README, pages and examples name, and what each comes to when typed."""

import argparse
import io
import json
import re
import shlex
import subprocess
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from importlib import import_module
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import numpy as np

from simulations.paper import stem_of
from ustat_pg.llm.pool.scored import ScoredPool
from ustat_pg.problems import example_problem
from ustat_pg.validation import one_of

ROOT = Path(__file__).resolve().parents[2]

PAGES = sorted(
    page.relative_to(ROOT).as_posix()
    for pattern in ("*.md", "examples/*.py", "benchmarks/*.*", "theory/**/*.md", "ustat_pg/**/*.md")
    for page in ROOT.glob(pattern)
    # The history has the commands of its time.
    if page.name != "CHANGELOG.md" and "generated" not in page.parts
)

PROGRAM = re.compile(
    r"(ustat-pg|make|python examples/\w+\.py"
    r"|python -m (?:simulations|figures|benchmarks\.\w+|ustat_pg\.llm\.trl\.training))( |$)"
)
SHORT = {
    "ustat-pg": "advise|explain|predict|rewards",
    "python -m simulations": "verify|plan|check|mutants",
}
"""Commands whose program a page may leave out."""

NAMED = re.compile(
    r"(ustat-pg (?:advise|explain|predict|llm mse)|python -m ustat_pg.llm.trl.training)"
    r'(?: (--[a-z-]+)(?: FILE| ".*")?)?'
)
"""A command without what it needs, and perhaps an option of it."""

MEANT = {
    "<stem>": "mse",
    "STEM": "mse",
    "<name>": "exact",
    "check mse NAME": "check mse 'skewed G=2: grpo' --engine exact",
    "estimator NAME": "estimator norm-weighted",
    "NAME option=value": "trl num_generations=8",
    "benchmarks.NAME": "benchmarks.mse_kernel",
    "seeds N": "seeds 2",
    "first N": "first 2",
    "rounds N": "rounds 2",
    "size S": "size smoke",
    "KIND": "tokens",
    "skyrl run.yaml": "skyrl skyrl.yaml",
    "--config FILE": "--config embedded",
    "--prompts P": "--prompts prompts.jsonl",
    "--verifier V": "--verifier mine:reward",
    "[": "",
    "]": "",
    " ...": "",
}
"""What may stand for what a page leaves to its reader."""


def commands(page: str) -> list[str]:
    """The commands of a page: lines of its blocks, then words in backticks."""
    text = (ROOT / page).read_text("utf-8")
    blocks = re.compile(r"^ *```.*\n((?:.*\n)*?) *```$", re.M)
    lines = re.sub(r" *\\\n *", " ", "\n".join(blocks.findall(text))).splitlines()
    # A remark may stand beside a command.
    lines = [line.strip().removeprefix("$ ").partition("   ")[0] for line in lines]
    words = [" ".join(part.split()) for part in re.findall(r"`([^`]+)`", blocks.sub("", text))]
    for program, names in SHORT.items():
        words = [re.sub(rf"^(?=({names}) )", f"{program} ", word) for word in words]
    found = [re.sub(r"^(\w+=\S* )+", "", line) for line in (*lines, *words)]
    for wanted, meant in MEANT.items():
        found = [line.replace(wanted, meant) for line in found]
    return [line for line in found if PROGRAM.match(line)]


def imports(page: str) -> list[str]:
    """The imports in the Python of a page, each on one line."""
    text = re.sub(r"^(>>>|\.\.\.) ", "", (ROOT / page).read_text("utf-8"), flags=re.M)
    blocks = re.findall(r"^ *```(?:python|\{code-cell\} ipython3)\n((?:.*\n)*?) *```$", text, re.M)
    line = r"^(?:from \S+ import (?:\([^)]*\)|[^(\n#]+)|import [\w. ,]+)"
    return [" ".join(found.split()) for block in blocks for found in re.findall(line, block, re.M)]


def files_of_a_reader(folder: Path) -> Path:
    """A folder with the files that pages speak of."""
    rows = [
        {"prompt": f"{n}+1=", "completions": list("23456789"), "rewards": [1, 0, 0, n % 2] * 2}
        for n in range(4)
    ]
    lines = "\n".join(map(json.dumps, rows))
    parts = [
        {"prompt": f"{n}+1=", "completion": text, "right": text < "4", "form": n % 2}
        for n in range(4)
        for text in "2345"
    ]
    texts = {
        "mine.json": json.dumps(example_problem()),
        "prompts.jsonl": json.dumps({"prompt": "1+1=", "answer": "2"}),
        "run.yaml": "algorithm: {adv_estimator: rloo}\nactor_rollout_ref: {rollout: {n: 4}}\n",
        "flat.jsonl": "\n".join(map(json.dumps, parts)),
        "skyrl.yaml": "generator: {n_samples_per_prompt: 4}\n",
        **dict.fromkeys(("mine.py", "parity.py"), "def reward(completions, **columns): ...\n"),
        **dict.fromkeys(
            (
                "FILE",
                "LOG",
                "log.jsonl",
                "rewards.jsonl",
                "new.jsonl",
                "old.jsonl",
                "pool/rollouts.jsonl",
            ),
            lines,
        ),
    }
    (folder / "pool").mkdir()
    for name, text in texts.items():
        (folder / name).write_text(text, "utf-8")
    (folder / "mine.jsonl").write_text(texts["prompts.jsonl"], "utf-8")
    generator = np.random.default_rng(0)
    rewards = generator.integers(0, 2, (32, 8)).astype(float)
    scores = rewards[..., None] + generator.normal(size=(32, 8, 3))
    for name in ("POOL", "pool/scored.npz"):
        ScoredPool.from_scores(rewards, scores).save(folder / name)
    return folder


class Said(NamedTuple):
    """What a command comes to: its exit code and what it prints."""

    code: int
    out: str
    err: str


def said(line: str) -> Said:
    """What a command, or an import, comes to in this process; ``> FILE`` writes there what is printed."""
    line, _, target = line.partition(" | ")[0].partition(" > ")
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        try:
            code = _run(line)
        except SystemExit as stop:
            code = int(stop.code or 0)
        except Exception as error:
            code = 1
            print(*traceback.format_exception_only(error), sep="", end="", file=err)
    if target:
        Path(target).write_text(out.getvalue(), "utf-8")
        out = io.StringIO()
    return Said(code, out.getvalue(), err.getvalue())


def _run(line: str) -> int:
    if (program := PROGRAM.match(line)) is None:
        exec(line, {})
        return 0
    words = shlex.split(line[program.end(1) :], comments=True)
    if program[1] == "make":
        return subprocess.run(
            ["make", "-n", *words], cwd=ROOT, stdout=subprocess.DEVNULL
        ).returncode
    name = program[1].split()[-1].removesuffix(".py").replace("/", ".")
    homes = {
        "ustat-pg": "ustat_pg.cli",
        "simulations": "simulations.__main__",
        "figures": "figures.__main__",
    }
    with mock.patch.object(sys, "argv", [name, *words]):
        return import_module(homes.get(name, name)).main()


@contextmanager
def read_alone() -> Iterator[list[argparse.ArgumentParser]]:
    """Commands that are typed here are read, claims and figures by name among their words, and not run; the
    parsers that read them.
    """
    from figures.catalogue import PICTURES

    parse_args, read = argparse.ArgumentParser.parse_args, []

    def parse(parser: argparse.ArgumentParser, words: Sequence[str] | None = None) -> None:
        read.append(parser)
        options = vars(parse_args(parser, words))
        for claim in (*options.get("claims", ()), *filter(None, [options.get("stem")])):
            stem_of(claim)
        for figure in options.get("names", ()):
            one_of("figure", figure, PICTURES)
        raise SystemExit(0)

    with mock.patch.object(argparse.ArgumentParser, "parse_args", parse):
        yield read


if __name__ == "__main__":
    print(json.dumps([said(line) for line in json.load(sys.stdin)]))
