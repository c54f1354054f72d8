"""A Kafka topic as a target."""
