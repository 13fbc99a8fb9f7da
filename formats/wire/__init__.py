"""The protocols of Waltz over TCP: bytes in, messages out.

=============================  ====================================================================================
module                         holds
=============================  ====================================================================================
`frame`                        frames, into which a stream is cut
`hello`                        the handshake: the first frame in either direction
`storage`, `admin`             the messages of a storage node's two ports; `failure`: how both report an error
`client`                       the messages of a log server's port; `append_frames`, `feed_frames`: many of them at once
`primitives`, `records`        the elements that messages are made of
`codec`, `message_forms`       encoders and decoders, derived from the schemas
=============================  ====================================================================================

Every layout is written once, as a `construct` schema; faster forms are derived from it and tested equal to it.

All integers are big-endian two's complement.  No size or count of a peer is trusted: each is checked against the bytes that were
received, and against `primitives.Limits`, before anything is allocated for it.

Sources: design document *Storage protocol* and release 0.13.2 (framing, handshake, numbers of the message types).
"""
