"""The Python consumer: deliveries by name, retries, dead letters."""
