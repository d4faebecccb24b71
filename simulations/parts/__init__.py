"""The second subjects of results: what would make a claim too long to read in one sitting."""
