"""Which pair of a baseline and a group size is taken, and how it is said."""

from __future__ import annotations

from ustat_pg.catalogue.choice import choose

SPEC = "trl scale_rewards=group num_generations=8"


def test_the_worst_case_of_an_interval_decides_not_the_estimate():
    """A pair known to .6 to .75 is taken before one that looks like .4 and may be 1.2."""
    found = {
        ("group-mean", 2): (3.2, 0.4, 0.1, 1.2),
        ("group-mean", 4): (5.6, 0.7, 0.6, 0.75),
        ("std-ddof1", 2): (4.0, 0.5, 0.2, 0.99),
        ("std-ddof1", 4): (7.2, 0.9, 0.85, 0.95),
    }
    ours = (8.0, 1.0, 1.0, 1.0)
    choice = choose(SPEC, 64, [2, 4, 8], lambda pairs: [found.get(pair, ours) for pair in pairs])
    best, resized = choice.best, choice.best_in_use
    assert (best.baseline, best.group_size, best.relative) == ("group-mean", 4, 0.7)
    assert (best.low, best.high, best.noise_to_signal) == (0.6, 0.75, 5.6 / 64)
    assert (resized.baseline, resized.group_size) == ("std-ddof1", 4)
    text = str(choice)
    assert "Take scale_rewards=none with G = 4: 0.7 (95%: 0.6 to 0.75) times the noise" in text
    assert "Without another baseline, scale_rewards=group with G = 4: 0.9 (95%: 0.85 to" in text
    # One whose interval reaches what is in use is not known to be better.
    found = {("group-mean", 2): (3.2, 0.4, 0.1, 1.2)}
    kept = choose(SPEC, 64, [2, 8], lambda pairs: [found.get(pair, ours) for pair in pairs])
    assert kept.best == kept.candidates[0]
