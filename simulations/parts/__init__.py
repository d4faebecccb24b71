"""The second parts of results, which would make the file of a claim too long."""
