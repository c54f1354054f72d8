"""The page that shows what drills have shown."""
