"""Waltz on Spark: the data source, streams, the writer, and the crew that does the work of commands on a cluster."""
