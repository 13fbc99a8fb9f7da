"""Statistics about the records of storage directories: counts and sizes by partition, client, header value, time and id."""
