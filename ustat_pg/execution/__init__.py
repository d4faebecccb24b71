"""How work runs: compiled once, and in pieces that memory holds."""
