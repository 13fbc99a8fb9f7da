"""Bytes of a page store: the blocks of its write-ahead log (`blocks`) and the write batches in them (`write_batch`)."""
