# Each target does all its own set-up; `make setup` makes .venv with the `tallygate` command in it.

.PHONY: setup demo test system mutants fuzz test-all unit check bench lock docs
.DEFAULT_GOAL := demo

VENV := .venv/bin

setup:
	@scripts/setup

demo: setup
	@$(VENV)/tallygate demo

test: check
	@$(VENV)/pytest -m "not system" -n 3

system: setup
	@$(VENV)/pytest -m system

mutants: setup
	@cd tests && ../$(VENV)/python -m mutants

# Each fuzzer for a minute; FUZZ_SEED repeats what one has found.
FUZZ_SECONDS := 60
fuzz: setup
	@FUZZ_SECONDS=$(FUZZ_SECONDS) $(VENV)/pytest tests/fuzz -s

test-all: test system fuzz
	@cd tests && ../$(VENV)/python -m mutants --trust

unit: setup
	@$(VENV)/pytest -m "not live and not system"

check: setup
	@scripts/check

SIZE := standard
bench: setup
	@$(VENV)/python -m benchmarks --size $(SIZE) --results benchmarks/results --page docs/benchmarks.md

lock:
	@scripts/lock

docs: setup
	@$(VENV)/python scripts/reference.py
