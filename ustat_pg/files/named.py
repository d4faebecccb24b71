"""The readers of problems that are given by a name or as a file.

Rooms that take problems stand below those that read them; so the package's face says here who reads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

READERS: dict[str, Callable[[Any], Any]] = {}
"""What reads a problem with moments, and one with episodes, under these two words."""
