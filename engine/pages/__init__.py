"""PageStorage: a store of numbered pages in namespaces, with versions, snapshots, references and reuse of freed space.

Modules, from the lowest layer to the highest:

- `space_map`: the free ranges of one file; `blob_stats`: which blob file a write goes to; `blob_store`: the bytes of blob files.
- `wal_reader`, `wal_store`: the write-ahead log.
- `page_directory`: the versions of every page and where their data is stored; `judgement`: conflict checks of a batch;
  `reclamation`: when freed space may be reused.
- `page_storage`: an open store; `page_gc`: garbage collection.
- `inspection`, `page_salvage`, `page_recovery`: reading a store without opening it, copying its intact pages, repairing it in
  place.
"""
