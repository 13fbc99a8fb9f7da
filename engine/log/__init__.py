"""A partition's log on any place, opened once and judged once: what its segments hold, how they join, and what is lost."""
