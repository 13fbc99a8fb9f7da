"""Reconciling the replicas of a cluster offline: what they hold side by side, what recovery would keep, what would mend them."""
