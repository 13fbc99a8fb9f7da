"""Reading a backup vault: its pages, its backups, and each backup as a directory of files.

Modules, from the lowest layer to the highest: `sealing` (content to pages and back: compression, encryption, digests);
`vault_pages` (where pages are stored); `vault_reader` (configuration, backups, sections and pieces); `backup_files` (a backup's
files, read in ranges); `vault_access` (backups as an `Access`, like a storage directory).  `engine.backup` makes, restores and
removes backups.
"""
