# make demo    a first index and three answered questions
# make test    what every change must pass, in a few minutes
# make docs    the pages that come from the code, and the site in build/site, without the network
# make check   what is long by nature: every write failing in turn, kills, notebooks, the fuzzer
#              (KILLS=60 and ISOTROPE_FUZZ_SECONDS=240 say how long the random ones go on)
# make dist    sdist and wheel of the last commit, built twice with equal bytes, and tried in an empty environment
#              outside this folder; with licences and a bill of materials (SBOM) of what the wheel installs
# make trust   known vulnerabilities in the packages that make dist installed; needs the network
# make licences  docs/reference/licences.md
# make notebooks    execute the notebooks and store their outputs; NOTEBOOK=quickstart for one of them
# make matrix  the tests of `make test` on each Python of this machine (PYTHONS="3.12 3.13" names others) and with the
#              lowest dependencies that pyproject.toml allows; make -k matrix continues after a failure, and
#              TESTS=tests/indexer runs a part
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
NOTEBOOK ?=
JOBS ?= 3
TESTS ?=
PYTHONS ?= $(foreach version,3.11 3.12 3.13 3.14,$(shell python$(version) -c 'print("$(version)")' 2>/dev/null))

BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
# uv resolves the extra `all` in seconds, pip in minutes. It keeps the torch that is installed.
UV := $(BIN)/uv pip install --quiet --python $(BIN)/python --constraint constraints.txt
PYTEST := $(BIN)/python -m pytest -n $(JOBS) --dist worksteal

.PHONY: demo docs test lint types check matrix suite lowest notebooks dist trust licences clean
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
	$(PYTEST)

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# mypy waits 3 seconds for its workers to start, which one busy core does not always manage.
types: $(VENV)/.dev
	$(BIN)/mypy --num-workers $(JOBS) || $(BIN)/mypy

check: $(VENV)/.dev
	ISOTROPE_KILLS=$(KILLS) ISOTROPE_FUZZ_SECONDS=$(ISOTROPE_FUZZ_SECONDS) \
		$(PYTEST) -m check

matrix: $(PYTHONS:%=matrix-%) matrix-lowest

matrix-%:
	$(MAKE) VENV=.venv-$* PYTHON=python$* suite

matrix-lowest:
	$(MAKE) VENV=.venv-lowest lowest
	$(MAKE) VENV=.venv-lowest suite

suite: $(VENV)/.dev
	$(PYTEST) $(TESTS)

lowest: $(VENV)/.torch
	$(INSTALL) uv
	$(UV) --resolution lowest-direct --only-binary :all: --no-binary isotrope --editable ".[all]"
	@touch $(VENV)/.dev

# What the pages take from the code is written first: `git diff docs configs` shows what has changed.
docs: $(VENV)/.dev
	$(BIN)/python -m tests.docs.generate
	$(BIN)/zensical build --clean --strict

dist:
	PYTHON=$(PYTHON) TORCH_INDEX=$(TORCH_INDEX) .ci/dist

# OSV knows every package; PyPI's service skips those that it does not know, which --strict reports as a failure.
AUDIT := build/tools/bin/pip-audit --progress-spinner off --path
trust:
	$(AUDIT) build/fresh/lib/python3.*/site-packages -s osv || $(AUDIT) build/fresh/lib/python3.*/site-packages --strict

licences: $(VENV)/.dev
	$(BIN)/python .ci/licences.py > docs/reference/licences.md

notebooks: $(VENV)/.dev
	$(BIN)/python -m tests.notebooks $(NOTEBOOK)

clean:
	rm -rf $(VENV) .venv-* $(DEMO) build dist *.egg-info

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

# uv does not read pip's settings, such as the address of a mirror: then pip installs.
$(VENV)/.dev: pyproject.toml $(VENV)/.torch
	$(INSTALL) uv
	$(UV) --editable ".[all]" || $(INSTALL) --editable ".[all]"
	@touch $@ $(VENV)/.demo
