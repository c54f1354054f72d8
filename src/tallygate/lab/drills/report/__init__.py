"""The page that shows drills."""
