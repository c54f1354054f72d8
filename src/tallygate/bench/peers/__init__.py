"""Programs of the alternatives, each written as its own documentation recommends."""
