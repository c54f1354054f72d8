"""Kafka nodes and clusters of the local stack."""
