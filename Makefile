# make demo    a first index and three answered questions
# make test    what every change must pass, in a few minutes
# make docs    the pages that come from the code, and the site in build/site, without the network
# make check   what is long by nature: every write failing in turn, kills, notebooks, the fuzzer
#              (KILLS=60 and ISOTROPE_FUZZ_SECONDS=240 say how long the random ones go on)
# make dist    sdist and wheel of the last commit, built twice with equal bytes, and tried in an empty environment
#              outside this folder; with licences and a bill of materials (SBOM) of what the wheel installs
# make trust   known vulnerabilities in the packages that make dist installed; needs the network
# make licences  docs/reference/licences.md
#
# JOBS processes run tests: 3 for two cores, as tests wait for servers and other processes too.
#
# On Linux, PyPI's torch brings CUDA libraries of several gigabytes. Set TORCH_INDEX to the index of CPU wheels
# that pytorch.org names under "Get started" to avoid them: make demo TORCH_INDEX=https://...
#
# Tests start hundreds of processes. Without bytecode files each would compile every module again.
unexport PYTHONDONTWRITEBYTECODE
PYTHON ?= python3
VENV ?= .venv
TORCH_INDEX ?=
KILLS ?= 60
ISOTROPE_FUZZ_SECONDS ?= 240
DEMO ?= demo
JOBS ?= 3

BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: demo docs test lint types check dist trust licences clean
.DELETE_ON_ERROR:

demo: $(VENV)/.demo
	@mkdir -p $(DEMO)
	@test -f $(DEMO)/stdlib.jsonl || $(BIN)/isotrope demo-corpus -o $(DEMO)/stdlib.jsonl
	@$(BIN)/isotrope build $(DEMO)/stdlib.jsonl $(DEMO)/index
	@$(BIN)/isotrope query $(DEMO)/index -k 3 \
		"shuffle a list into random order" \
		"difference between two dates in days" \
		"walk a directory tree"

test: lint types
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# mypy waits 3 seconds for its workers to start, which one busy core does not always manage.
types: $(VENV)/.dev
	$(BIN)/mypy --num-workers $(JOBS) || $(BIN)/mypy

check: $(VENV)/.dev
	ISOTROPE_KILLS=$(KILLS) ISOTROPE_FUZZ_SECONDS=$(ISOTROPE_FUZZ_SECONDS) \
		$(BIN)/python -m pytest -n $(JOBS) --dist worksteal -m check

# What the pages take from the code is written first: `git diff docs configs` shows what has changed.
docs: $(VENV)/.dev
	$(BIN)/python -m tests.docs.generate
	$(BIN)/zensical build --clean --strict

dist:
	PYTHON=$(PYTHON) TORCH_INDEX=$(TORCH_INDEX) .ci/dist

# Two services, as one may be out of reach.
AUDIT := build/tools/bin/pip-audit --progress-spinner off --path
trust:
	$(AUDIT) build/fresh/lib/python3.*/site-packages || $(AUDIT) build/fresh/lib/python3.*/site-packages -s osv

licences: $(VENV)/.dev
	$(BIN)/python .ci/licences.py > docs/reference/licences.md

clean:
	rm -rf $(VENV) $(DEMO) build dist *.egg-info

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "Python 3.11 or newer is needed; name one with: make PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.torch: constraints.txt | $(BIN)/python
	$(INSTALL) $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) torch
	@touch $@

$(VENV)/.demo: pyproject.toml $(VENV)/.torch
	$(INSTALL) --editable ".[cpu,demo,fast]"
	@touch $@

$(VENV)/.dev: pyproject.toml $(VENV)/.torch
	$(INSTALL) --editable ".[all]"
	@touch $@ $(VENV)/.demo
