"""What exactly-once costs here, beside the alternatives."""
