"""Faults on purpose, under load, with a verdict."""
