"""The backup vault as something that is read: its pages, the backups in it, and each as a directory of files.

From the ground up: `sealing` (content to pages and back: compression, encryption, digests), `vault_reader` (configuration,
backups, sections and pieces of a page store), `backup_files` (a backup's files, read in ranges), `vault_access` (these as a
place like a directory).  `engine.backup` makes, restores and removes backups.
"""
