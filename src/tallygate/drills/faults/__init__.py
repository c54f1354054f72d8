"""What can go wrong, drill by drill: one file for each part of the whole."""
