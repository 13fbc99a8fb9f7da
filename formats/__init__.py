"""Byte formats of Waltz: bytes in, values out.

Nothing in this package opens a file or a socket.  Every layout is written down once, as a `construct` schema;
`formats.schema` derives the fast forms (``struct.Struct``, NumPy dtype) from it.
"""
