"""File-backed storage: the read-only view for inspection, and the read-write engine of a node."""
