"""Where Spark finds the Waltz data source by itself: it looks through top-level modules whose names begin with ``pyspark_``."""

from waltzctl.engine.spark.data_source import WaltzDataSource

DefaultSource = WaltzDataSource

__all__ = ["DefaultSource", "WaltzDataSource"]
