# Each target does all its own set-up; `make setup` makes .venv with the `tallygate` command in it.

.PHONY: setup demo test test-all unit check bench lock docs
.DEFAULT_GOAL := demo

VENV := .venv/bin

setup:
	@scripts/setup

demo: setup
	@$(VENV)/tallygate demo

test: check
	@$(VENV)/pytest -m "not long"

test-all: check
	@$(VENV)/pytest

unit: setup
	@$(VENV)/pytest -m "not live"

check: setup
	@scripts/check

SIZE := standard
bench: setup
	@$(VENV)/python -m benchmarks --size $(SIZE) --results benchmarks/results --page docs/benchmarks.md

lock:
	@scripts/lock

docs: setup
	@$(VENV)/python scripts/reference.py
