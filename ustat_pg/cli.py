"""The command ``ustat-pg``: predictions for a problem in a file."""

from __future__ import annotations

import argparse
import json
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict
from io import TextIOWrapper
from typing import Any

from ._version import __version__
from .validation import InputError

__all__ = ["guarded", "main"]

_ROWS = {
    "mse": "MSE of the minibatch gradient",
    "prompt_term": "  from the choice of prompts",
    "first_order_term": "  from the outputs, order 1/G",
    "second_order_term": "  from not knowing the value, order 1/G²",
    "squared_bias": "  squared bias",
    "oracle_mse": "MSE of the oracle",
    "vanilla_mse": "MSE of vanilla",
    "paper_bound": "MSE with the explicit bound",
}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="ustat-pg", description="Exact predictions for GRPO's policy gradient."
    )
    parser.add_argument("--version", action="version", version=f"ustat-pg {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    predict = commands.add_parser(
        "predict",
        help="the exact MSE of a gradient estimator on a problem",
        description="The exact MSE of a gradient estimator on a problem, and what it is made of.",
    )
    predict.add_argument("problem", metavar="PROBLEM", help="a .json or .npz file")
    predict.add_argument(
        "--baseline",
        default="grpo",
        help="vanilla, grpo, group-mean, oracle, constant, minimum-variance, critic (default: grpo)",
    )
    predict.add_argument("--group-size", type=int, required=True, metavar="G")
    predict.add_argument("--batch-size", type=int, default=1, metavar="B", help="default: 1")
    predict.add_argument(
        "--design",
        default="iid",
        choices=("iid", "fixed", "without-replacement"),
        help="how the prompts of a minibatch are chosen (default: iid)",
    )
    predict.add_argument("--constant", type=float, metavar="V", help="of the baseline constant")
    predict.add_argument(
        "--critic", metavar="FILE", help="JSON list of predicted values, one for each context"
    )
    predict.add_argument("--covariance", action="store_true", help="the matrix as well")
    predict.add_argument("--json", action="store_true", help="one JSON object on stdout")
    commands.add_parser("example", help="print a problem file to start from")
    return parser


def _predict(options: argparse.Namespace) -> None:
    from .predictions import gradient_covariance, gradient_mse
    from .problems import load_problem

    moments = load_problem(options.problem).moments()
    arguments: dict[str, Any] = {
        "baseline": options.baseline,
        "group_size": options.group_size,
        "batch_size": options.batch_size,
        "design": options.design,
        "constant": options.constant,
        "critic": None if options.critic is None else _values(options.critic),
    }
    prediction = asdict(gradient_mse(moments, **arguments))
    covariance = gradient_covariance(moments, **arguments) if options.covariance else None
    if options.json:
        if covariance is not None:
            prediction["covariance"] = covariance.tolist()
        print(json.dumps(prediction))
        return
    for key, text in _ROWS.items():
        if prediction[key] is not None:
            print(f"{text:42} {prediction[key]:.10g}")
    for other in ("oracle", "vanilla"):
        if prediction[f"{other}_mse"] > 0:
            ratio = prediction["mse"] / prediction[f"{other}_mse"]
            print(f"{f'MSE over that of the {other}':42} {ratio:.6g}")
    if covariance is not None:
        print("covariance")
        for row in covariance:
            print(" ".join(f"{value: .6e}" for value in row))


def _values(path: str) -> Any:
    """A critic's values from a JSON list."""
    try:
        with open(path, encoding="utf-8") as file:
            values = json.load(file)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not JSON: {error}") from None
    if not isinstance(values, list):
        raise InputError(f"{path}: it must hold one list of numbers")
    return values


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
        print(f"{name}: {error}", file=sys.stderr)
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
        options = _parser().parse_args(arguments)
        if options.command == "example":
            from .problems import example_problem

            print(json.dumps(example_problem(), indent=1))
        else:
            _predict(options)
        return 0

    return guarded("ustat-pg", command)


if __name__ == "__main__":
    sys.exit(main())
