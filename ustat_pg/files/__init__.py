"""Safe reading of others' files, writing of complete files, and digests."""
