"""The views of a record for people and programs, and progress bars."""
