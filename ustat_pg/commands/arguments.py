"""The commands' arguments, separate from the code that runs them, so ``--help`` imports no library."""

from __future__ import annotations

from typing import Any


def add_predict(commands: Any) -> None:
    """Add the options of ``predict``."""
    predict = commands.add_parser(
        "predict",
        help="compute the exact MSE of a gradient estimator on a problem",
        description="Compute the exact MSE of a gradient estimator on a problem, and its parts.",
    )
    predict.add_argument("problem", metavar="PROBLEM", help="a .json or .npz file, or ustat:NAME")
    predict.add_argument(
        "--estimator",
        metavar="NAME",
        help="grpo (default), vanilla, group-mean, oracle, constant, minimum-variance, critic; "
        "for rewards 0 and 1 also std, std-ddof1, nemo, maxrl, pass-at-k:K, gain-at-k:K, bayes:A,B, "
        "shrinkage:L, best; --enumerate allows these for any rewards, and also norm-weighted",
    )
    sizes = predict.add_mutually_exclusive_group(required=True)
    sizes.add_argument("--group-size", type=int, metavar="G")
    sizes.add_argument(
        "--plan",
        metavar="PLAN",
        help="a plan that sizes groups by their rewards, '3+2 if mixed', or a published scheme (dapo, "
        "pilot-commit, reinforce-ada, ...); --estimator is then sequential (unbiased) or the scheme's own",
    )
    predict.add_argument("--batch-size", type=int, default=1, metavar="B", help="default: 1")
    predict.add_argument(
        "--design",
        default="iid",
        choices=("iid", "fixed", "without-replacement"),
        help="way to draw the prompts of a minibatch (default: iid)",
    )
    predict.add_argument(
        "--constant", type=float, metavar="V", help="baseline of the estimator constant"
    )
    predict.add_argument(
        "--critic", metavar="FILE", help="JSON list of predicted values, one for each context"
    )
    predict.add_argument(
        "--enumerate",
        action="store_true",
        help="enumerate all outcomes if there is no closed form",
    )
    predict.add_argument(
        "--covariance", action="store_true", help="print the covariance matrix too"
    )
    predict.add_argument(
        "--verifier-rates",
        metavar="A,C",
        help="shares of right and of wrong answers that an imperfect verifier accepts; prints "
        "the effect on the gradient, its noise and the best group size, for rewards 0 and 1",
    )
    predict.add_argument("--json", action="store_true", help="print one JSON object on stdout")


def add_explain(commands: Any) -> Any:
    """Add the parser of ``explain``."""
    explain = commands.add_parser(
        "explain",
        help="say what a trainer's options climb, and how biased and noisy they are",
        description="Say what the options of a trainer mean for rewards 0 and 1: the estimator, "
        "what it climbs, its bias and noise, and the options that change nothing.",
        allow_abbrev=False,
        # A trainer's own options, in the form of its command line.
        rest="estimator",
    )
    explain.add_argument(
        "estimator",
        nargs="*",
        metavar="ESTIMATOR",
        help="a framework, or a release of it, trl==0.19.1, and its own options, trl scale_rewards=group "
        "num_generations=8 or openrlhf --n_samples_per_prompt 8; a file of options (YAML, JSON, TOML, "
        "Python, a notebook, training_args.bin) or the folder of a Hydra run; the script or the command that "
        "starts a run; a published way of sampling (dapo, pilot-commit, ...); or an estimator, std",
    )
    explain.add_argument(
        "--against",
        metavar="OPTIONS",
        help="compare with the effects of these options: 'verl run.yaml'",
    )
    explain.add_argument(
        "--group-size",
        type=int,
        metavar="G",
        help="group size; it replaces the one in a trainer's options",
    )
    explain.add_argument(
        "--pass-rate",
        action="append",
        default=[],
        metavar="P",
        help="pass rate of a prompt; several (with commas, or repeated) are equally likely prompts",
    )
    text = "norm of the gradient at each pass rate (default: proportional to the root of p(1-p))"
    explain.add_argument("--gradient-norms", metavar="A,B,C", help=text)
    explain.add_argument(
        "--pass-rates",
        "--rollouts",
        metavar="FILE",
        help="a JSON list of pass rates; or rewards or a trainer's log, as for ustat-pg rewards",
    )
    text = "columns of a log that define a group (default: prompt and step)"
    explain.add_argument("--group-by", nargs="+", default=(), metavar="COLUMN", help=text)
    text = "reward column, or a sum of columns, correct+0.5*format, if a log has several"
    explain.add_argument("--reward", metavar="COLUMN", help=text)
    explain.add_argument(
        "--problem", metavar="FILE", help="a .json or .npz file, in place of pass rates"
    )
    explain.add_argument(
        "--reward-rates",
        metavar="RATES",
        help="pass rates of several 0/1 rewards at a prompt: format=.9,correct=.2 if they are independent "
        "given the prompt, else with the chance of both, format+correct=.2; or a JSON file of these. Prints "
        "which gradients add up if rewards are summed or normalised separately (GDPO)",
    )
    explain.add_argument(
        "--weights",
        metavar="W",
        help="weights of these rewards, 1,.5 (default: the weights in a trainer's options, or 1)",
    )
    text = "learning rate, for the bias of several passes over the same outputs"
    explain.add_argument("--rate", type=float, metavar="ETA", help=text)
    text = (
        "print everything: the curve, definitions, notes on the framework and its other names too"
    )
    explain.add_argument("--all", action="store_true", help=text)
    explain.add_argument("--plot", metavar="FILE", help="plot w against the pass rate")
    explain.add_argument("--json", action="store_true", help="print one JSON object on stdout")
    return explain


def add_problems(commands: Any) -> None:
    """Add the options of ``problems``."""
    problems = commands.add_parser(
        "problems",
        help="list the named problems, ustat:NAME, for citing and comparing",
        description="List the problems that ship with the library. Every command accepts their "
        "names: ustat-pg advise ustat:uneven --budget 64.",
    )
    problems.add_argument("name", nargs="?", metavar="NAME", help="print the file of this problem")
    problems.add_argument("--json", action="store_true", help="print one JSON object on stdout")
