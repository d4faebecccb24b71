"""Training sweeps over the group size: a grid of TRL runs, one process and one folder for each.

A sweep is a YAML file with the settings of a run (:mod:`ustat_pg.llm.trl.training`), with lists under
``grid`` for some of :data:`GRID`, and with arguments of ``accelerate launch`` under ``launch`` if a run has
several processes. Its folder contains::

    OUT/sweep.yaml                      what all runs share
    OUT/<place in the grid>/run.yaml    the settings of a run
                            log.txt     the output of its process
                            finished.json   TRL's log, once the run is finished

A rerun skips finished runs and continues the others: from TRL's last checkpoint if ``save_strategy`` is set,
    else from the start. A failed run is reported, and the others continue.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any

from ...files.reading import read_yaml
from ...files.whole import whole_file
from ...validation import MOST_WORKERS, InputError, integer

GRID = ("trainer", "gradient_accumulation_steps", "num_generations", "seed")
"""Settings that a grid may vary; a step has the budget K = B G, times the accumulation steps."""

PRESETS = Path(__file__).with_name("presets")
"""Sweeps that ship with the library: the paper's ``figure5`` and ``table2``, and ``embedded``."""

_VALUE = re.compile(r"[\w.:,+-]{1,64}", re.ASCII)
"""The pattern of a grid's values, which become names of folders."""

_TAIL = 20
"""The number of reported lines of a failed run's log."""


@dataclass(frozen=True)
class Sweep:
    """A grid of runs over values of some of :data:`GRID`; without ``launch`` each run is one process.

    >>> sweep = Sweep({"max_steps": 10}, {"num_generations": (4, 8), "seed": (0, 1)})
    >>> list(sweep.runs())[:2]
    ['num_generations=4,seed=0', 'num_generations=4,seed=1']
    """

    base: Mapping[str, Any]
    grid: Mapping[str, Sequence[Any]]
    launch: tuple[str, ...] = ()

    @classmethod
    def read(cls, file: str | Path) -> Sweep:
        """The sweep of a YAML file, or of a preset by its name."""
        preset = PRESETS / f"{file}.yaml"
        path = preset if preset.is_file() else Path(file)
        base = read_yaml(path)
        if not isinstance(base, dict):
            raise InputError(f"{path} has no settings: it must have lines such as model: NAME")
        grid, launch = base.pop("grid", {}), base.pop("launch", [])
        if not isinstance(launch, list):
            raise InputError(f"{path}: launch is {launch!r}: it must be a list of arguments")
        if not isinstance(grid, dict) or not set(grid) <= set(GRID):
            raise InputError(
                f"{path}: grid is {grid!r}: it must have lists for some of {', '.join(GRID)}; other "
                "settings need sweeps of their own, in folders of their own"
            )
        for name, values in grid.items():
            if not isinstance(values, list) or not values or len({*map(str, values)}) < len(values):
                raise InputError(
                    f"{path}: {name} is {values!r}: list at least one value, and each value once"
                )
            for value in values:
                if not isinstance(value, int | str) or not _VALUE.fullmatch(str(value)):
                    raise InputError(
                        f"{path}: {name} has {value!r}, and a folder is named by it: it must be a whole "
                        "number, or a word of letters, digits and . : , + - _"
                    )
        return cls(base, grid, tuple(map(str, launch)))

    def runs(self) -> dict[str, dict[str, Any]]:
        """The settings of each run, by the name of its folder."""
        runs = {}
        for values in product(*self.grid.values()):
            point = dict(zip(self.grid, values, strict=True))
            name = ",".join(f"{setting}={value}" for setting, value in point.items())
            runs[name or "run"] = {**self.base, **point}
        return runs

    def prepare(self, out: Path) -> dict[str, list[str]]:
        """Write the folder of each unfinished run, and return the command that runs it."""
        from .training import FINISHED

        shared = out / "sweep.yaml"
        before = read_yaml(shared) if shared.exists() else self.base
        if changed := [
            f"{name} {before.get(name)!r}, not {self.base.get(name)!r}"
            for name in {**before, **self.base}
            if before.get(name) != self.base.get(name)
        ]:
            raise InputError(
                f"{out} contains a sweep with {'; '.join(changed)}: use another folder, because "
                f"a table has one sweep"
            )
        _write(shared, self.base)
        commands = {}
        for name, settings in self.runs().items():
            folder = out / name
            if not (folder / FINISHED).exists():
                _write(folder / "run.yaml", settings | {"output_dir": str(folder)})
                start = ("-m", "accelerate.commands.launch", *self.launch) if self.launch else ()
                module = ("-m", "ustat_pg.llm.trl.training", "--config", str(folder / "run.yaml"))
                commands[name] = [sys.executable, *start, *module]
        return commands

    def run(
        self, out: str | Path, workers: int = 1, say: Callable[[str], None] = print
    ) -> tuple[str, ...]:
        """Run the unfinished runs, and return the names of those that failed.

        The folder of an earlier sweep is continued, with the same grid or another. ``say`` gets a line for
        each run that ends.
        """
        folder = Path(out).resolve()
        commands = self.prepare(folder)

        def one(name: str) -> str | None:
            log = folder / name / "log.txt"
            with log.open("ab") as file:
                environment = os.environ | {"TOKENIZERS_PARALLELISM": "false"}
                code = subprocess.run(
                    commands[name], stdout=file, stderr=subprocess.STDOUT, env=environment
                ).returncode
            say(f"{name}: {'failed' if code else 'finished'}")
            if code:
                lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-_TAIL:]
                say("\n".join([f"exit code {code}; the end of {log}:", *lines]))
            return name if code else None

        with ThreadPoolExecutor(integer("workers", workers, maximum=MOST_WORKERS)) as pool:
            return tuple(name for name in pool.map(one, commands) if name)


def _write(path: Path, settings: Mapping[str, Any]) -> None:
    import yaml

    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as file:
        file.write(yaml.safe_dump(dict(settings), sort_keys=False).encode())


def sweep_arguments(command: argparse.ArgumentParser) -> None:
    """Add the options of ``ustat-pg llm sweep``."""
    presets = ", ".join(sorted(path.stem for path in PRESETS.glob("*.yaml")))
    command.add_argument(
        "--config",
        metavar="FILE",
        help="the sweep in YAML: settings of a run, TRL's under TRL's names, and lists under grid: "
        f"for some of {', '.join(GRID)}; or one that ships with the library: {presets}. Without it "
        "nothing runs, and the results in --out are joined",
    )
    command.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        required=True,
        help="folder of the runs and the joined results",
    )
    command.add_argument(
        "--workers", type=int, default=1, metavar="N", help="number of runs at a time"
    )
    command.add_argument(
        "--print",
        action="store_true",
        help="run nothing; print the shell command of each unfinished run",
    )


def sweep(options: argparse.Namespace) -> int:
    """Run the command ``ustat-pg llm sweep``, and return the exit code: 3 if a run failed."""
    from .results import say_results

    failed: tuple[str, ...] = ()
    if options.config is not None:
        runs = Sweep.read(options.config)
        if options.print:
            for command in runs.prepare(options.out.resolve()).values():
                print(shlex.join(command))
            return 0
        if find_spec("trl") is None:
            # Otherwise each run would report this after seconds.
            raise InputError("a sweep needs pip install 'ustat_pg[llm]': there is no TRL")
        failed = runs.run(options.out, options.workers)
    say_results(options.out)
    return 3 if failed else 0
