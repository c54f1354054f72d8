"""Pipelines to read, run and change; each file brings its own data."""
