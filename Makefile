# Two commands matter: `make demo` (the whole road on a laptop) and `make test` (every check).
PYTHON ?= python3
BIN := .venv/bin
export OMP_NUM_THREADS ?= 1

.PHONY: demo test lint install clean

demo: install
	$(BIN)/scalerl demo

test: install lint
	$(BIN)/python -m pytest

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports

install: .venv/installed

.venv/installed: pyproject.toml constraints.txt Makefile
	@test -d .venv || $(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --constraint constraints.txt torch==2.13.0
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[train,lora,logs,math,data,environments,dev]'
	@touch $@

clean:
	rm -rf .venv build dist
