"""Tallygate beside every alternative, on one stack and one topic."""
