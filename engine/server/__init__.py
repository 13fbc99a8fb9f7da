"""The log server: partitions of a cluster behind one port, each replicated to the storage nodes of its assignment."""
