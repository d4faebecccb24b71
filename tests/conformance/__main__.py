"""``python -m tests.conformance NAME [CHECKOUT]``."""

import sys
from pathlib import Path

from .record import write

if __name__ == "__main__":
    _, name, *checkouts = sys.argv
    print(*write(name, *map(Path, checkouts)))
