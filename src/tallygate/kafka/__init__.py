"""Kafka: connections and clients, local clusters, topics."""
