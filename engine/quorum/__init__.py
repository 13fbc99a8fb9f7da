"""What replicas of a partition agree on: the vote over what they hold, and recovery when a session begins.  No I/O."""
