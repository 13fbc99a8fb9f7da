"""Agreement of a partition's replicas: the vote over what they hold, and recovery at the start of a session.  No I/O."""
