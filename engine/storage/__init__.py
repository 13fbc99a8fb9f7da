"""File-backed storage: the read-write engine of a node, and the judgements that it shares with those who only look."""
