"""The command ``ustat-pg``: predictions and advice, for a problem in a file or for a language model."""

from __future__ import annotations

import os
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from importlib import import_module
from io import TextIOWrapper
from typing import IO, Any, cast

from ._version import __version__
from .commands import clone
from .commands.arguments import add_explain, add_predict, add_problems
from .commands.model_arguments import (
    ADVISE,
    MSE,
    add_rewards,
    advise_arguments,
    mse_arguments,
)
from .commands.parser import Parser
from .display import shown
from .files.reading import printable
from .llm.trl.sweep import sweep_arguments
from .validation import InputError, typed

OVERVIEW = f"""\
ustat-pg: the theory of GRPO, verified, and what it says about a training run
  advise PROBLEM --budget K        the group size with the least error at a budget, and what others cost
  explain "trl num_generations=8"  what a trainer's options mean: what they climb, how biased, how noisy
  rewards FILE                     why a loss is 0 or a reward flat, and pass rates, from logged rewards
  predict PROBLEM --group-size G   the exact error of an estimator, and what it is made of
  llm mse --model M --prompts P    the same for a language model; llm sweep trains it
  example, problems                a problem file to start from; problems with a name
  verify [CLAIM ...]               every result of the paper, by enumeration and simulation; minutes (*)
  plan [CLAIM ...], check          what verify would draw and cost; one line of its report again (*)
  report DIR, figures DIR          a run's page and its figures (*)
(*) in a clone of the repository, where {clone.MORE}
ustat-pg COMMAND --help says more of each
Try: ustat-pg example > mine.json; ustat-pg advise mine.json --budget 1024
"""
"""The text of the command without words."""

RUNS = {
    **dict.fromkeys(("advise", "group-size"), (".commands.advise", "run")),
    "example": (".commands.problems", "example"),
    "explain": (".commands.explained", "run"),
    "mse": (".commands.language_models", "mse"),
    "predict": (".commands.predict", "run"),
    "problems": (".commands.problems", "run"),
    "rewards": (".commands.advise", "rewards"),
    "sweep": (".llm.trl.sweep", "sweep"),
}
"""The module and the function that run each command, imported when it is called."""

EXAMPLES = {
    "advise": "ustat-pg advise mine.json --budget 1024",
    "group-size": "ustat-pg advise mine.json --budget 1024",
    "explain": "ustat-pg explain trl==0.19.1 num_generations=8 --against 'trl num_generations=8'",
    "rewards": "ustat-pg rewards log.jsonl --group-sizes 4,8",
    "predict": "ustat-pg predict ustat:uneven --group-size 4 --estimator std",
    "problems": "ustat-pg problems uneven",
    "example": "ustat-pg example > mine.json",
    "mse": "ustat-pg llm mse --model embedded:short --samples 8 --limit 16 --out pool",
    "sweep": "ustat-pg llm sweep --config embedded --out sweep",
}
"""The example at the end of each command's help."""


EXTRAS = {
    "omegaconf": "configs",
    **dict.fromkeys(("matplotlib", "seaborn"), "figures"),
    **dict.fromkeys(("accelerate", "datasets", "filelock", "math_verify", "peft", "psutil"), "llm"),
    **dict.fromkeys(("safetensors", "tokenizers", "torch", "transformers", "trl"), "llm"),
    "distributed": "dask",
}
"""Packages that not everyone has, by the extra of pip that brings them."""


LONGEST = 1000
"""Characters of what is wrong that are shown: a name or a number may have thousands."""


def _parser() -> Parser:
    parser = Parser(
        prog="ustat-pg",
        description="Predictions and advice for GRPO's policy gradient.",
        epilog=f"In a clone of the repository {clone.MORE}.",
    )
    parser.add_argument("--version", action="version", version=f"ustat-pg {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    add_predict(commands)
    explain = add_explain(commands)
    advice = commands.add_parser(
        "advise",
        aliases=["group-size"],
        help="the group size with the least error at a budget, and what others cost",
        description="The group size that gives grpo's gradient the least MSE at a budget of "
        "outputs per step, those that are nearly as good, and what others cost: for a PROBLEM in a "
        "file, for a language model and its prompts (--model M --prompts P) or with rollouts of your "
        "own (--model M --rollouts FILE), or for a scored pool (--scored FILE). Each of these with "
        "--help shows what it takes.",
        subjects=ADVISE,
    )
    advise_arguments(advice)
    add_rewards(commands)
    _add_llm(commands)
    commands.add_parser("example", help="print a problem file to start from")
    add_problems(commands)
    for name, command in commands.choices.items():
        command.epilog = f"Example: {EXAMPLES[name]}" if name in EXAMPLES else None
    for name, (_, text) in clone.COMMANDS.items():
        text = f"{text} (in a clone of the repository)"
        commands.add_parser(name, help=text, rest="words", add_help=False)
    # Without those on a model alone, whose names trainers have as well.
    others = {
        flag: command.prog
        for command in reversed([*commands.choices.values()])
        for flag in command.flags("problem")
    }
    explain.set_defaults(others=others)
    return parser


def _add_llm(commands: Any) -> None:
    """The commands on language models alone."""
    llm = commands.add_parser(
        "llm",
        help="language models: gradient errors at every group size, training sweeps",
        description="Language models: gradient errors at every group size from one pool of rollouts, "
        "and training sweeps through TRL. Needs pip install 'ustat_pg[llm]'.",
    )
    parts = llm.add_subparsers(dest="part", required=True, metavar="COMMAND")
    mse = parts.add_parser(
        "mse",
        help="Figure 4 for a model: every estimator's MSE at every G",
        description="The gradient MSE of every estimator at every group size, with 95% intervals, from "
        "one scored pool of rollouts. Killed at any moment, the same command with --out continues. It is "
        "asked of a model (--model M), of rollouts of your own (--model M --rollouts FILE) or of a scored "
        "pool (--scored FILE). Each of these with --help shows what it takes.",
        subjects=MSE,
    )
    mse_arguments(mse)
    sweep = parts.add_parser(
        "sweep",
        help="Figure 5 and Table 2: training runs over a grid of group sizes",
        description="Training runs through TRL at a constant number of outputs a step, one process "
        "for each; finished runs are kept, failed ones reported. The results are joined in --out.",
    )
    sweep_arguments(sweep)
    for name, part in parts.choices.items():
        part.epilog = f"Example: {EXAMPLES[name]}"


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
        # None but the colours of verdicts, which are ours.
        parts = shown.COLOURED.split(text) if shown.colours() else [text]
        parts[::2] = map(printable, parts[::2])
        return self._stream.write("".join(parts))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _say(name: str, error: object) -> None:
    """Print what is wrong as one line, its middle left out where it is long."""
    text = " ".join(str(error).split("\n"))
    if len(text) > LONGEST:
        text = f"{text[: LONGEST // 2]} ... {text[-LONGEST // 2 :]}"
    print(printable(f"{name}: {text}"), file=sys.stderr)


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
        message = str(stop) or "interrupted"
        print(f"{name}: {message}", file=sys.stderr)
        return 130
    except InputError as error:
        _say(name, error)
    except ModuleNotFoundError as error:
        package = str(error.name).partition(".")[0]
        if package not in EXTRAS:
            traceback.print_exc()
            return 70
        _say(name, f"{package} is not installed: pip install 'ustat_pg[{EXTRAS[package]}]'")
    except MemoryError as error:
        _say(name, f"out of memory: {error}")
    except OSError as error:
        place = "" if error.filename is None else f"{error.filename}: "
        _say(name, f"{place}{error.strerror or error}")
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
        options = _parser().parse_args(arguments)
        if options.command is None:
            print(OVERVIEW, end="")
            return 0
        if options.command in clone.COMMANDS:
            return clone.run(options.command, options.words)
        module, name = RUNS[getattr(options, "part", options.command)]
        run = getattr(import_module(module, __package__), name)
        with typed():
            return run(options) or 0

    return guarded("ustat-pg", command)


if __name__ == "__main__":
    sys.exit(main())
