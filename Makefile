# Everything lives in .venv; a fresh machine needs Python 3.11+ with venv, and make.
PYTHON ?= python3
SIZE ?= quick
PIP = .venv/bin/pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: verify test lint figures clean

verify: .venv/core  ## run the main job, print the verdict table, write report and figures
	@status=0; .venv/bin/python -m simulations verify --size $(SIZE) --out results/$(SIZE) || status=$$?; \
	  case $$status in 0|1|3) .venv/bin/python -m figures results/$(SIZE) || exit 2;; esac; exit $$status

figures: .venv/core  ## draw again from the stored results
	.venv/bin/python -m figures results/$(SIZE)

test: .venv/dev  ## the whole suite
	.venv/bin/python -m pytest -n 2 --dist worksteal

lint: .venv/dev  ## format, lint, types, import contracts
	.venv/bin/ruff format --check .
	.venv/bin/ruff check .
	.venv/bin/mypy
	.venv/bin/lint-imports --no-cache

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/core: .venv/bin/python pyproject.toml constraints.txt
	$(PIP) --editable '.[figures]'
	@touch $@

.venv/dev: .venv/core
	$(PIP) torch==2.13.0
	$(PIP) --editable '.[dev]'
	@touch $@

clean:
	rm -rf .venv results build dist *.egg-info
