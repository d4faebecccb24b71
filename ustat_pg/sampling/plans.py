"""Plans for the number of outputs of a prompt, which depends on its rewards 0 and 1 so far (adaptive_groups).

After certain numbers of outputs a plan looks at the group and decides by n, the outputs drawn, and k, the
successes among them, whether to draw more. A plan is data: a table of chances for each look. Since a plan
sees only rewards, the scores of a finished group are independent given the rewards, so
everything follows from the *number of paths* to each stop t = (n, k):

    P(t) = N(t) pᵏ qⁿ⁻ᵏ,        where N(t) counts the ordered sequences of rewards that stop at t, weighted
                                with the chance that the plan continues at each earlier look.

Counts are whole numbers, or fractions if a plan decides at random, so they are exact at any size.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import pairwise
from math import comb, log
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import xlog1py, xlogy

from ..validation import Array, InputError, integer, one_of, shares

Fate = Literal["nothing", "prompt", "batch"]
Chances = tuple[int | Fraction, ...]
Chance = Callable[[int, int], float | Fraction]

MOST_OUTPUTS = 1024
"""The largest group of a plan, because the whole numbers in its table of paths have as many bits."""
MOST_STATES = 300_000
"""The most pairs of a look and a number of successes that a plan may have."""

EXAMPLES = (
    "8",
    "3+2 if mixed",
    "4,8,16 until 2 successes and 1 failure",
    "16+48 if 0.125..0.75, drop early",
    "8, retry silent 0.5",
    "1..32 until 1 success",
)
"""Examples of plans in words, one of each form."""


@dataclass(frozen=True)
class Stops:
    """The stops t = (n, k) of a plan, in the order of n and k.

    Arguments:
        sizes: n, (T,).
        successes: k, (T,).
        paths: N(t), (T,); whole numbers, or fractions if the plan decides at random.
        mixed_starts: the weighted number of those paths that begin with a success and then a failure.
        kept: the chance that a group which stops there is used, (T,).
    """

    sizes: NDArray[np.int64]
    successes: NDArray[np.int64]
    paths: Chances
    mixed_starts: Chances
    kept: Chances

    @cached_property
    def log_paths(self) -> Array:
        """The logarithm of N(t), (T,)."""
        # Whole numbers of thousands of bits do not fit in a float, but their logarithms do.
        return np.array([log(paths.numerator) - log(paths.denominator) for paths in self.paths])

    @cached_property
    def orders(self) -> Array:
        """The share of the orders of k successes and n - k failures that stop there, N(t)/C(n, k), (T,)."""
        ways = zip(self.paths, self.sizes.tolist(), self.successes.tolist(), strict=True)
        return np.array([float(paths / comb(n, k)) for paths, n, k in ways])

    @cached_property
    def kernel_means(self) -> Array:
        """m(t) = mixed starts over paths: the unbiased estimate of p q at each stop, (T,)."""
        ratios = zip(self.mixed_starts, self.paths, strict=True)
        return np.array([float(mixed / paths) for mixed, paths in ratios])

    def probabilities(self, pass_rates: ArrayLike, won: int = 0, lost: int = 0) -> Array:
        """P(t) / (pʷᵒⁿ q^lost) at each pass rate, (..., T); 0 if a stop has fewer successes or failures.

        The quotient keeps its limit at pass rates of 0 and 1.
        """
        p = np.asarray(pass_rates, dtype=np.float64)[..., None]
        k, failures = self.successes - won, self.sizes - self.successes - lost
        powers = self.log_paths + xlogy(k, p) + xlog1py(failures, -p)
        return np.where((k >= 0) & (failures >= 0), np.exp(powers), 0.0)


@dataclass(frozen=True)
class Plan:
    """A plan: when it looks, how likely it is to draw on, and which finished groups it uses.

    Arguments:
        looks: the increasing numbers of outputs after which it looks; it stops at the last.
        go_on: for each look except the last, the chances to draw more at k = 0, ..., n successes.
        kept: for each look, the chances that a group that stops there at k is used.
        otherwise: the replacement of a group that is not used: ``nothing`` (it adds zero),
            another group of the same ``prompt``, or a group of another prompt to fill the ``batch``.
        text: the plan in words.

    >>> plan = Plan.parse("3+2 if mixed")
    >>> [(int(n), int(k)) for n, k in zip(plan.stops.sizes, plan.stops.successes)]
    [(3, 0), (3, 3), (5, 1), (5, 2), (5, 3), (5, 4)]
    >>> plan.stops.kernel_means.round(4)
    array([0.    , 0.    , 0.3333, 0.3333, 0.3333, 0.3333])
    >>> plan.expected_size([0.5, 1.0])
    array([4.5, 3. ])
    """

    looks: tuple[int, ...]
    go_on: tuple[Chances, ...]
    kept: tuple[Chances, ...]
    otherwise: Fate = "nothing"
    text: str = ""

    @classmethod
    def of(
        cls,
        looks: Iterable[int],
        go_on: Chance = lambda n, k: True,
        kept: Chance = lambda n, k: True,
        otherwise: Fate = "nothing",
        text: str = "",
    ) -> Plan:
        """The plan with chances that are functions of n and k.

        Raises:
            InputError: looks do not increase, chances are outside [0, 1], or there are more states than the
                table can hold.

        >>> Plan.of((2, 4), lambda n, k: k < 2).expected_size(0.5)
        array(3.5)
        """
        sizes = tuple(integer("outputs at a look", size) for size in looks)
        if not sizes or any(after <= before for before, after in pairwise(sizes)):
            raise InputError(f"looks are {list(sizes)}: they must be increasing numbers")
        if sizes[-1] > MOST_OUTPUTS or sum(sizes) > MOST_STATES:
            raise InputError(
                f"the plan draws up to {sizes[-1]} outputs and has {sum(sizes)} states: its "
                f"table holds {MOST_OUTPUTS} outputs and {MOST_STATES} states"
            )
        one_of("otherwise", otherwise, get_args(Fate))
        drawn_on, used, reached = [], [], {0}
        for index, size in enumerate(sizes):
            more = size - (sizes[index - 1] if index else 0)
            reached = {k + j for k in reached for j in range(more + 1)}
            used.append(_row(size, reached, kept))
            if index < len(sizes) - 1:
                drawn_on.append(_row(size, reached, go_on))
                reached = {k for k in reached if drawn_on[-1][k]}
        return cls(sizes, tuple(drawn_on), tuple(used), otherwise, text)

    @classmethod
    def parse(cls, text: str | int | Plan) -> Plan:
        """A plan from its words or from one group size; a plan is returned as it is.

        ``8`` draws groups of 8. ``3+2`` looks after 3 and draws 2 more; ``4,8,16`` looks at 4, 8 and
        16 outputs in total; ``1..32`` after each. ``if EVENT [CHANCE]`` draws more if it is true; ``until
        A successes [and B failures]`` until there are so many. A last clause ``drop``, ``retry`` or
        ``refill EVENT [CHANCE]`` discards finished groups: nothing, a group of the same prompt or
        one of another prompt replaces them. Events: ``mixed``, ``silent`` (equal rewards),
        ``solved``, ``unsolved``, ``early`` (before the last look), ``0.2..0.8`` (share of successes).
        A name in :data:`SCHEMES` means its plan.

        Raises:
            InputError: the words are not a plan; the message shows the place, and gives examples of plans.
        """
        if isinstance(text, Plan):
            return text
        if not isinstance(text, str):
            return cls.of((text,), text=str(text))
        return _parsed(SCHEMES[text].plan if text in SCHEMES else text)

    @property
    def keeping_all(self) -> Plan:
        """The plan with the same draws that uses every group, as an unbiased estimate requires."""
        if all(chance == 1 for chance in self.stops.kept):
            return self
        without = re.sub(r",\s*(drop|retry|refill)\b.*", "", self.text)
        return Plan.of(self.looks, lambda n, k: self.go_on[self.looks.index(n)][k], text=without)

    @property
    def two_stages(self) -> bool:
        """Whether the plan draws more exactly if the rewards of its only pilot are not all equal."""
        if len(self.looks) != 2:
            return False
        first, last = self.looks
        return self.keeping_all == Plan.parse(f"{first}+{last - first} if mixed")

    @cached_property
    def stops(self) -> Stops:
        """The stops that some sequence of rewards reaches, with the number of their paths."""
        first = self.looks[0]
        paths = _ways(first)
        # In paths that begin with a success and a failure, the other first - 2 outputs are free.
        mixed = _between(_ways(first - 2)) if first > 1 else 0 * paths
        rows: list[tuple[Any, ...]] = []
        for index, size in enumerate(self.looks):
            last = index == len(self.looks) - 1
            chances = np.array([0] * (size + 1) if last else self.go_on[index], dtype=object)
            here = np.flatnonzero((paths != 0) & (chances != 1))
            for k in here:
                stop = 1 - chances[k]
                rows.append((size, k, paths[k] * stop, mixed[k] * stop, self.kept[index][k]))
            if not last:
                ways = _ways(self.looks[index + 1] - size)
                if first == 1 and index == 0:
                    # Only at the second output is it known whether a path began with success and failure.
                    mixed = _between(chances[1] * _ways(len(ways) - 2))
                else:
                    mixed = np.convolve(mixed * chances, ways)
                paths = np.convolve(paths * chances, ways)
        columns = list(zip(*rows, strict=True))
        return Stops(np.array(columns[0]), np.array(columns[1]), *map(tuple, columns[2:]))

    def require_two(self) -> None:
        """Refuse a plan that may stop before its second output: the kernel of the first two needs both.

        Raises:
            InputError: the plan may stop before its second output.
        """
        if self.looks[0] == 1 and (len(self.looks) == 1 or min(self.go_on[0]) < 1):
            raise InputError(
                f"{self._called} may stop at one output: a leave-one-out "
                "estimate compares the first two outputs of every path, so it must draw two first"
            )

    def kernel_mean(self, rewards: Array) -> float:
        """m(t), the unbiased estimate of p q after one group's rewards: mixed starts over paths.

        Arguments:
            rewards: 0 and 1 in the order drawn, (n,).

        Raises:
            InputError: the plan would have stopped earlier or drawn more, or it may stop at one output.
        """
        self.require_two()
        size, successes = len(rewards), np.cumsum(rewards).astype(int)
        for look, chances in zip(
            self.looks, (*self.go_on, (0,) * (self.looks[-1] + 1)), strict=True
        ):
            if look > size:
                break
            if chances[successes[look - 1]] == (look == size):
                raise InputError(
                    f"{self._called} {'draws on' if look == size else 'stops'} at {look} outputs with "
                    f"{successes[look - 1]} successes: the group has {size} outputs"
                )
        stops = self.stops
        here = (stops.sizes == size) & (stops.successes == successes[-1])
        if not here.any():
            raise InputError(f"{self._called} does not stop at {size} outputs")
        return float(stops.kernel_means[here][0])

    @property
    def _called(self) -> str:
        return f"plan {self.text or list(self.looks)!r}"

    def kept_share(self, pass_rates: ArrayLike) -> Array:
        """The chance that a finished group is used, in the shape of the pass rates."""
        p = shares("pass rate", pass_rates)
        return self.stops.probabilities(p) @ np.array(list(map(float, self.stops.kept)))

    def expected_size(self, pass_rates: ArrayLike) -> Array:
        """The expected number of outputs drawn for one used group, in the shape of the pass rates.

        The count includes groups that a plan replaces by others of the same prompt. It is infinite if
        no group is ever used, as at a pass rate of 0 or 1 when silent groups are always drawn again. Outputs
        that refill a batch from other prompts are part of :func:`~ustat_pg.predictions.plan_mse`.
        """
        p = shares("pass rate", pass_rates)
        drawn = self.stops.probabilities(p) @ self.stops.sizes
        if self.otherwise != "prompt":
            return np.asarray(drawn)
        with np.errstate(divide="ignore"):
            return np.asarray(drawn / self.kept_share(p))


def _ways(outputs: int) -> Any:
    """The number of sequences of `outputs` rewards by their successes, exactly, (outputs + 1,)."""
    return np.array([comb(outputs, k) for k in range(outputs + 1)], dtype=object)


def _between(ways: Any) -> Any:
    """The numbers of paths after one more success, plus those after one more failure."""
    return np.array([0, *ways, 0], dtype=object)


def _row(size: int, reached: set[int], chance: Chance) -> Chances:
    """The chances at a look; 0 at numbers of successes that no sequence reaches there."""
    exact = []
    for k in range(size + 1):
        value = chance(size, k) if k in reached else 0
        try:
            exact.append(Fraction(value))
        except (TypeError, ValueError, OverflowError):
            exact.append(Fraction(-1))
        if not 0 <= exact[-1] <= 1:
            raise InputError(
                f"chance at {size} outputs with {k} successes is {value!r}: it must lie in [0, 1]"
            )
    return tuple(int(value) if value.denominator == 1 else value for value in exact)


_FATES: dict[str, Fate] = {"drop": "nothing", "retry": "prompt", "refill": "batch"}


_EVENTS: dict[str, Callable[[int, int, int], bool]] = {
    "mixed": lambda n, k, last: 0 < k < n,
    "silent": lambda n, k, last: k in (0, n),
    "solved": lambda n, k, last: k == n,
    "unsolved": lambda n, k, last: k == 0,
    "early": lambda n, k, last: n < last,
}
"""Events as functions of n outputs, k successes, and the outputs at the last look."""

_NUMBER, _COUNT = r"\d*\.?\d+", r"\d{1,9}\s+(?:success(?:es)?|failures?)"
_EVENT = rf"(?:{'|'.join(_EVENTS)}|{_NUMBER}\.\.{_NUMBER})(?:\s+{_NUMBER})?"
_WORDS = re.compile(
    r"\s*(?P<sizes>\d{1,9}(?:\s*\.\.\s*\d{1,9}|(?:\s*\+\s*\d{1,9})+|(?:\s*,\s*\d{1,9})+)?)"
    rf"(?:\s+if\s+(?P<event>{_EVENT})|\s+until\s+(?P<until>{_COUNT}(?:\s+and\s+{_COUNT})?))?"
    rf"(?:\s*,\s*(?P<fate>{'|'.join(_FATES)})\s+(?P<thrown>{_EVENT}))?\s*"
)


def _parsed(text: str) -> Plan:
    """The plan that the words describe."""
    match = _WORDS.match(text)
    end = match.end() if match else 0
    looks_again = match is not None and bool(re.search(r"\D", match["sizes"].strip()))
    if match is None or end < len(text) or looks_again != bool(match["event"] or match["until"]):
        raise InputError(
            f"plan {text!r} cannot be read at {text[end:].strip() or 'its end'!r} (place {end + 1}): "
            "plans are written like "
            f"{'; '.join(map(repr, EXAMPLES))}; events are {', '.join(_EVENTS)}, and shares of "
            "successes such as 0.2..0.8"
        )
    numbers = [int(word) for word in re.findall(r"\d+", match["sizes"])]
    if ".." in match["sizes"]:
        if numbers[1] > MOST_OUTPUTS:
            raise InputError(
                f"plan {text!r} draws up to {numbers[1]} outputs: its table holds {MOST_OUTPUTS}"
            )
        numbers = list(range(numbers[0], numbers[1] + 1))
    looks = np.cumsum(numbers).tolist() if "+" in match["sizes"] else numbers
    go_on: Chance = lambda n, k: True  # noqa: E731
    kept: Chance = lambda n, k: True  # noqa: E731
    if match["event"]:
        go_on = _event(text, match["event"], looks[-1])
    elif match["until"]:
        least = {"s": 0, "f": 0}
        for count, kind in re.findall(r"(\d+)\s+([sf])", match["until"]):
            least[kind] = int(count)
        go_on = lambda n, k: k < least["s"] or n - k < least["f"]  # noqa: E731
    if match["fate"]:
        thrown = _event(text, match["thrown"], looks[-1])
        kept = lambda n, k: 1 - Fraction(thrown(n, k))  # noqa: E731
    otherwise = _FATES[match["fate"]] if match["fate"] else "nothing"
    return Plan.of(looks, go_on, kept, otherwise, " ".join(text.split()))


def _event(text: str, words: str, last: int) -> Chance:
    """The chance that a clause names, by n and k."""
    word, *given = words.split()
    chance = Fraction(given[0]) if given else Fraction(1)
    low, high = map(Fraction, word.split("..")) if ".." in word else (Fraction(0), Fraction(1))
    if chance > 1 or low > high:
        raise InputError(f"plan {text!r}: {words!r} has a chance above 1, or its ends exchanged")
    holds = _EVENTS.get(word, lambda n, k, last: low <= Fraction(k, n) <= high)
    return lambda n, k: chance if holds(n, k, last) else Fraction(0)


@dataclass(frozen=True)
class Scheme:
    """A published sampling scheme: a plan, and the estimator that uses its outputs.

    Arguments:
        plan: the plan in words, at the published settings.
        estimator: the name of the advantages in :func:`~ustat_pg.predictions.plan_weight`.
        source: the paper, and the code if that was read.
        note: parts of the scheme that the plan omits, or settings from elsewhere.
    """

    plan: str
    estimator: str
    source: str
    note: str = ""


SCHEMES = {
    "dapo": Scheme(
        "16, refill silent",
        "std-ddof1",
        "DAPO, arXiv 2503.14476",
        "groups of equal rewards are replaced by other prompts' until the batch is full",
    ),
    "pilot-commit": Scheme(
        "16+48 if 0.125..0.75, drop early",
        "std",
        "Pilot-Commit, arXiv 2605.26606",
        "pilots of earlier steps, and prompts left out for good once solved, are not in it",
    ),
    "speed": Scheme(
        "4+12 if mixed, drop early",
        "grpo",
        "SPEED, arXiv 2506.09016",
        "12 more outputs are those of its code; the pilot of 4 is an example",
    ),
    "reinforce-ada": Scheme(
        "8,16,24,32 until 2 successes and 2 failures",
        "balanced:4",
        "Reinforce-Ada, arXiv 2510.04996, its script's advantages",
    ),
    "reinforce-ada-paper": Scheme(
        "8,16,24,32 until 2 successes and 2 failures",
        "balanced-inverse:4",
        "Reinforce-Ada, arXiv 2510.04996, section 3.2",
        "said to climb log p; it does not",
    ),
    "reinforce-ada-std": Scheme(
        "8,16,24,32 until 2 successes and 2 failures",
        "balanced-std:4",
        "Reinforce-Ada, its code's default",
    ),
    "inverse-sampling": Scheme(
        "2..32 until 1 success",
        "group-mean",
        "AR3PO, arXiv 2509.25808, without its replay",
        "until one output is right; two at least",
    ),
    "never-give-up": Scheme(
        "8, retry silent 0.5",
        "std",
        "a branch of open-instruct",
        "a silent group is drawn again with a chance; 0.5 is an example",
    ),
}
"""Published schemes that choose by the prompt's own rewards in one step only. HORA, AERO, SARA, CERO,
VIGOR and V0.5 divide a budget among the prompts of a batch, or choose by a model of earlier rewards, so no
plan for one prompt can describe them."""
