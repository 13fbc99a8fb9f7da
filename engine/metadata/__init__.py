"""A cluster's metadata: who holds which partition, in ZooKeeper, as release 0.13.2 keeps it there."""
