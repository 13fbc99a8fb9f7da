"""A cluster's metadata: assignments, sessions and servers, in ZooKeeper as in release 0.13.2, or in one SQLite file."""
