"""A Delta table as a target."""
