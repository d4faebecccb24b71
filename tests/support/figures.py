"""What a drawing shows."""

from __future__ import annotations


def rows(points, name):
    """The points of one figure."""
    return points[points["figure"] == name].reset_index(drop=True)


def spans(axis):
    """The vertical lines of intervals: abscissa, low, high."""
    return {
        (round(float(x), 9), round(float(low), 9), round(float(high), 9))
        for part in axis.collections
        for (x, low), (_, high) in (path.vertices for path in part.get_paths() if len(path) == 2)
    }


def heights(frame):
    """The ends of a frame's intervals, as :func:`spans` has them."""
    return {(round(row["low"], 9), round(row["high"], 9)) for row in frame.to_dict("records")}
