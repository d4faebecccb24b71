"""The runner of errors: a process for each, what is found kept as it comes.

The true program is asked first: an error counts as refuted only where the same claim, run in the same
way, is not refuted without it.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ustat_pg.validation import InputError

from .errors import ENGINES, ROOT, PlantedError

__all__ = ["Found", "Mutants", "source_of"]

COMMAND = (sys.executable, "-m", "simulations.mutants.planted")


@dataclass(frozen=True)
class Found:
    """What became of one error, or of the true program.

    Arguments:
        verdict: one of :data:`~simulations.mutants.errors.VERDICTS`.
        stem: claim that said so, the first that refutes.
        engine: way of running it: exact, or cpu, which simulates too.
        by: what refutes: exact, simulation, control, or design, where a formula fails.
        check: check that refutes, or what an error of the program says.
        seconds: seconds from start to end.
    """

    verdict: str
    stem: str = ""
    engine: str = ""
    by: str = ""
    check: str = ""
    seconds: float = 0.0


def source_of(root: Path = ROOT) -> str:
    """A digest of the program, but for the errors and what plants them."""
    state = hashlib.sha256()
    for room in ("ustat_pg", "simulations"):
        for file in sorted((root / room).rglob("*")):
            if file.suffix in (".py", ".toml") and file.parent.name != "mutants":
                state.update(file.relative_to(root).as_posix().encode())
                state.update(file.read_bytes())
    return state.hexdigest()[:16]


def compiles(error: PlantedError) -> bool:
    """Whether the error changes what is compiled, whose cache must not be shared."""
    text = (ROOT / error.file).read_text(encoding="utf-8")
    return bool(re.search(r"\bimport body\b", text)) or "rng" in error.file


class Mutants:
    """Errors run at one size.

    Arguments:
        size: smoke or quick.
        folder: folder in which what is found is kept.
        workers: processes at a time.
        limit: seconds that one of them may take.
        engines: ways of running claims: exact for enumeration, cpu for simulation too.
        command: the process that reads what is asked.
        verified: whether the true program is known to be confirmed; it is run first where not.
    """

    def __init__(
        self,
        size: str,
        folder: Path,
        workers: int = 1,
        limit: int = 900,
        engines: Sequence[str] = ENGINES,
        command: Sequence[str] = COMMAND,
        verified: bool = False,
    ) -> None:
        self.verified = verified
        self.size, self.folder, self.workers = size, folder.resolve(), workers
        self.limit, self.command, self.engines = limit, command, engines
        self.source = source_of()
        self.kept = self._kept()
        self._lock = threading.Lock()
        self._controls: dict[tuple[str, str], threading.Lock] = {}
        self._own = threading.local()
        self._servers: list[subprocess.Popen[str]] = []
        self._stopped = False

    @property
    def _file(self) -> Path:
        return self.folder / "mutants.jsonl"

    def _kept(self) -> dict[str, Found]:
        """What earlier runs found, by key; a line that was cut off is left out."""
        kept = {}
        if self._file.exists():
            for line in self._file.read_text(encoding="utf-8").splitlines():
                try:
                    row = json.loads(line)
                    kept[row.pop("key")] = Found(**{k: row[k] for k in asdict(Found(""))})
                except (ValueError, KeyError):
                    continue
        return kept

    def key(self, error: PlantedError | None, stems: Sequence[str], engines: Sequence[str]) -> str:
        """A name for what is asked, of this very program."""
        change = None if error is None else (error.file, error.old, error.new)
        text = json.dumps([self.source, self.size, change, list(stems), list(engines)])
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def found(self, error: PlantedError) -> Found | None:
        """What is known of an error: what the first way that refutes it says, else the last."""
        known = None
        for way in self.ways(error):
            known = self.kept.get(self.key(error, error.stems, (way,)))
            if known is None or known.verdict == "REFUTED":
                break
        return known

    def ways(self, error: PlantedError) -> tuple[str, ...]:
        """The ways in which claims are run, in turn, until one refutes."""
        return tuple(way for way in error.engines if way in self.engines)

    def run(
        self, errors: Sequence[PlantedError], on_done: Callable[[PlantedError, Found], None]
    ) -> None:
        """Run the errors of which nothing is known.

        Raises:
            InputError: a claim does not confirm the true program.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        missing = [error for error in errors if self.found(error) is None]
        pool = ThreadPoolExecutor(self.workers)
        futures = {pool.submit(self._settle, error): error for error in missing}
        try:
            for future in as_completed(futures):
                on_done(futures[future], future.result())
        finally:
            with self._lock:
                self._stopped = True
                for server in self._servers:
                    os.killpg(server.pid, signal.SIGKILL)
            pool.shutdown(cancel_futures=True)
            for server in self._servers:
                server.communicate()

    def _settle(self, error: PlantedError) -> Found:
        """Run one error, and the true program where that was not yet run."""
        for way in self.ways(error):
            self._control(error.stems[0], way)
            found = self._ask(error, error.stems, (way,))
            if found.verdict == "REFUTED":
                self._control(found.stem, way)
                break
        return found

    def _control(self, stem: str, engine: str) -> None:
        """Have the claim confirmed without an error."""
        if self.verified:
            return
        with self._lock:
            lock = self._controls.setdefault((stem, engine), threading.Lock())
        with lock:
            found = self._ask(None, (stem,), (engine,))
        if found.verdict != "CONFIRMED":
            raise InputError(
                f"{stem} by {engine} is {found.verdict} without any error"
                f"{f' ({found.check})' if found.check else ''}: nothing can be said of errors there"
            )

    def _ask(
        self, error: PlantedError | None, stems: Sequence[str], engines: Sequence[str]
    ) -> Found:
        key = self.key(error, stems, engines)
        if (known := self.kept.get(key)) is not None:
            return known
        found = self._process(error, stems, engines)
        with self._lock:
            self.kept[key] = found
            name = "" if error is None else error.name
            with self._file.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"key": key, "name": name, **asdict(found)}) + "\n")
        return found

    def _server(self) -> subprocess.Popen[str]:
        """The process that this thread asks."""
        if not hasattr(self._own, "server"):
            with self._lock:
                self._own.server = subprocess.Popen(
                    self.command, cwd=ROOT, text=True, start_new_session=True,
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                )  # fmt: skip
                self._servers.append(self._own.server)
        server: subprocess.Popen[str] = self._own.server
        return server

    def _process(
        self, error: PlantedError | None, stems: Sequence[str], engines: Sequence[str]
    ) -> Found:
        change = None if error is None else (error.module, error.old, error.new)
        asked: dict[str, Any] = {"error": change, "stems": stems, "engines": engines}
        asked |= {"size": self.size, "limit": self.limit}
        asked |= {"file": error.file if error else "", "blocks": str(self.folder / "blocks")}
        start, server = time.monotonic(), self._server()
        assert server.stdin is not None
        assert server.stdout is not None
        with _cache(error) as cache:
            try:
                server.stdin.write(json.dumps({**asked, "cache": cache}) + "\n")
                server.stdin.flush()
                said = server.stdout.readline()
            except BrokenPipeError:
                said = ""
        if self._stopped or not said:
            raise InputError("the process that runs errors has ended")
        row: dict[str, Any] = {"stem": stems[0], **json.loads(said)}
        return Found(seconds=round(time.monotonic() - start, 1), **row)


@contextmanager
def _cache(error: PlantedError | None) -> Iterator[str]:
    """A folder of its own for bodies that the error changes; empty where the cache is shared."""
    if error is None or not compiles(error):
        yield ""
        return
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        yield folder
