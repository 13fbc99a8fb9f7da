"""Numbers about the records of storage directories: how many, how large, whose, and when."""
