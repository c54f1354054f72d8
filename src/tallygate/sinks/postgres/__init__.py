"""The PostgreSQL sink: its table, what tasks write, what the driver merges and commits."""
