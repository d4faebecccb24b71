"""``python -m simulations list | plan | verify | check | prove | mutants``: run the experiments.

Each says what it settles.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ustat_pg.cli import Parser, guarded
from ustat_pg.display.shown import RIVALS, VERDICTS, coloured
from ustat_pg.validation import MOST_WORKERS, InputError, integer

from . import KINDS, ON_A_MODEL, ON_LANGUAGE_MODELS, ON_NETWORKS, STEMS, claim, curves
from .mutants import command as mutants
from .paper import RESULTS, stem_of
from .proof import command as proof

if TYPE_CHECKING:
    import pandas as pd

    from .evidence import Options, Store
    from .evidence.executors import Cluster
    from .evidence.results import Results
    from .problems import Suite

ALL = (*STEMS, *ON_LANGUAGE_MODELS)

ENGINES = ("cpu", "reference", "exact", "cuda", "autograd")

APART = ("cpu", "reference", "exact", "cuda")
"""Engines that run in several processes at the same time."""

# Slow imports are inside the commands, so that a usage message does not wait for them and main handles an
# interruption.


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="python -m simulations", description="Verify the theory of GRPO, result by result."
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    command = commands.add_parser(
        "list", help="the results, and which of them this version verifies"
    )
    command.set_defaults(run=_list)
    for name, run, text in (
        ("plan", _plan, "what a run would draw, and what it would cost"),
        ("verify", _verify, "run and decide"),
    ):
        command = commands.add_parser(
            name,
            help=text,
            description=f"{text.capitalize()}. Killed at any moment, the same command continues.",
            epilog="Exit codes: 0 every claim confirmed, 1 a claim refuted, 2 usage or input, "
            "3 inconclusive, 130 interrupted.",
        )
        command.add_argument(
            "claims",
            nargs="*",
            metavar="CLAIM",
            help=f"of: {', '.join(ALL)}; or a label, 'Theorem 2'",
        )
        _add_suite(command)
        where = command.add_mutually_exclusive_group()
        where.add_argument(
            "--workers",
            type=int,
            help="claims, or blocks of one claim, at a time (default: all cores)",
        )
        if name == "verify":
            where.add_argument(
                "--dask",
                metavar="ADDRESS",
                help="on the Dask cluster with this scheduler, tcp://host:8786",
            )
        command.add_argument("--out", type=Path, metavar="DIR", help="results folder")
        command.set_defaults(run=partial(_on_claims, run))
        if name == "verify":
            command.add_argument(
                "--power",
                action="store_true",
                help="also show which effects the evidence would detect",
            )
    _add_check(commands)
    proof.add_arguments(commands, STEMS)
    mutants.add_arguments(commands, ALL)
    return parser


DURATIONS = {"smoke": "a minute", "quick": "2 to 3 minutes", "full": "23 minutes"}
"""The time of verify for all claims on bandits, on two cores."""


def _add_suite(command: Any) -> None:
    """Add the options of a suite: its problems, size, engine and seed."""
    command.add_argument(
        "--size",
        choices=(*DURATIONS, "card"),
        default="quick",
        help="effort: for all claims, smoke takes {smoke} on two cores, quick (default) {quick}, full "
        "{full}; card is for a GPU; plan says it for each claim".format(**DURATIONS),
    )
    command.add_argument("--engine", choices=ENGINES, default="cpu")
    command.add_argument(
        "--device", default="cpu", help="device of the autograd engine: cpu, cuda or cuda:N"
    )
    command.add_argument(
        "--on", choices=KINDS, default="bandit", help="the kind of problem (default: bandit)"
    )
    command.add_argument(
        "--model",
        metavar="MODEL",
        help="with --on language-model, a model of your own in place of those that ship: smollm2, a .gguf "
        "file, a folder",
    )
    command.add_argument("--seed", type=int, default=0)
    command.add_argument("--json", action="store_true", help="one JSON object on stdout")


def _add_check(commands: Any) -> None:
    command = commands.add_parser(
        "check",
        help="one check of a result alone, as a run's report names it",
        description="Draw the replications of one check again; nothing is stored or read.",
        epilog="Exit codes: 0 confirmed, 1 refuted, 2 usage or input, 3 inconclusive.",
    )
    command.set_defaults(run=_check)
    command.add_argument("stem", metavar="CLAIM", help=f"of: {', '.join(ALL)}")
    command.add_argument("name", metavar="NAME", help="name of the check, as in the report")
    _add_suite(command)
    command.add_argument("--workers", type=int, help="threads (default: all cores)")
    command.add_argument(
        "--replications",
        metavar="N[,N...]",
        help="replications per cell (default: one block, 65,536)",
    )
    command.add_argument(
        "--refute", action="append", default=[], metavar="RIVAL",
        help="a wrong formula that the check must refute to be confirmed; may be repeated",
    )  # fmt: skip


def _suite(options: argparse.Namespace) -> Suite:
    from .problems import Suite

    integer("seed", options.seed, 0)
    if options.workers is not None:
        integer("workers", options.workers, maximum=MOST_WORKERS)
    # Autograd needs the parameters of a network.
    dense = options.engine == "autograd"
    pools = _folder(options) / "pools"
    given = options.size, options.seed, options.on, dense, pools, options.model, options.device
    return Suite(*given)


def _folder(options: argparse.Namespace) -> Path:
    if getattr(options, "out", None) is not None:
        return Path(options.out)
    name = _configuration(options).replace(":", "").replace(" ", "-").replace("/", "_")
    return Path("results") / name


def _unusual(options: argparse.Namespace) -> dict[str, str]:
    """The options of a configuration, except the size, that differ from the default."""
    usual = {"on": "bandit", "model": None, "engine": "cpu", "device": "cpu", "seed": 0}
    given = {name: getattr(options, name) for name in usual}
    return {name: str(value) for name, value in given.items() if value != usual[name]}


def _configuration(options: argparse.Namespace) -> str:
    """The configuration that all results in one folder have."""
    others = _unusual(options).items()
    return " ".join([options.size, *(f"seed {v}" if name == "seed" else v for name, v in others)])


def _earlier(folder: Path, configuration: str) -> Results | None:
    """The results of an earlier run in that folder, or None; another configuration is an error."""
    from .evidence.results import VERDICTS_FILE, load_run

    if not (folder / VERDICTS_FILE).exists():
        return None
    try:
        results = load_run(folder)
    except InputError:
        # Results of an older version cannot be read.
        return None
    if (held := results.run.configuration) != configuration:
        raise InputError(
            f"{folder} holds the results of another run ({held}; this one is {configuration}): give "
            "another --out, or none"
        )
    return results


def _list(options: argparse.Namespace) -> int:
    for stem, result in RESULTS.items():
        print(f"{stem:16} {result.label:15} {result.statement}")
        if result.reconstructed:
            print(f"{'':16} {'':15} Reconstructed: {result.reconstructed}")
    return 0


def _plan(options: argparse.Namespace, stems: Sequence[str]) -> int:
    from .evidence import plan_claims
    from .tables import plan_table

    suite, how = _suite(options), _options(options, None)
    start = time.process_time()
    designs, shown, ends = [], [], [start]
    for stem in stems:
        designs.append(claim(stem, suite))
        shown.append(curves(stem, suite))
        ends.append(time.process_time())
    plans = plan_claims(designs, how, shown)
    for plan, (began, end) in zip(plans, pairwise(ends), strict=True):
        plan.seconds["design"] += end - began
    if options.json:
        fields = ("alpha", "replications", "needed", "seconds")
        rows = [{"stem": p.claim.stem} | {name: getattr(p, name) for name in fields} for p in plans]
        print(json.dumps(rows))
    else:
        print(plan_table(plans, how.drawn.budget))
        print(
            "\nReplications are estimates, by short pilots; seconds are those of one processor, this one, "
            "by\nthe pilots and a sample of what is enumerated, for checks and figures where nothing is "
            f"stored.\nEach process of a run takes {start:.0f} s more to start."
        )
    return 0


def _options(options: argparse.Namespace, cluster: Cluster | None) -> Options:
    from .evidence import Options

    workers = options.workers
    if workers is None:
        workers = (os.cpu_count() or 1) if cluster is None else max(cluster.threads(), 1)
    return Options(
        options.size, options.engine, options.seed, workers, progress=True, device=options.device
    )


def _verify(options: argparse.Namespace, stems: Sequence[str]) -> int:
    from .evidence import Store
    from .evidence.definitions import DEFINITIONS_FILE, definitions
    from .evidence.executors import dask_cluster
    from .evidence.planted import run_controls
    from .evidence.provenance import document
    from .evidence.report import exit_code, power_table, remarks, summary, verdict_table
    from .evidence.results import MARKDOWN_FILE
    from .processes import processes_of, settle, settle_apart

    if options.on == "bandit" and options.size in DURATIONS and sys.stderr.isatty():
        took = DURATIONS[options.size]
        print(f"all claims take {took} on two cores; what is done is kept", file=sys.stderr)
    began = time.perf_counter()
    suite = _suite(options)
    folder = _folder(options)
    configuration = _configuration(options)
    earlier = _earlier(folder, configuration)
    store = Store(folder / "blocks")
    with nullcontext() if options.dask is None else dask_cluster(options.dask) as cluster:
        how = _options(options, cluster)
        # Networks need torch, so one process loads it for all claims.
        together = options.on != "bandit" or options.engine not in APART or cluster is not None
        if together or processes_of(stems, how) == 1:
            settled = settle(stems, suite, how, store.folder, cluster)
        else:
            settled = settle_apart(stems, suite, how, store.folder)
        controls = run_controls([plan.claim for plan in settled.run.plans], how, cluster)
    run, points = settled.run.with_proofs().controlled(controls), settled.points
    stems = [claim.stem for claim in run.claims]
    notes = [*suite.skipped]
    results = whole = document(run, how, _command(options, stems), configuration)
    others = set() if earlier is None else {claim.stem for claim in earlier.claims}
    if earlier is not None and earlier.run.versions == results.run.versions:
        every = [stem for stem in _known(options) if stem in others | set(stems)]
        whole = results.with_earlier(earlier, _command(options, every))
        points = _with_earlier_points(points, folder)
    elif others - set(stems):
        notes.append(
            "earlier rows of this folder come from other code or libraries, and are left out: "
            + ", ".join(stem for stem in _known(options) if stem in others - set(stems))
        )
    _write(store, folder, whole, points, anew=earlier is None or earlier.claims != whole.claims)
    designed, others_of = [plan.claim for plan in settled.run.plans], folder / DEFINITIONS_FILE
    said = definitions(designed, whole.run.versions, None if whole is results else others_of)
    store.write(folder / DEFINITIONS_FILE, said)
    if options.json:
        print(results.json(indent=None))
        return exit_code(run.claims, run.controls)
    print(coloured(verdict_table(run.claims, controls=run.controls), VERDICTS))
    line = f"\n{summary(run.claims)}; {time.perf_counter() - began:.0f} s."
    print(coloured(line, VERDICTS))
    if options.power:
        print(f"\nChecks that would say REFUTED (the likeliest one):\n{power_table(run.claims)}")
    for line in (*remarks(run.claims, run.set_aside, run.controls), *notes):
        print(coloured(f"- {line}", VERDICTS))
    print(f"Report: {folder / MARKDOWN_FILE}")
    return exit_code(run.claims, run.controls)


def _with_earlier_points(points: pd.DataFrame, folder: Path) -> pd.DataFrame:
    """The points of figures, and the points of other figures in the folder."""
    from .evidence.curves import tidy
    from .evidence.results import CURVES_FILE, load_curves

    if not (folder / CURVES_FILE).exists():
        return points
    earlier = load_curves(folder)
    return tidy([earlier[~earlier["figure"].isin(set(points["figure"]))], points])


def _write(store: Store, folder: Path, whole: Results, points: pd.DataFrame, anew: bool) -> None:
    """Write the files of a run; delete figures and pages made from superseded verdicts."""
    from .evidence import results as files
    from .evidence.report import markdown

    if anew:
        pictures = (folder / files.FIGURES_FOLDER).glob("*.[sp][vn]g")
        for stale in (folder / files.HTML_FILE, *pictures):
            stale.unlink(missing_ok=True)
    store.write(folder / files.VERDICTS_FILE, whole.json())
    store.write(folder / files.MARKDOWN_FILE, markdown(whole))
    store.write(folder / files.CHECKS_FILE, whole.frame().to_csv(index=False))
    store.write(folder / files.CURVES_FILE, points.to_csv(index=False))


def _known(options: argparse.Namespace) -> list[str]:
    """The results that apply to the kind of problem."""
    if options.model is not None:
        return list(ON_A_MODEL)
    by_kind = {"language-model": ON_LANGUAGE_MODELS, "bandit": STEMS}
    return list(by_kind.get(options.on, ON_NETWORKS))


def _stems(words: Sequence[str]) -> list[str]:
    """The stems of claims that are given by stem or label; a label may be several words."""
    stems, rest = [], list(words)
    while rest:
        kind, number = rest[0], rest[1] if len(rest) > 1 else ""
        apart = number.isdigit() and not any(map(str.isdigit, kind))
        stems.append(stem_of(f"{kind} {number}" if apart else kind))
        rest = rest[2 if apart else 1 :]
    return stems


def _require_stems(options: argparse.Namespace, stems: Sequence[str]) -> None:
    """Raise an error for unknown results, for results that do not apply to the kind of problem or to language
    models, and if libraries are missing.
    """
    known, models = _known(options), options.on == "language-model"
    if options.model is not None and not models:
        raise InputError(f"--model {options.model}: only --on language-model takes a model")
    if models and options.engine == "exact":
        raise InputError(
            "--on language-model: the completions of a language model cannot be listed"
        )
    if models and not all(find_spec(name) for name in ("torch", "transformers")):
        raise InputError("--on language-model needs pip install 'ustat_pg[llm]'")
    for stem in stems:
        if stem not in known and options.model is not None:
            raise InputError(f"--model takes {', '.join(known)}, not {stem}")
        if stem not in known and stem in ON_LANGUAGE_MODELS:
            raise InputError(f"{stem} is about language models: --on language-model")
        if stem not in known:
            why = "" if models else f"{stem} needs a problem with an interior optimum: "
            raise InputError(f"{why}--on {options.on} takes {', '.join(known)}, not {stem}")


def _require_device(options: argparse.Namespace) -> None:
    """Raise an error for a device that no engine would use, or that does not exist."""
    if options.device == "cpu":
        return
    if options.engine != "autograd":
        raise InputError(f"--device {options.device}: only --engine autograd has one to choose")
    if find_spec("torch") is None:
        raise InputError("--device needs torch: pip install 'ustat_pg[torch]'")
    from ustat_pg.policies.network import device_of

    device_of(options.device)


def _command(options: argparse.Namespace, stems: Sequence[str]) -> str:
    words = ["python -m simulations verify"]
    words += [] if list(stems) == _known(options) else list(stems)
    words += [f"--{name} {getattr(options, name)}" for name in ("size", "engine", "seed")]
    others, apart = _unusual(options), ("on", "model", "device")
    words += [f"--{name} {shlex.quote(others[name])}" for name in apart if name in others]
    return " ".join(words)


def _check(options: argparse.Namespace) -> int:
    from .evidence import Verdict
    from .evidence.report import EXIT_CODES
    from .evidence.results import plain
    from .evidence.runner import check_alone
    from .tables import check_table

    options.stem = stem_of(options.stem)
    _require_stems(options, [options.stem])
    _require_device(options)
    try:
        numbers = [int(word) for word in (options.replications or "").split(",") if word.strip()]
    except ValueError:
        raise InputError(
            f"replications are {options.replications!r}: whole numbers with commas between them"
        ) from None
    suite = _suite(options)
    design = claim(options.stem, suite)
    result = check_alone(design, options.name, _options(options, None), numbers, options.refute)
    if options.json:
        print(json.dumps(plain(result)))
    else:
        evidence, rival, rows = check_table(options.stem, result).partition("\n\nrival ")
        print(coloured(evidence, VERDICTS) + rival + coloured(rows, RIVALS))
    return EXIT_CODES[result.verdict or Verdict.INCONCLUSIVE]


def _on_claims(
    run: Callable[[argparse.Namespace, Sequence[str]], int], options: argparse.Namespace
) -> int:
    """Run a command on the named claims, or on all."""
    named = _stems(options.claims)
    _require_stems(options, named)
    _require_device(options)
    try:
        return run(options, [stem for stem in _known(options) if stem in named or not named])
    except KeyboardInterrupt:
        raise KeyboardInterrupt("interrupted; finished blocks are kept") from None


def _stop(*_: Any) -> None:
    raise KeyboardInterrupt


def main(arguments: Sequence[str] | None = None) -> int:
    def command() -> int:
        options = _parser().parse_args(arguments)
        code: int = options.run(options)
        return code

    signal.signal(signal.SIGTERM, _stop)
    # Torch's large arrays use huge pages, because a backward pass makes and drops a gradient as large as the
    # model.
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    return guarded("simulations", command)


if __name__ == "__main__":
    sys.exit(main())
