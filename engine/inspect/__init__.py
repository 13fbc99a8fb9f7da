"""Inspection: verify, status and dump.  Everything here only reads: no lock, no write, no access time."""
