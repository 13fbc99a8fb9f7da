"""The client of a storage node's two ports: whatever of ours talks to a node, ours or a released one, does it through here."""
