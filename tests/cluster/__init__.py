"""A whole cluster: metadata, storage nodes and log servers, as processes."""
