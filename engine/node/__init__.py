"""The storage node: ports, group commit, hosted partitions, configuration."""
