"""Offline comparison of a cluster's replicas: what they hold, what recovery would keep, and plans that reconcile them."""
