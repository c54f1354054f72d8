"""What every target promises, tried on each of them without a pipeline above it."""
