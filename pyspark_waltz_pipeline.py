"""Where Spark finds the sources and the sink of the pipeline by itself, as it finds ``format("waltz")`` in `pyspark_waltz`."""

from waltzctl.engine.pipeline.pipeline_data_source import PipelineDataSource

DefaultSource = PipelineDataSource

__all__ = ["DefaultSource", "PipelineDataSource"]
