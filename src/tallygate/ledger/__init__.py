"""The ledger: up to which offset the sink holds the results, and who may move it."""
