"""Proof on demand: what the sink holds against what the source implies."""
