"""Spark: jars, the session, the worker daemon."""
