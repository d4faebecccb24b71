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
ustat-pg: the theory of GRPO, verified, and its advice for a training run
  advise PROBLEM --budget K        find the group size with the least error at a budget
  explain "trl num_generations=8"  say what a trainer's options climb, and their bias and noise
  rewards FILE                     say from logged rewards why a loss is 0 or a reward is flat
  predict PROBLEM --group-size G   compute the exact error of an estimator, and its parts
  llm mse --model M --prompts P    measure the errors for a language model; llm sweep trains it
  example, problems                print an example of a problem file; list the named problems
  verify [CLAIM ...]               check every result of the paper, in minutes (*)
  plan [CLAIM ...], check          show what verify would draw and cost; repeat one check (*)
  report DIR, figures DIR          make a run's page and its figures (*)
(*) only in a clone of the repository; there {clone.MORE}
ustat-pg COMMAND --help describes each command
Try: ustat-pg example > mine.json; ustat-pg advise mine.json --budget 1024
"""
"""The text that the command prints without arguments."""

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
    "sympy": "proof",
}
"""Optional packages, with the extra of pip that installs them."""


LONGEST = 1000
"""The most characters of an error message that are shown: a name or a number may have thousands."""


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
        help="find the group size with the least error at a budget, and the cost of others",
        description="Find the group size that gives grpo's gradient the least MSE at a budget of outputs per "
        "step, the group sizes that are nearly as good, and the cost of others. The subject is a PROBLEM in "
        "a file, a language model and its prompts (--model M --prompts P), your own rollouts (--model M "
        "--rollouts FILE), or a scored pool (--scored FILE). Add --help to one of these to see its options.",
        subjects=ADVISE,
    )
    advise_arguments(advice)
    add_rewards(commands)
    _add_llm(commands)
    commands.add_parser("example", help="print an example of a problem file")
    add_problems(commands)
    for name, command in commands.choices.items():
        command.epilog = f"Example: {EXAMPLES[name]}" if name in EXAMPLES else None
    for name, (_, text) in clone.COMMANDS.items():
        text = f"{text} (in a clone of the repository)"
        commands.add_parser(name, help=text, rest="words", add_help=False)
    # Options of the model alone are left out, because trainers have options with the same names.
    others = {
        flag: command.prog
        for command in reversed([*commands.choices.values()])
        for flag in command.flags("problem")
    }
    explain.set_defaults(others=others, own=explain.flags())
    return parser


def _add_llm(commands: Any) -> None:
    """The commands that need a language model."""
    llm = commands.add_parser(
        "llm",
        help="measure gradient errors of language models at every group size, or train them in sweeps",
        description="Measure gradient errors of language models at every group size from one pool of "
        "rollouts, or train them in sweeps with TRL. This needs pip install 'ustat_pg[llm]'.",
    )
    parts = llm.add_subparsers(dest="part", required=True, metavar="COMMAND")
    mse = parts.add_parser(
        "mse",
        help="measure every estimator's MSE at every G (Figure 4 for a model)",
        description="Measure the gradient MSE of every estimator at every group size, with 95% intervals, "
        "from one scored pool of rollouts. If the command is killed, the same command with --out continues. "
        "The subject is a model (--model M), your own rollouts (--model M --rollouts FILE) or a scored pool "
        "(--scored FILE). Add --help to one of these to see its options.",
        subjects=MSE,
    )
    mse_arguments(mse)
    sweep = parts.add_parser(
        "sweep",
        help="train over a grid of group sizes (Figure 5 and Table 2)",
        description="Train with TRL at a constant number of outputs per step, with one process per run. "
        "Finished runs are kept and failed runs are reported. The results are joined in --out.",
    )
    sweep_arguments(sweep)
    for name, part in parts.choices.items():
        part.epilog = f"Example: {EXAMPLES[name]}"


@contextmanager
def _plain_warnings(name: str) -> Iterator[None]:
    """Print this library's warnings as one line, without the source line."""
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
    """A stream that removes control characters, because names and words from files are printed too."""

    def __init__(self, stream: IO[str]):
        self._stream = stream

    def write(self, text: str) -> int:
        # The colours of verdicts are kept.
        parts = shown.COLOURED.split(text) if shown.colours() else [text]
        parts[::2] = map(printable, parts[::2])
        return self._stream.write("".join(parts))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _say(name: str, error: object) -> None:
    """Print an error message as one line; the middle of a long message is left out."""
    text = " ".join(str(error).split("\n"))
    if len(text) > LONGEST:
        text = f"{text[: LONGEST // 2]} ... {text[-LONGEST // 2 :]}"
    print(printable(f"{name}: {text}"), file=sys.stderr)


def guarded(name: str, command: Callable[[], int]) -> int:
    """Run a command and turn each error into one line on stderr and an exit code: 2 for input, output and
    memory, 130 for an interruption. An error of the program itself shows its traceback and exits with 70.
    """
    for stream in (sys.stdout, sys.stderr):
        # A terminal without Greek letters gets question marks, not a traceback.
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        try:
            with _plain_warnings(name), redirect_stdout(cast(IO[str], _Printable(sys.stdout))):
                code = command()
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        # The reader closed the pipe, which is allowed; Python would report it again at exit.
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
        # An error of the program must not exit with Python's code 1, which means that a claim is refuted.
        traceback.print_exc()
        return 70
    else:
        return code
    return 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return the exit code (2 for usage or input errors)."""

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
