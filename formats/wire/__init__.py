"""What Waltz programs say to one another over TCP: bytes in, messages out.

`frame` cuts a stream into frames, `hello` is the first of them in either direction, `storage` and `admin` are the messages of
a storage node's two ports, `failure` is how both carry an error.  Every layout is one `construct` schema; what is fast is
derived from it and tested equal to it.

All integers are big-endian two's complement.  Nothing that a peer sent is believed: sizes and counts are checked against the
bytes that are there, and against `primitives.Limits`, before anything is allocated for them.

Sources: design document *Storage protocol* and release 0.13.2 (framing, handshake, numbers of the message types).
"""
