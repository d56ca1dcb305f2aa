PYTHON ?= python3.11
PORT ?= 8000
SIMULATOR_PORT ?= 9001
WORKERS ?= 2
BIN := .venv/bin

# The workers of a test run must collect the same tests in the same order, names made from sets included.
export PYTHONHASHSEED := 0

.PHONY: help install run test test-full bench soak sdk-previous clean

help:
	@echo "make install       the virtual environment .venv"
	@echo "make run           a demonstration on this machine: PORT=8000 SIMULATOR_PORT=9001"
	@echo "make test          style, types, import rules, all tests"
	@echo "make test-full     the tests of speed and endurance at full size"
	@echo "make bench         side by side with other gateways: PEERS='nginx pilotage' QUICK=1 WRITE=docs/performance.md"
	@echo "make soak          mixed faults for ten minutes, fails on what leaks: SECONDS=600 RATE=60 SOAK_WORKERS=1"
	@echo "make clean         remove what the other targets made, but for the data in var/"

install: .venv/installed

.venv/installed: requirements.lock
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	@touch $@

.venv/installed-test: requirements-test.lock .venv/installed
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements-test.lock
	@touch $@

# The major version before the current one of a client that must go on working.
sdk-previous: .venv-sdk-previous/installed

.venv-sdk-previous/installed: requirements-sdk-previous.lock
	$(PYTHON) -m venv .venv-sdk-previous
	.venv-sdk-previous/bin/pip install --quiet --disable-pip-version-check --require-hashes -r requirements-sdk-previous.lock
	@touch $@

run: install
	$(BIN)/python manage.py migrate --verbosity 0
	$(BIN)/python manage.py up --port $(PORT) --simulator-port $(SIMULATOR_PORT)

test: .venv/installed-test sdk-previous
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy .
	$(BIN)/lint-imports
	$(BIN)/pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder -m "not full"

test-full: .venv/installed-test sdk-previous
	$(BIN)/pytest -s -m full

# Some twenty minutes with all peers; the first time they are installed into out/peers.
bench: install
	$(BIN)/python -m bench.run $(PEERS) $(if $(QUICK),--quick) $(if $(WRITE),--write $(WRITE))

soak: install
	$(BIN)/python -m bench.soak $(if $(SECONDS),--seconds $(SECONDS)) $(if $(RATE),--rate $(RATE)) $(if $(SOAK_WORKERS),--workers $(SOAK_WORKERS))

clean:
	rm -rf .venv .venv-sdk-previous out .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
