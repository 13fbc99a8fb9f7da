"""Clients of storage nodes (both ports) and of log servers, ours or released ones, and what is built on them."""
