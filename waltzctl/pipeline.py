"""What a pipeline's project imports: ``from waltzctl.pipeline import project``.  See docs/pipeline.md."""

from waltzctl.engine.pipeline.tables import Tables, project

__all__ = ["Tables", "project"]
