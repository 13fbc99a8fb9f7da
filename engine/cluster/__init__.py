"""A cluster as a whole: its metadata beside what its storage nodes and log servers say themselves."""
