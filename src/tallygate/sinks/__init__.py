"""Sinks: where rows go, together with the ledger."""
