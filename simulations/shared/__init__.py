"""Helpers that several claims share, and those of one whose file they would make too long."""
