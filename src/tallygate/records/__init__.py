"""Records: what they are, how they are read from files, shaped for Kafka and shown to people."""
