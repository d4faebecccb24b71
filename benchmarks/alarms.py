"""False alarms of sound runs, and how soon a fault is seen, through the public class ``Alarms``.

    python -m benchmarks.alarms           all settings; 300 runs each, minutes on one core
    python -m benchmarks.alarms --runs 30 --only binary

A run is simulated without a trainer: rewards of groups of prompts with pass rates of their own, advantages by
TRL's formulas in single precision, lengths that rewards depend on, outputs that are lost, tokens drawn from
known laws. The alarms are asked after every step, and a run counts if one ever stood. Runs of 30 windows sit
where chance alone is hardest to tell from a fault: exactly half of the groups silent, exactly a twentieth
nearly equal, outputs dropped at random where successes are rare, tokens of a policy that is nearly sure.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.measuring import upper
from ustat_pg.estimators import RunningTable, advantages, norm_weighted
from ustat_pg.noise import Alarms
from ustat_pg.validation import Array

Draw = Callable[[np.random.Generator], dict[str, Any]]


@dataclass(frozen=True)
class Setting:
    """A kind of run.

    Arguments:
        generations: of a generator, an iterator over the arguments of ``Alarms.generation``.
        tokens: of a generator, those of ``Alarms.tokens``.
        steps: of a run.
        window: of its alarms.
        group: G.
        alarm: the fault's alarm; None of a sound run.
    """

    generations: Callable[[np.random.Generator, int], Iterator[dict[str, Any]]] | None = None
    tokens: Draw | None = None
    steps: int = 100
    window: int = 50
    group: int = 8
    alarm: str | None = None


def run(setting: Setting, seed: list[int]) -> dict[str, int]:
    """The first step at which each alarm stood, of one run."""
    rng, alarms = np.random.default_rng(seed), Alarms(setting.window, setting.group)
    made = setting.generations(rng, setting.group) if setting.generations else None
    first: dict[str, int] = {}
    for step in range(1, setting.steps + 1):
        if made is not None:
            alarms.generation(**next(made))
        if setting.tokens is not None:
            alarms.tokens(**setting.tokens(rng))
        for name in alarms.standing():
            first.setdefault(name, step)
        if setting.alarm in first:
            break
    return first


# Advantages by TRL's formulas, in single precision; rewards (B, G), NaN where there is none.


def scaled(z: Array) -> Array:
    z = z.astype(np.float32)
    count = np.isfinite(z).sum(1, keepdims=True)
    # One after another: NumPy's sum by pairs would round less.
    total = np.nan_to_num(z).cumsum(axis=1, dtype=np.float32)[:, -1:]
    centred = z - total / count.astype(np.float32)
    spread = np.sqrt(np.nansum(centred**2, axis=1, keepdims=True) / np.maximum(count - 1, 1))
    return np.nan_to_num(centred / (spread + np.float32(1e-4))).astype(float)


def normalised(z: Array) -> Array:
    """RLOO's with ``normalize_advantages``."""
    z = z.astype(np.float32)
    own = z - (z.sum(1, keepdims=True) - z) / np.float32(z.shape[1] - 1)
    return np.asarray((own - own.mean()) / (own.std(ddof=1) + np.float32(1e-4)), dtype=float)


# Rewards (B, G) and lengths (B, G).


def rates(rng: np.random.Generator, count: int = 16) -> Array:
    """Pass rates of prompts."""
    return np.asarray(rng.beta(1.5, 2.0, count))[:, None]


def binary(rng: np.random.Generator, group: int) -> tuple[Array, Array]:
    """Rewards 0 and 1; longer outputs have fewer of 1."""
    lengths = np.exp(rng.standard_normal((16, group)) + 3)
    chance = rates(rng) * np.minimum(1.0, 40 / (20 + lengths))
    return (rng.random(lengths.shape) < chance).astype(float), lengths


def rare(rng: np.random.Generator, group: int) -> tuple[Array, Array]:
    z = rng.random((16, group)) < 1.2 / group
    return z.astype(float), np.exp(rng.standard_normal(z.shape) + 3)


def levels(*values: float) -> Callable[[np.random.Generator, int], tuple[Array, Array]]:
    def drawn(rng: np.random.Generator, group: int) -> tuple[Array, Array]:
        share = rates(rng)
        picks = (rng.random((16, group)) > share).astype(int) * rng.integers(
            0, len(values), (16, group)
        )
        return np.array(values)[picks], np.exp(rng.standard_normal(picks.shape) + 3)

    return drawn


def graded(rng: np.random.Generator, group: int) -> tuple[Array, Array]:
    lengths = np.exp(rng.standard_normal((16, group)) + 3)
    return rng.standard_normal(lengths.shape) - 0.3 * np.log(lengths), lengths


def silent(share: float) -> Callable[[np.random.Generator, int], tuple[Array, Array]]:
    def drawn(rng: np.random.Generator, group: int) -> tuple[Array, Array]:
        z = np.tile(np.arange(group) % 2.0, (16, 1))
        z[rng.random(16) < share] = 0.1
        return z, np.exp(rng.standard_normal(z.shape) + 3)

    return drawn


def spiked(share: float) -> Callable[[np.random.Generator, int], tuple[Array, Array]]:
    def drawn(rng: np.random.Generator, group: int) -> tuple[Array, Array]:
        z, lengths = graded(rng, group)
        z[rng.random(16) < share] *= 1e-4
        return z, lengths

    return drawn


def of(
    drawn: Callable[[np.random.Generator, int], tuple[Array, Array]],
    weigh: Callable[[Array], Array] = scaled,
    spoil: Callable[[np.random.Generator, dict[str, Array]], dict[str, Array]] | None = None,
    ranked: bool = True,
) -> Callable[[np.random.Generator, int], Iterator[dict[str, Any]]]:
    """Generations of these rewards and advantages, with what happens to them on the way."""

    def generations(rng: np.random.Generator, group: int) -> Iterator[dict[str, Any]]:
        while True:
            z, lengths = drawn(rng, group)
            rows = {"rewards": z, "advantages": weigh(z), "lengths": lengths}
            if spoil is not None:
                rows = spoil(rng, rows)
            groups = np.repeat(np.arange(len(z)), group)
            yield {
                "prompts": groups,
                "ranked": ranked,
                **{name: np.ravel(row) for name, row in rows.items()},
            }

    return generations


# What happens on the way.


def masked(share: float, by: str = "chance") -> Callable[..., dict[str, Array]]:
    """Outputs are lost: at random, the longer ones, or the poorer ones sooner."""

    def spoil(rng: np.random.Generator, rows: dict[str, Array]) -> dict[str, Array]:
        weight = {
            "chance": 1.0,
            "length": rows["lengths"] / 20,
            "reward": np.exp(-2 * rows["rewards"]),
        }[by]
        return rows | {"kept": rng.random(rows["lengths"].shape) > share * weight}

    return spoil


def missing(rng: np.random.Generator, rows: dict[str, Array]) -> dict[str, Array]:
    """A twentieth of the rewards, at random."""
    z = np.where(rng.random(rows["rewards"].shape) < 0.05, np.nan, rows["rewards"])
    return rows | {"rewards": z, "advantages": scaled(z), "kept": np.isfinite(z)}


def unused(by: str) -> Callable[..., dict[str, Array]]:
    """Half of each group is trained on; the others' advantages are 0."""

    def spoil(rng: np.random.Generator, rows: dict[str, Array]) -> dict[str, Array]:
        key = rows["lengths"] if by == "length" else rng.random(rows["lengths"].shape)
        size = key.shape[1]
        kept = key.argsort(axis=1).argsort(axis=1) < size // 2
        own = scaled(np.where(kept, rows["rewards"], np.nan))
        return rows | {"advantages": own}

    return spoil


def turned(rng: np.random.Generator, rows: dict[str, Array]) -> dict[str, Array]:
    """Advantages of the neighbour."""
    return rows | {"advantages": np.roll(rows["advantages"], 1)}


def two_rewards(rng: np.random.Generator, group: int) -> Iterator[dict[str, Any]]:
    """``normalize_then_sum``."""
    while True:
        parts = binary(rng, group)[0], levels(0.1, 0.3, 0.9)(rng, group)[0]
        total = (scaled(parts[0]) + 0.5 * scaled(parts[1])).astype(np.float32)
        own = (total - total.mean()) / (total.std(ddof=1) + np.float32(1e-4))
        yield {
            "prompts": np.repeat(np.arange(16), group),
            "rewards": (parts[0] + 0.5 * parts[1]).ravel(),
            "advantages": np.ravel(own),
            "ranked": False,
        }


def by_norms(z: Array) -> Array:
    """A baseline weighted by squared norms, which need not be alike."""
    norms = np.exp(np.random.default_rng(abs(int(z.sum()))).standard_normal(z.shape))
    return norm_weighted(z, squared_norms=norms)


def learned(rng: np.random.Generator, group: int) -> Iterator[dict[str, Any]]:
    table = RunningTable(group)
    return of(binary, lambda z: np.asarray(table.advantages(z)))(rng, group)


def drawn_tokens(
    heat: float = 1.0,
    blur: float = 0.0,
    sure: float = 1.0,
    lead: float = 0.0,
    best: int = 12,
    rows: int = 32,
    recorded: bool = False,
) -> Draw:
    """Tokens of a policy over 12, drawn at a temperature, from its ``best`` ones, or by other logits."""

    def tokens(rng: np.random.Generator) -> dict[str, Any]:
        logits = 2 * sure * rng.standard_normal((rows, 16, 12))
        logits[..., 0] += lead
        law = (logits + blur * rng.standard_normal(logits.shape)) / heat
        law = np.where(law < np.sort(law, axis=-1)[..., -best, None], -np.inf, law)
        picks = (law + rng.gumbel(size=law.shape)).argmax(-1)[..., None]

        def logs(table: Array) -> Array:
            return np.asarray(table - np.logaddexp.reduce(table, axis=-1, keepdims=True))

        own = logs(logits)
        given = {
            "log_probs": np.take_along_axis(own, picks, -1)[..., 0],
            "mask": np.ones((rows, 16)),
            "entropies": -(np.exp(own) * own).sum(-1),
        }
        if recorded:
            given["recorded"] = np.take_along_axis(logs(law), picks, -1)[..., 0]
        return given

    return tokens


SOUND = {
    "binary, G = 4": Setting(of(binary), group=4),
    "binary, G = 8": Setting(of(binary)),
    "binary, G = 32": Setting(of(binary), group=32),
    "rewards .1 and .9": Setting(of(levels(0.1, 0.9))),
    "rewards .1, .3 and .9, G = 16": Setting(of(levels(0.1, 0.3, 0.9)), group=16),
    "all rewards .1": Setting(of(lambda rng, g: (np.full((16, g), 0.1), np.ones((16, g))))),
    "graded": Setting(of(graded)),
    "RLOO, normalised": Setting(of(levels(0.1, 0.9), normalised)),
    "two rewards, normalised first": Setting(two_rewards),
    "bayes:1,1": Setting(of(binary, lambda z: np.asarray(advantages("bayes:1,1", z)))),
    "norm-weighted": Setting(of(graded, by_norms)),
    "running table": Setting(learned),
    "rewards missing at random": Setting(of(binary, spoil=missing)),
    "a tenth masked at random": Setting(of(binary, spoil=masked(0.1))),
    "half of each group at random, others' advantages 0": Setting(of(binary, spoil=unused(""))),
    "temperature .7": Setting(tokens=drawn_tokens(sure=1 / 0.7)),
    "another engine rounds": Setting(tokens=drawn_tokens(blur=0.03, recorded=True)),
    "half of the groups silent, 30 windows": Setting(of(silent(0.5)), steps=300, window=10),
    "5% of the groups nearly equal, 30 windows": Setting(of(spiked(0.05)), steps=300, window=10),
    "successes rare, G = 32, 1 in 200 lost, 30 windows": Setting(
        of(rare, spoil=masked(0.005)), steps=300, window=10, group=32
    ),
    "a policy nearly sure, 30 windows": Setting(
        tokens=drawn_tokens(lead=14.0, rows=8), steps=300, window=10
    ),
}
FAULTS = {
    "60% of the groups silent": Setting(of(silent(0.6)), alarm="silent"),
    "75% of the groups silent": Setting(of(silent(0.75)), alarm="silent"),
    "10% of the groups nearly equal": Setting(of(spiked(0.1)), alarm="spikes"),
    "advantages of the neighbour": Setting(of(binary, spoil=turned), alarm="groups"),
    "the same, norm-weighted": Setting(of(graded, by_norms, turned), alarm="groups"),
    "the same, two rewards": Setting(
        of(levels(0.1, 0.9), normalised, turned, ranked=False), alarm="groups"
    ),
    "longer ones lost": Setting(of(binary, spoil=masked(0.05, "length")), alarm="survivors"),
    "poorer ones lost": Setting(of(graded, spoil=masked(0.05, "reward")), alarm="survivors"),
    "the shorter half, others' advantages 0": Setting(
        of(binary, spoil=unused("length")), alarm="survivors"
    ),
    "drawn at .9": Setting(tokens=drawn_tokens(heat=0.9), alarm="rollouts"),
    "drawn at .8": Setting(tokens=drawn_tokens(heat=0.8), alarm="rollouts"),
    "drawn at 1.1": Setting(tokens=drawn_tokens(heat=1.1), alarm="rollouts"),
    "of the best 6 of 12 tokens": Setting(tokens=drawn_tokens(best=6), alarm="rollouts"),
    "logits of .15 off, recorded": Setting(
        tokens=drawn_tokens(blur=0.15, recorded=True), alarm="rollouts"
    ),
}


def true_of(name: str, alarm: str) -> bool:
    """Whether an alarm that stood in a sound run says what is so: silent groups are silent."""
    return alarm == "silent" and name == "all rewards .1"


def false_alarms(name: str, runs: int, seed: int = 0) -> dict[str, int]:
    """Runs of a sound setting in which each alarm ever stood."""
    counts = dict.fromkeys(("silent", "spikes", "groups", "survivors", "rollouts"), 0)
    for number in range(runs):
        for alarm in run(SOUND[name], [seed, [*SOUND].index(name), number]):
            counts[alarm] += not true_of(name, alarm)
    return counts


def seen(name: str, runs: int, seed: int = 0) -> list[int | None]:
    """The step at which a fault's alarm first stood, of each run."""
    place = len(SOUND) + [*FAULTS].index(name)
    alarm = FAULTS[name].alarm or ""
    return [run(FAULTS[name], [seed, place, number]).get(alarm) for number in range(runs)]


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="settings whose name has this")
    options = parser.parse_args()
    names = ["silent", "spikes", "groups", "survivors", "rollouts"]
    print(f"| sound, {options.runs} runs each |", " | ".join(names), "|")
    print("|---" * (len(names) + 1) + "|")
    total, count = dict.fromkeys(names, 0), 0
    for name in SOUND:
        if options.only in name:
            counts, count = false_alarms(name, options.runs, options.seed), count + 1
            total = {alarm: total[alarm] + counts[alarm] for alarm in names}
            print(f"| {name} |", " | ".join(str(counts[alarm]) for alarm in names), "|", flush=True)
    runs = max(count, 1) * options.runs
    bounds = (f"{total[alarm]}: below {upper(total[alarm], runs):.2%}" for alarm in names)
    print(f"| all {runs} |", " | ".join(bounds), "|\n")
    print("| fault | alarm | runs that saw it | median step |\n|---|---|---|---|")
    for name, setting in FAULTS.items():
        if options.only in name:
            steps = seen(name, min(options.runs, 50), options.seed)
            found = [step for step in steps if step is not None]
            middle = f"{np.median(found):.0f}" if found else ""
            print(
                f"| {name} | {setting.alarm} | {len(found)} of {len(steps)} | {middle} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
