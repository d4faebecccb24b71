"""Helpers that several claims share, and helpers that would make the file of one claim too long."""
