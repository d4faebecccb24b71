"""The views of a record for people and programs, and how far work is."""
