"""Files of others, read safely; own files, which are whole or not there; and digests."""
