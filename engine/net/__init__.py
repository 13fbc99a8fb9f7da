"""What a process with ports is made of: listening, connections, budgets of memory, threads, TLS, logs.  Nothing of storage."""
