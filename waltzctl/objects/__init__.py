"""The objects that commands alone print, a table of columns each; those that the engine reads or writes: engine/columns."""
