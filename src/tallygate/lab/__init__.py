"""The laboratory: a local stack, drills and the demo. Nothing outside imports it."""
