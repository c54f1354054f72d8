"""Consuming with a delivery by name: run, deliveries, retries, dead letters, dedup."""
