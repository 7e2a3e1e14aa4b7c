# make demo   sets everything up in .venv and shows the main job on real sentences
# make test   sets everything up in .venv and runs lint, types and tests
# make slow   the tests that take longer; `make test` leaves them out
#
# Needs Python >= 3.11 and nothing else. A stamp in .venv keeps a second run from
# installing again. Another Python: make demo PYTHON=python3.12

PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
  $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
JOBS ?= 2

.PHONY: demo test slow lint types format wheel clean

demo: $(VENV)/installed-core
	$(BIN)/specdec demo

test: lint types
	$(BIN)/python -m pytest --numprocesses $(JOBS) -m "not slow" --cov --cov-report term

slow: $(VENV)/installed-test
	$(BIN)/python -m pytest --numprocesses $(JOBS) -m slow

lint: $(VENV)/installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/installed-test
	$(BIN)/mypy

format: $(VENV)/installed-test
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

wheel: $(VENV)/installed-core
	$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir dist .

$(VENV)/created:
	@test -n "$(PYTHON)" || { echo "No Python >= 3.11 found: install one, or name it with make PYTHON=/path/to/python3"; exit 1; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || { echo "$(PYTHON) can't make virtual environments: install its venv module (Debian: apt install python3-venv)"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	touch $@

$(VENV)/installed-core: $(VENV)/created setup.py
	@echo "Installing specdec_jax into $(VENV) (about a minute) ..."
	$(PIP) --editable .
	touch $@

$(VENV)/installed-test: $(VENV)/installed-core
	@echo "Installing what the tests need ..."
	$(PIP) --editable '.[test]'
	touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info
