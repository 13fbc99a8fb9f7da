"""The scanner: walks records, checks both of their checksums, and goes on behind damage."""
