"""Figures, drawn from the stored results of a run and never simulating."""
