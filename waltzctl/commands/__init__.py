"""The commands, one file each: arguments in, one call of the engine, the answer rendered."""
