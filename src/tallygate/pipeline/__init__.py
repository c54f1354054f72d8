"""Pipelines: checked, started, run, looked at, rebuilt."""
