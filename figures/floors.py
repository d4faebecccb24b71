"""The floors of both packages, from the import contracts: ``python -m figures.floors`` draws them."""

from __future__ import annotations

import tomllib
from html import escape
from pathlib import Path

from simulations import STEMS

ROOT = Path(__file__).resolve().parents[1]
FILE = Path(__file__).with_name("floors.svg")

WIDTH, HEIGHT, GAP, LETTER = 760, 24, 6, 6.7
"""Pixels: of the picture, of a box, between boxes, and of a letter."""

COLOURS = {"simulations": "#fdf0d5", "ustat_pg": "#dcebf7", "ustat_pg.llm": "#e6f2e2"}
CLAIMS_ABOVE = "shared"
"""Claims stand on what they share."""


def floors(package: str) -> list[list[str]]:
    """The modules of a package by floor, the highest first; those of one floor side by side."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    (layers,) = (
        contract["layers"]
        for contract in project["tool"]["importlinter"]["contracts"]
        if contract.get("containers") == [package]
    )
    found = [layer.replace("|", ":").replace(" ", "").split(":") for layer in layers]
    if package == "simulations":
        found.insert(found.index([CLAIMS_ABOVE]), list(STEMS))
    return found


def _rows(names: list[str]) -> list[list[tuple[str, float]]]:
    """Names with the widths of their boxes, in as many rows as they need."""
    rows: list[list[tuple[str, float]]] = [[]]
    for name in names:
        width = LETTER * len(name) + 14
        if sum(taken + GAP for _, taken in rows[-1]) + width > WIDTH - 4 * GAP:
            rows.append([])
        rows[-1].append((name, width))
    return rows


def picture() -> str:
    """The picture as SVG: floors from the top down, a box for each package and module."""
    parts, y = [], float(GAP)
    for package, colour in COLOURS.items():
        y += 2 * HEIGHT / 3
        parts.append(f'<text x="{GAP}" y="{y:.0f}" font-weight="bold">{package}</text>')
        y += GAP
        for names in floors(package):
            rows = _rows(names)
            height = len(rows) * (HEIGHT + GAP) + GAP
            place = f'x="{GAP}" y="{y:.0f}" width="{WIDTH - 2 * GAP}" height="{height}"'
            parts.append(f'<rect {place} fill="{colour}" stroke="#888"/>')
            y += GAP
            for row in rows:
                x = (WIDTH - sum(width + GAP for _, width in row) + GAP) / 2
                for name, width in row:
                    place = f'x="{x:.0f}" y="{y:.0f}" width="{width:.0f}" height="{HEIGHT}"'
                    parts.append(f'<rect {place} rx="3" fill="white" stroke="#555"/>')
                    place = f'x="{x + width / 2:.0f}" y="{y + 16:.0f}" text-anchor="middle"'
                    parts.append(f"<text {place}>{escape(name)}</text>")
                    x += width + GAP
                y += HEIGHT + GAP
            y += GAP / 2
        y += GAP
    size = f'width="{WIDTH}" height="{y:.0f}" viewBox="0 0 {WIDTH} {y:.0f}"'
    font = 'font-family="monospace" font-size="11"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} {font}>'
    ground = '<rect width="100%" height="100%" fill="white"/>'
    return "\n".join([head, ground, *parts, "</svg>"]) + "\n"


if __name__ == "__main__":
    FILE.write_text(picture(), "utf-8")
