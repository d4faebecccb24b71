"""Files that would run code."""

from __future__ import annotations

import os


class Runs:
    """Makes a folder when it is unpickled."""

    def __init__(self, folder):
        self.folder = folder

    def __reduce__(self):
        return os.mkdir, (str(self.folder),)
