"""PostgreSQL: the embedded server of a local stack, and reaching any other."""
