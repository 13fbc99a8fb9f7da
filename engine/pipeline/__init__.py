"""The data pipeline on Spark Declarative Pipelines: the project that `pipeline init` writes, and what its tables need."""
