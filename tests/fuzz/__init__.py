"""Inputs by chance, a short while of each with every run and a minute with `make fuzz`."""
