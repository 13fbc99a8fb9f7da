"""The command line of waltzctl: arguments in, one call of the engine, the answer rendered."""

__version__ = "0.1.0"
