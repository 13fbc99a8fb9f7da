"""Waltz on Spark: the data source, streams, the writer, and the executor that does the work of commands on a cluster."""
