"""A partition's log, wherever it is stored: how it is read, what its segments hold, how they join, and what is missing."""
