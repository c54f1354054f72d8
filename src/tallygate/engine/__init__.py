"""A pipeline that runs: what is checked at its start, and what happens with each batch."""
