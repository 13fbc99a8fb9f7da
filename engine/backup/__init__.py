"""Backups of storage directories and nodes in a vault (`engine.vault`): made, restored, compared, forgotten, verified, repaired.

`piece_cutting` (where records are cut), `source_files` and `section_plan` (what a directory holds, as pieces and files made of
them), `node_layout` and `node_backup` (a node through its port), `backup_writer`, `backup_creation`, `backup_restore`,
`backup_verification`, `backup_difference`, `retention` and `backup_removal`, `backup_repair`, `backup_metrics`.
"""
