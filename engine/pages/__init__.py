"""PageStorage: pages by number, in namespaces, with versions, snapshots, references and room that is used again.

From the ground up: `space_map` (free ranges of a file), `blob_stats` (which file takes what), `blob_store` (their bytes);
`wal_reader` and `wal_store` (the log); `page_directory` (which versions a page has, and where they lie), `judgement` (may an edit
be made), `reclamation` (when room may be used again), `page_storage` (all of it), `page_gc` (giving room back);
`inspection`, `page_salvage`, `page_recovery` (stores that are looked at, saved, recovered in place).
"""
