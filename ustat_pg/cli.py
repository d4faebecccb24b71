"""The command ``ustat-pg``: predictions and advice, for a problem in a file or for a language model."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from difflib import get_close_matches
from io import TextIOWrapper
from typing import IO, TYPE_CHECKING, Any, cast

from ._version import __version__
from .commands import clone
from .reading import printable
from .validation import InputError

if TYPE_CHECKING:
    from pathlib import Path

    from .predictions import GroupSizeAdvice

__all__ = ["draw_advice", "flags_of", "guarded", "in_flags", "main", "say_advice"]

OVERVIEW = """\
ustat-pg: the theory of GRPO, verified, and what it says about a training run
  advise PROBLEM --budget K        the group size with the least error at a budget, and what others cost
  explain "trl num_generations=8"  what a trainer's options mean: what they climb, how biased, how noisy
  rewards FILE                     pass rates, and groups without signal, of logged rewards
  predict PROBLEM --group-size G   the exact error of an estimator, and what it is made of
  llm mse --model M --prompts P    the same for a language model; llm sweep trains it
  example, problems                a problem file to start from; problems that go by a name
  verify [CLAIM ...]               every result of the paper, by enumeration and simulation; minutes (*)
  report DIR, figures DIR          a run's page and its figures (*)
(*) in a clone of the repository; ustat-pg COMMAND --help says more of each
Try: ustat-pg example > mine.json; ustat-pg advise mine.json --budget 1024
"""
"""What the command says alone."""


def _parser(words: Sequence[str] = ()) -> argparse.ArgumentParser:
    """The parser of these words."""
    from .commands.arguments import add_explain, add_predict, add_problems
    from .llm.arguments import add_rewards, advise_arguments

    parser = argparse.ArgumentParser(
        prog="ustat-pg", description="Predictions and advice for GRPO's policy gradient."
    )
    parser.add_argument("--version", action="version", version=f"ustat-pg {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    add_predict(commands)
    add_explain(commands)
    advice = commands.add_parser(
        "advise",
        aliases=["group-size"],
        help="the group size with the least error at a budget, and what others cost",
        description="The group size that gives grpo's gradient the least MSE at a budget of "
        "outputs per step, those that are nearly as good, and what others cost: for a problem in a "
        "file, or for a language model and its prompts (--model, --prompts) or a scored pool "
        "(--scored).",
    )
    advise_arguments(advice, "--help-all" in words)
    add_rewards(commands)
    _add_llm(commands)
    commands.add_parser("example", help="print a problem file to start from")
    add_problems(commands)
    for name, (_, text) in clone.COMMANDS.items():
        commands.add_parser(name, help=f"{text} (in a clone of the repository)")
    return parser


def flags_of(parser: argparse.ArgumentParser, options: argparse.Namespace) -> dict[str, str]:
    """The flags of the command that is called, by the names that the library has for them."""
    found: dict[str, str] = {}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            chosen = action.choices.get(getattr(options, action.dest))
            found |= {} if chosen is None else flags_of(chosen, options)
        elif action.option_strings:
            found[action.dest] = action.option_strings[-1]
    return found


def in_flags(message: str, flags: Mapping[str, str]) -> str:
    """A message of the library with the flags that its names have in the shell.

    >>> in_flags("max_new_tokens is 0: shorten it", {"max_new_tokens": "--max-new-tokens"})
    '--max-new-tokens is 0: shorten it'
    >>> in_flags("group size is 0; a group size", {"group_size": "--group-size"})
    '--group-size is 0; a group size'
    """
    for name, flag in flags.items():
        if flag in message:
            continue
        if "_" in name:
            message = re.sub(rf"(?<![\w-]){name}(?![\w=])", flag, message)
        # Of words that a sentence may have otherwise, only the one that a value is told of.
        words = name.replace("_", " ")
        message = re.sub(rf"^{words}(?= (is|are|holds?|has|must) )", flag, message)
    return message


def _add_llm(commands: Any) -> None:
    """The commands on language models alone."""
    from .llm.arguments import add_arguments, mse_arguments
    from .llm.sweep import sweep_arguments

    llm = commands.add_parser(
        "llm",
        help="language models: gradient errors at every group size, training sweeps",
        description="Language models: gradient errors at every group size from one pool of rollouts, "
        "and training sweeps through TRL. Needs pip install 'ustat_pg[llm]'.",
    )
    parts = llm.add_subparsers(dest="part", required=True, metavar="COMMAND")
    mse = parts.add_parser(
        "mse",
        help="Figure 4 for a model: every baseline's MSE at every G",
        description="The gradient MSE of every baseline at every group size, with 95% intervals, from "
        "one scored pool of rollouts. Killed at any moment, the same command with --out continues.",
    )
    add_arguments(mse)
    mse_arguments(mse)
    sweep = parts.add_parser(
        "sweep",
        help="Figure 5 and Table 2: training runs over a grid of group sizes",
        description="Training runs through TRL at a constant number of outputs a step, one process "
        "for each; finished runs are kept, failed ones reported. The results are joined in --out.",
    )
    sweep_arguments(sweep)


def _llm(options: argparse.Namespace) -> int:
    if options.part == "sweep":
        from .llm.sweep import sweep

        return sweep(options)
    from .llm.commands import mse

    mse(options)
    return 0


def _rewards(options: argparse.Namespace) -> None:
    from .llm.rewards import summarise_rewards

    found = summarise_rewards(
        options.file, options.group_sizes, group_by=options.group_by, reward=options.reward
    )
    if options.csv:
        print(found.zero_signal.to_csv(index=False), end="")
    else:
        print(json.dumps(found.to_dict(), allow_nan=False) if options.json else found)


def _advise(options: argparse.Namespace) -> None:
    from .llm.arguments import refuse_ignored, source
    from .predictions import critical_budget, group_size_advice, mse_constants, near_budget
    from .problems import load_problem

    asked_of = source(options)
    if all(
        getattr(options, name) is None
        for name in ("problem", "model", "prompts", "rollouts", "scored")
    ):
        raise InputError(
            "whose group size: name a problem in a file, or a language model (--model M --prompts P) "
            "or a scored pool (--scored FILE)"
        )
    refuse_ignored(options, asked_of)
    if asked_of != "problem":
        from .llm.advise import group_size_of_pool

        if options.plot is not None:
            # Before anything is sampled.
            _refuse_plot(options.plot)
        group_size_of_pool(options, say_advice, draw_advice)
        return
    problem = load_problem(options.problem)
    costly = bool(options.prompt_cost) or options.output_cost is not None
    near = None
    moments = problem.moments()
    known, signal = mse_constants(moments), moments.mean_gradient_sq
    advice = group_size_advice(
        problem,
        options.budget,
        prompt_cost=options.prompt_cost or 0.0,
        output_cost=options.output_cost,
        population=options.population,
    )
    if options.plot is not None:
        draw_advice(advice, options.plot)
    if options.csv:
        print(advice.to_frame().to_csv(index=False), end="")
        return
    if not costly and options.population is None:
        near = near_budget(known, options.budget)
    more = {
        **{name: getattr(known, name) for name in ("c1", "c2", "c3")},
        "gradient_sq": signal,
        "k_crit": critical_budget(known, signal) if signal > 0 else None,
    }
    say_advice(advice, as_json=options.json, more=more, near=near)


def _refuse_plot(path: Path) -> None:
    """Refuse a file that no picture can be written to."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise InputError("a picture needs matplotlib: pip install 'ustat_pg[figures]'") from None
    known = sorted(Figure().canvas.get_supported_filetypes())
    if path.suffix[1:].lower() not in known:
        raise InputError(f"--plot {path}: its name must end in one of {', '.join(known)}")
    if not path.parent.is_dir():
        raise InputError(f"--plot {path}: there is no folder {path.parent}")


def draw_advice(advice: GroupSizeAdvice, path: Path) -> None:
    """Draw an advice into a file.

    Arguments:
        advice: the advice on a group size.
        path: the picture, of a format that Matplotlib writes.

    Raises:
        InputError: Matplotlib is not installed, another format, or a file that cannot be written.
    """
    _refuse_plot(path)
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 3.6), layout="constrained")
    advice.plot(figure.add_subplot())
    try:
        figure.savefig(path)
    except OSError as error:
        raise InputError(f"--plot {path}: {error.strerror}") from None


def say_advice(
    advice: GroupSizeAdvice,
    *,
    as_json: bool = False,
    more: dict[str, Any] | None = None,
    near: tuple[int, int] | None = None,
    advised: str | None = None,
) -> None:
    """Print an advice, as a table with a sentence or as one JSON object.

    Arguments:
        advice: the advice on a group size.
        as_json: which of the two.
        more: what else the object holds.
        near: a budget, and its group size, that is better where no group size here is good.
        advised: the last sentence, where it is not that of constants known exactly.
    """
    from tabulate import tabulate

    if as_json:
        keys = ("group_size", "mse", "ratio_to_best", "zero_signal_share")
        sizes = ("g_star_paper", "g_star_exact", "g_best", "g_interval")
        said = {name: getattr(advice, name) for name in sizes}
        table = [{key: getattr(row, key) for key in keys} for row in advice.table]
        print(json.dumps({**said, "table": table, **(more or {})}, allow_nan=False))
        return
    rows = [
        [
            row.group_size,
            row.batch_size,
            f"{row.mse:.4g}",
            f"{row.ratio_to_best:.3f}" if row.ratio_to_best < 1e4 else f"{row.ratio_to_best:.2g}",
            "-" if row.zero_signal_share is None else f"{row.zero_signal_share:.1%}",
            advice.remark(row),
        ]
        for row in advice.shown
    ]
    header = ["G", "prompts", "MSE", "over the best", "groups with equal rewards", "note"]
    align = ("right",) * 5 + ("left",)
    print(tabulate(rows, header, disable_numparse=True, colalign=align))
    if len(rows) < len(advice.table):
        print(f"({len(rows)} of {len(advice.table)} group sizes; --json gives all)")
    print()
    for text, star in (
        ("best real G", advice.g_star_exact),
        ("the paper's √(c3/c1), reconstructed", advice.g_star_paper),
    ):
        print(f"{text:36}", "none: more prompts gain nothing" if star is None else f"{star:.4g}")
    print()
    print(advised or advice.sentence(near))


@contextmanager
def _plain_warnings(name: str) -> Iterator[None]:
    """Warnings of this library as a line, without the source that they come from."""
    usual = warnings.formatwarning

    def line(message: Any, category: type[Warning], *place: Any, **more: Any) -> str:
        if category.__module__.startswith("ustat_pg"):
            return printable(f"{name}: {message}\n")
        return usual(message, category, *place, **more)

    warnings.formatwarning = line
    try:
        yield
    finally:
        warnings.formatwarning = usual


class _Printable:
    """A stream in whose text nothing steers a terminal: names and words of files are printed, too."""

    def __init__(self, stream: IO[str]):
        self._stream = stream

    def write(self, text: str) -> int:
        return self._stream.write(printable(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def guarded(name: str, command: Callable[[], int]) -> int:
    """Run a command so that whatever goes wrong is one line on stderr and an exit code: 2 for
    input, output and memory, 130 where it was interrupted. An error of the program itself shows its
    traceback and exits with 70.
    """
    for stream in (sys.stdout, sys.stderr):
        # A terminal that knows no Greek gets question marks, not a traceback.
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        try:
            with _plain_warnings(name), redirect_stdout(cast(IO[str], _Printable(sys.stdout))):
                code = command()
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        # The reader has gone, which is its right; Python would complain once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except KeyboardInterrupt as stop:
        said = str(stop) or "interrupted"
        print(f"{name}: {said}", file=sys.stderr)
        return 130
    except InputError as error:
        print(printable(f"{name}: {error}"), file=sys.stderr)
    except MemoryError as error:
        print(f"{name}: out of memory: {error}", file=sys.stderr)
    except OSError as error:
        print(f"{name}: {error.strerror or error}", file=sys.stderr)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    except Exception:
        # An error of ours must not leave Python's exit code 1, which says that a claim is refuted.
        traceback.print_exc()
        return 70
    else:
        return code
    return 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code (2 for usage or input)."""

    def command() -> int:
        words = list(sys.argv[1:] if arguments is None else arguments)
        if words and words[0] in clone.COMMANDS:
            return clone.run(words[0], words[1:])
        parser = _parser(words)
        (commands,) = (each for each in parser._actions if each.dest == "command")
        known = list(commands.choices or ())
        if words and not words[0].startswith("-") and words[0] not in known:
            (nearest,) = get_close_matches(words[0], known, n=1, cutoff=0.0)
            raise InputError(
                f"command {words[0]!r} is unknown: the nearest is {nearest!r} of {', '.join(known)}"
            )
        options = parser.parse_args(words)
        if options.command is None:
            print(OVERVIEW, end="")
            return 0
        try:
            return run(options)
        except InputError as error:
            raise InputError(in_flags(str(error), flags_of(parser, options))) from error

    def run(options: argparse.Namespace) -> int:
        if options.command == "example":
            from .problems import example_problem

            print(json.dumps(example_problem(), indent=1))
        elif options.command in ("advise", "group-size"):
            _advise(options)
        elif options.command == "rewards":
            _rewards(options)
        elif options.command == "llm":
            return _llm(options)
        elif options.command == "problems":
            from .commands.problems import run as problems

            problems(options)
        elif options.command == "explain":
            from .commands.explain import run

            run(options)
        else:
            from .commands.predict import run as predict

            predict(options)
        return 0

    return guarded("ustat-pg", command)


if __name__ == "__main__":
    sys.exit(main())
