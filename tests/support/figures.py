"""Lines, intervals and words of a drawing."""

import numpy as np


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


def has(axis, x, y, **look):
    """Whether some line of the axis, of that look, goes through these points, in their order."""
    return any(
        len(line.get_xdata()) == len(x)
        and np.allclose(line.get_xdata(), x, rtol=1e-12, atol=0)
        and np.allclose(line.get_ydata(), y, rtol=1e-12, atol=0)
        for line in axis.get_lines()
        if all(getattr(line, f"get_{name}")() == value for name, value in look.items())
    )


def shown(legend):
    """The words of a legend."""
    return [text.get_text() for text in legend.get_texts()]
