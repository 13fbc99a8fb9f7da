"""Backups of storage directories and nodes in a vault (`engine.vault`): create, restore, compare, forget, verify, repair.

- Source: `piece_cutting` (where records are cut into pieces); `section_plan`, `section_planner`, `source_files` (a directory
  as files and pieces); `node_layout`, `node_backup` (a running node through its port).
- Creation: `backup_writer`, `backup_creation`; `backup_metrics` (figures for Prometheus).
- Use: `backup_restore`, `backup_verification`, `backup_difference`, `backup_repair`.
- Removal: `retention`, `backup_removal`.
"""
