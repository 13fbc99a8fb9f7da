"""The only place that changes a disk: files, the directory lock, and the quarantine, which keeps whatever a change takes away."""
