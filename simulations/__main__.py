"""``python -m simulations list | plan | verify``: run the experiments and say what they settle."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ustat_pg.cli import guarded
from ustat_pg.paper import RESULTS
from ustat_pg.validation import InputError

from . import STEMS, claim

if TYPE_CHECKING:
    from ustat_pg.experiment import Options

    from .problems import Suite

# Everything heavy is imported inside the commands: a usage message need not wait for it, and an
# interruption meets the handler in main.


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m simulations", description="Verify the theory of GRPO, result by result."
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser("list", help="the results, and which of them this version verifies")
    for name, text in (
        ("plan", "the replications that a run would take"),
        ("verify", "run and decide"),
    ):
        command = commands.add_parser(
            name,
            help=text,
            description=f"{text.capitalize()}. Killed at any moment, the same command continues.",
            epilog="Exit codes: 0 every claim confirmed, 1 a claim refuted, 2 usage or input, "
            "3 inconclusive, 130 interrupted.",
        )
        command.add_argument("claims", nargs="*", metavar="CLAIM", help=f"of: {', '.join(STEMS)}")
        command.add_argument("--size", choices=("smoke", "quick", "full"), default="quick")
        command.add_argument("--engine", choices=("cpu", "reference", "exact"), default="cpu")
        command.add_argument("--seed", type=int, default=0)
        command.add_argument(
            "--workers", type=int, default=os.cpu_count() or 1, help="threads (default: all cores)"
        )
        command.add_argument("--out", type=Path, metavar="DIR", help="results folder")
        command.add_argument("--problem", metavar="FILE", help="your own problem, .json or .npz")
        command.add_argument("--json", action="store_true", help="one JSON object on stdout")
    return parser


def _suite(options: argparse.Namespace) -> Suite:
    from ustat_pg.problems import load_problem

    from .problems import Suite

    user = None if options.problem is None else load_problem(options.problem)
    return Suite(options.size, options.seed, user)


def _folder(options: argparse.Namespace, suite: Suite) -> Path:
    if options.out is not None:
        return Path(options.out)
    name = options.size if suite.user is None else f"problem-{suite.user.digest}"
    return Path("results") / name


def _list() -> int:
    for stem, result in RESULTS.items():
        mark = "verified" if result.delivered else "planned"
        print(f"{stem:16} {result.label:15} {mark:9} {result.statement}")
    return 0


def _plan(options: argparse.Namespace, stems: Sequence[str]) -> int:
    from ustat_pg.experiment import Store, plan_claims
    from ustat_pg.report import plan_table

    suite, how = _suite(options), _options(options)
    store = Store(_folder(options, suite) / "blocks")
    plans = plan_claims([claim(stem, suite) for stem in stems], how, store)
    if options.json:
        print(
            json.dumps(
                [
                    {
                        "stem": plan.claim.stem,
                        "alpha": plan.alpha,
                        "replications": plan.replications,
                        "needed": plan.needed,
                    }
                    for plan in plans
                ]
            )
        )
    else:
        print(plan_table(plans, how.budget))
    return 0


def _options(options: argparse.Namespace) -> Options:
    from ustat_pg.experiment import Options

    return Options(options.size, options.engine, options.seed, options.workers, progress=True)


def _verify(options: argparse.Namespace, stems: Sequence[str]) -> int:
    from ustat_pg.checks import Verdict
    from ustat_pg.experiment import Store, load_results, run_claims
    from ustat_pg.experiment.results import RESULTS_FILE
    from ustat_pg.report import document, exit_code, remarks, report, verdict_table

    suite, how = _suite(options), _options(options)
    folder = _folder(options, suite)
    store = Store(folder / "blocks")
    run = run_claims([claim(stem, suite) for stem in stems], how, store)
    data = document(run, how)
    store.write(folder / RESULTS_FILE, json.dumps(data, indent=1) + "\n")
    store.write(folder / "report.md", report(run, how, _command(options, stems)))
    store.write(folder / "checks.csv", load_results(folder).to_csv(index=False))
    if options.json:
        print(json.dumps(data))
        return exit_code(run)
    print(verdict_table(run))
    rivals = [rival for result in run.claims for rival in result.rivals]
    refuted = sum(rival.verdict.value == "REFUTED" for rival in rivals)
    confirmed = sum(result.verdict == Verdict.CONFIRMED for result in run.claims)
    print(
        f"\n{confirmed} of {len(run.claims)} results confirmed, {refuted} of {len(rivals)} wrong "
        f"formulas refuted by enumeration and, apart from it, by simulation; {run.seconds:.0f} s."
    )
    for line in remarks(run):
        print(f"- {line}")
    print(f"Report: {folder / 'report.md'}")
    return exit_code(run)


def _command(options: argparse.Namespace, stems: Sequence[str]) -> str:
    words = ["python -m simulations verify"]
    words += [] if tuple(stems) == STEMS else list(stems)
    words += [f"--size {options.size}", f"--engine {options.engine}", f"--seed {options.seed}"]
    words += [f"--problem {options.problem}"] if options.problem else []
    return " ".join(words)


def _stop(*_: Any) -> None:
    raise KeyboardInterrupt


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""

    def command() -> int:
        options = _parser().parse_args(arguments)
        if options.command == "list":
            return _list()
        unknown = [stem for stem in options.claims if stem not in STEMS]
        if unknown:
            raise InputError(f"claim {unknown[0]!r} is unknown: choose of {', '.join(STEMS)}")
        stems = [stem for stem in STEMS if stem in options.claims or not options.claims]
        try:
            return (_plan if options.command == "plan" else _verify)(options, stems)
        except KeyboardInterrupt:
            raise KeyboardInterrupt("interrupted; finished blocks are kept") from None

    signal.signal(signal.SIGTERM, _stop)
    return guarded("simulations", command)


if __name__ == "__main__":
    sys.exit(main())
