"""The objects that only commands print, each a list of columns; objects that the engine reads or writes: engine/columns."""
