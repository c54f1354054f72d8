"""Small breakages of guarantees, each of which the default suite must see (`make mutants`)."""
