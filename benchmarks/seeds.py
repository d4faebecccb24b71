"""Verdicts on fresh seeds, counted: ``python -m benchmarks.seeds --seeds N [--first N] [--size S]
[--engine exact] [--on KIND] [--write]``.

Each seed is a whole run of ``verify``, its figures apart: it draws its own problems and, where it
simulates, replications. A seed that is done is a line of a file in ``results/seeds``, so that the same
command goes on where it was stopped; lines of other code are passed over. What it prints is Markdown.
``--write`` puts the count into the table of ``seeds.md``, where all counts are of one code.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from time import process_time
from typing import Any

from tabulate import tabulate

import simulations
from benchmarks.measuring import machine, upper
from simulations import ON_NETWORKS, STEMS, Suite
from simulations.evidence import Options, RivalVerdict, Verdict, run_claims
from simulations.evidence.planted import run_controls
from simulations.evidence.store import Memory
from simulations.evidence.work import bar
from simulations.processes import designs
from ustat_pg.files.digests import source_digest
from ustat_pg.validation import InputError, integer

FOLDER = Path("results/seeds")

PAGE = Path(__file__).with_suffix(".md")
TABLE = re.compile(r"(?<=<!-- counts -->\n).*(?=<!-- end -->)", re.DOTALL)
HEADS = (
    "run", "commit", "code", "seeds", "results", "wrong formulas", "REFUTED", "INCONCLUSIVE",
    "rivals left", "could not run", "not as it should be, 95% bound", "processor minutes",
)  # fmt: skip
"""Of the page's table, with a row for each kind of run."""

NUMBERS = re.compile(r"\d+(\.\d+)?(e-?\d+)?")
"""What differs between one seed's names of checks and another's."""

Record = dict[str, Any]
"""What came of a seed: verdicts by claim, the checks that were not confirmed, the rivals that were not
refuted, of how many; or why it could not be run.
"""


class Kept(Memory):
    """What the first seed of a process enumerated: problems that no seed draws are enumerated once."""

    def __init__(self) -> None:
        super().__init__()
        self.results: dict[str, Record] = {}
        self.open = True

    def get(self, description: Record) -> Record | None:
        return self.results.get(self.key(description))

    def put(self, description: Record, result: Record) -> None:
        if self.open and description["engine"] == "exact":
            self.results[self.key(description)] = result


STORE = Kept()


APART = {"language_models", "mutants", "__main__.py"}
"""What verdicts here do not depend on."""


def code() -> str:
    """A digest of all that verdicts depend on."""
    files = Path(simulations.__file__).parent.rglob("*.py")
    return source_digest(*(file for file in files if not APART & set(file.parts)))


def one_seed(seed: int, size: str, engine: str, on: str) -> Record:
    """The verdicts of one seed, in this process."""
    stems = ON_NETWORKS if on != "bandit" else STEMS
    began = process_time()
    record: Record = {"seed": seed, "claims": {}, "checks": [], "rivals": [], "refused": None}
    record["asked"] = 0
    options = Options(size, engine, seed, 1)
    try:
        made, _, failed = designs(stems, Suite(size, seed, on), figures=False)
        run = run_claims(made, options, STORE).with_failed(failed)
        run = run.controlled(run_controls(made, options))
    except InputError as error:
        return record | {"refused": str(error), "seconds": process_time() - began}
    finally:
        STORE.open = False
    for control in run.controls:
        if not control.held:
            record["checks"].append(["controls", control.name, "NOT HELD"])
    for claim in run.claims:
        record["claims"][claim.stem] = claim.verdict.value
        if claim.stem in failed:
            record["checks"].append([claim.stem, failed[claim.stem], claim.verdict.value])
        for check in claim.checks:
            for findings in check.findings.values():
                if findings.verdict != Verdict.CONFIRMED:
                    record["checks"].append([claim.stem, check.name, findings.verdict.value])
        record["asked"] += len(claim.rivals)
        for rival in claim.rivals:
            if rival.verdict != RivalVerdict.REFUTED:
                record["rivals"].append([claim.stem, rival.name, rival.verdict.value])
    return record | {"seconds": process_time() - began}


def done(file: Path, version: str) -> dict[int, Record]:
    """The records of a file that this code made, by seed; a line that was cut off is none."""
    records: dict[int, Record] = {}
    for line in file.read_text(encoding="utf-8").splitlines() if file.exists() else ():
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if record["code"] == version:
            records[record["seed"]] = record
    return records


def off(record: Record) -> bool:
    """Whether a seed is not as it should be: every claim confirmed, every rival refuted."""
    verdicts = set(record["claims"].values())
    return record["refused"] is not None or verdicts != {"CONFIRMED"} or bool(record["rivals"])


def tables(records: Sequence[Record]) -> Iterator[str]:
    """The counts by claim, and every check and rival that was not as it should be."""
    ran = [record for record in records if record["refused"] is None]
    rows = []
    for stem in dict.fromkeys(stem for record in ran for stem in record["claims"]):
        verdicts = Counter(record["claims"][stem] for record in ran)
        left = sum(any(of == stem for of, *_ in record["rivals"]) for record in ran)
        rows.append(
            [stem, len(ran), verdicts["REFUTED"], verdicts["INCONCLUSIVE"], left,
             upper(len(ran) - verdicts["CONFIRMED"], len(ran))]
        )  # fmt: skip
    held = [set(record["claims"].values()) for record in ran]
    rows.append(
        ["a whole run", len(records), sum("REFUTED" in of for of in held),
         sum("INCONCLUSIVE" in of for of in held), sum(bool(record["rivals"]) for record in ran),
         upper(sum(map(off, records)), len(records))]
    )  # fmt: skip
    heads = ["claim", "seeds", "REFUTED", "INCONCLUSIVE", "rivals left", "not confirmed, 95% bound"]
    yield tabulate(
        rows, heads, tablefmt="github", colalign=("left", *["right"] * 5), floatfmt=".3f"
    )
    yield f"{len(records) - len(ran)} of {len(records)} seeds could not be run."
    if lines := list(_lines(records)):
        yield "\n".join(lines)


def row(records: Sequence[Record], how: tuple[str, str, str], version: str) -> list[str]:
    """The page's row of a count."""
    size, engine, on = how
    run = f"{size}, {'enumeration' if engine == 'exact' else 'both kinds of evidence'}"
    run += "" if on == "bandit" else f", on {on}"
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=PAGE.parent, capture_output=True, text=True
    )
    ran = [record for record in records if record["refused"] is None]
    verdicts = [set(record["claims"].values()) for record in ran]
    counts = (
        max((len(record["claims"]) for record in ran), default=0),
        max((record["asked"] for record in ran), default=0),
        *(sum(word in of for of in verdicts) for word in ("REFUTED", "INCONCLUSIVE")),
        sum(bool(record["rivals"]) for record in ran),
        len(records) - len(ran),
    )
    seeds = f"{len(records)} ({records[0]['seed']} on)"
    bound = f"{upper(sum(map(off, records)), len(records)):.3f}"
    minutes = f"{sum(record['seconds'] for record in records) / 60:.1f}"
    return [run, commit.stdout.strip(), version, seeds, *map(str, counts), bound, minutes]


def with_row(page: str, new: Sequence[str]) -> str:
    """A page with a row in place of that of the same run; rows of other code go."""
    rows = counted(page)
    kept = [old for old in rows if old["code"] == new[2] and old["run"] != new[0]]
    lines = [HEADS, ["---"] * len(HEADS), *(old.values() for old in kept), new]
    text = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    return TABLE.sub(lambda _: text, page)


def counted(page: str) -> list[dict[str, str]]:
    """The rows of a page."""
    (table,) = TABLE.findall(page)
    rows = ([cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()[2:])
    return [dict(zip(HEADS, cells, strict=True)) for cells in rows]


def _lines(records: Iterable[Record]) -> Iterator[str]:
    """A line for each kind of check or rival, with its seeds."""
    where: dict[tuple[str, str, str], list[int]] = {}
    for record in records:
        of_seed = [*record["checks"], *record["rivals"]]
        if record["refused"] is not None:
            of_seed.append(["refused", record["refused"], ""])
        for stem, name, verdict in of_seed:
            where.setdefault((stem, NUMBERS.sub("_", name), verdict), []).append(record["seed"])
    for (stem, name, verdict), seeds in sorted(where.items()):
        yield f"- {stem}: {name}: {verdict}: {len(seeds)}, seeds {', '.join(map(str, seeds[:20]))}"


def _ignore_interruptions() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def settled(seeds: Sequence[int], *how: str, workers: int) -> Iterator[Record]:
    """The records of seeds, as they come: in this process, or each in one of several."""
    if workers == 1:
        yield from (one_seed(seed, *how) for seed in seeds)
        return
    pool = ProcessPoolExecutor(workers, get_context("spawn"), _ignore_interruptions)
    try:
        for future in as_completed([pool.submit(one_seed, seed, *how) for seed in seeds]):
            yield future.result()
    finally:
        pool.shutdown(cancel_futures=True)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--seeds", type=int, required=True, help="how many")
    parser.add_argument("--first", type=int, default=1, help="the first of them (default: 1)")
    parser.add_argument("--size", choices=("smoke", "quick", "full"), default="smoke")
    parser.add_argument("--engine", choices=("cpu", "exact"), default="cpu")
    parser.add_argument("--on", choices=("bandit", "tokens", "transformer"), default="bandit")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--write", action="store_true", help=f"put the count into {PAGE.name}")
    given = parser.parse_args(arguments)
    for name, least in (("seeds", 1), ("first", 0), ("workers", 1)):
        integer(f"--{name}", getattr(given, name), least)
    version, how = code(), (given.size, given.engine, given.on)
    file = FOLDER / f"{'-'.join(how)}.jsonl"
    file.parent.mkdir(parents=True, exist_ok=True)
    wanted = range(given.first, given.first + given.seeds)
    records = done(file, version)
    missing = [seed for seed in wanted if seed not in records]
    with file.open("a", encoding="utf-8") as log, bar("seeds", len(missing), True) as shown:
        try:
            for record in settled(missing, *how, workers=min(given.workers, len(missing) or 1)):
                log.write(json.dumps(record | {"code": version}) + "\n")
                log.flush()
                records[record["seed"]] = record
                shown.update()
        except KeyboardInterrupt:
            print("stopped: the same command goes on", file=sys.stderr)
            return 130
    chosen = [records[seed] for seed in wanted]
    minutes = sum(record["seconds"] for record in chosen) / 60
    print(
        f"Seeds {wanted[0]} to {wanted[-1]}, size {given.size}, engine {given.engine}, on {given.on}; "
        f"code {version}, {minutes:.1f} processor minutes; {machine('numpy', 'scipy', 'numba')}\n"
    )
    print("\n\n".join(tables(chosen)))
    if given.write:
        page = with_row(PAGE.read_text(encoding="utf-8"), row(chosen, how, version))
        PAGE.write_text(page, encoding="utf-8")
    return int(any(map(off, chosen)))


if __name__ == "__main__":
    sys.exit(main())
