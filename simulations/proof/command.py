"""``python -m simulations prove``: prove results by computer algebra, and refute wrong formulas."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import Any

from ustat_pg.display.shown import RIVALS, VERDICTS, coloured
from ustat_pg.validation import InputError

from ..paper import RESULTS, stem_of


def add_arguments(commands: Any, stems: Sequence[str]) -> None:
    command = commands.add_parser(
        "prove",
        help="prove results for every group size and every law, by computer algebra",
        description="Derive results from their definitions by computer algebra, for every group size and "
        "every law of scores and rewards unless said, and compare them with the closed forms that users "
        "call. Nothing is drawn. A wrong formula is refuted where it differs.",
        epilog="Exit codes: 0 all proved and each wrong formula refuted, 1 not, 2 usage or input.",
    )
    command.set_defaults(run=run)
    names = f"of: {', '.join(stems)}; or a label, 'Theorem 2'"
    command.add_argument("claims", nargs="*", metavar="CLAIM", help=names)
    shown = "print each formula, and the difference of each wrong one"
    command.add_argument("--show", action="store_true", help=shown)
    command.add_argument("--json", action="store_true", help="print all of it as JSON")


def run(options: argparse.Namespace) -> int:
    from .results import BY_STEM, NOT_PROVED

    asked = [stem_of(name) for name in options.claims] or list(BY_STEM)
    for stem in asked:
        if stem not in BY_STEM:
            raise InputError(
                f"claim {stem!r} has no proof: it is {NOT_PROVED[stem]}. These have one: {', '.join(BY_STEM)}"
            )
    found = {stem: list(BY_STEM[stem]()) for stem in asked}
    every = [each for statements in found.values() for each in statements]
    if options.json:
        rows = {stem: [_row(each) for each in statements] for stem, statements in found.items()}
        print(json.dumps(rows, ensure_ascii=False))
        return 0 if all(each.holds for each in every) else 1
    for stem, statements in found.items():
        print(f"{RESULTS[stem].label} ({stem})")
        for each in statements:
            _print(each, options.show)
    rivals = [error for each in every for error in each.errors.values()]
    proved, refuted = sum(each.proved for each in every), sum(error != 0 for error in rivals)
    line = f"{proved} of {len(every)} statements PROVED, {refuted} of {len(rivals)} wrong formulas REFUTED."
    print(f"\n{line}")
    if not options.claims:
        print("\nNo proof by algebra, or of a part alone:")
        for stem, why in NOT_PROVED.items():
            print(f"  {RESULTS[stem].label} ({stem}): {why}.")
    return 0 if all(each.holds for each in every) else 1


def _print(statement: Any, shown: bool) -> None:
    from .results import equal_at

    word, colour = ("PROVED", "CONFIRMED") if statement.proved else ("NOT PROVED", "REFUTED")
    line = f"  {word:10}  {statement.what}, for {statement.scope}"
    print(coloured(line, {word: VERDICTS[colour]}))
    if not statement.proved:
        print(f"              the formula is off by {-statement.difference}")
    if shown:
        print(f"              = {statement.formula}")
    for name, error in statement.errors.items():
        word = "REFUTED" if error != 0 else "SURVIVED"
        sizes = equal_at(error) if error != 0 else []
        where = f", equal at G = {', '.join(map(str, sizes))}" if sizes else ""
        off = f": off by {error}" if shown and error != 0 else ""
        print(coloured(f"    {word:8}  {name}{where}{off}", RIVALS))


def _row(statement: Any) -> dict[str, Any]:
    return {
        "what": statement.what,
        "scope": statement.scope,
        "proved": statement.proved,
        "formula": str(statement.formula),
        "difference": str(statement.difference),
        "rivals": {name: str(error) for name, error in statement.errors.items()},
    }
