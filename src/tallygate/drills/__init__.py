"""Faults on purpose, under load, each followed by an audit."""
