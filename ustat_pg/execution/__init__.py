"""The execution of work: compiled once, and in pieces that fit in memory."""
