# Each target works alone on a fresh clone with nothing but make and python3 >= 3.11.

PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.ready
# Tests in parallel; more than four would each load torch for little gain.
JOBS ?= $(shell n=$$(nproc 2>/dev/null || echo 2); [ $$n -gt 4 ] && n=4; echo $$n)
# Neighbours stay together, and what a module makes for its tests is made once, until one is idle.
PARALLEL := -n $(JOBS) --dist worksteal

# pip would compile four times as many modules as are ever imported. They are compiled when they are,
# and that must be kept, or each process would do it again.
INSTALL := -m pip --disable-pip-version-check install --quiet --no-compile
export PYTHONDONTWRITEBYTECODE :=
# compat: a path to the clone. Otherwise setuptools installs a finder that is asked after Python has
# looked in the working directory, where a clone called dataprep would pass for the package.
EDITABLE := $(INSTALL) --no-deps --no-build-isolation --config-settings editable_mode=compat -e .

.DELETE_ON_ERROR:
.PHONY: help venv demo test lint pytest test-long test-faults test-fuzz test-mutants test-trainers test-encoders dist-check lock clean

help:
	@echo "make demo        build the fixtures and Python's standard library into shards, verify, load"
	@echo "make test        lint, types and the whole test suite"
	@echo "make test-long   properties on all examples; whole corpora against the reference tokenizers"
	@echo "make test-faults every kill, power cut, race; writes benchmarks/results/faults.json"
	@echo "make test-fuzz   mutated inputs over every reader; writes benchmarks/results/fuzz.json"
	@echo "make test-mutants  which small changes of the code the tests notice; writes results/mutants.json"
	@echo "make test-trainers  Lightning, Accelerate and transformers train on shards and resume"
	@echo "make test-encoders  pairs and embeddings of real texts by a real encoder, k-means, faiss"
	@echo "make lint        ruff and mypy alone"
	@echo "make venv        only set up .venv from requirements.lock"
	@echo "make dist-check  build the wheel and the sdist, install the wheel, use it"
	@echo "make lock        make requirements.lock anew from pyproject.toml"
	@echo "make clean       remove everything that was made here"

venv: $(STAMP)

$(STAMP): requirements.lock pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "dataprep needs Python 3.11 or newer: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv --clear .venv
	$(BIN)/python $(INSTALL) -r requirements.lock
	$(BIN)/python $(EDITABLE)
	$(BIN)/python -c 'import awkward, datasets, gigatoken, hypothesis, tokenizers, torch'
	mkdir -p .venv/beside/dataprep
	cd .venv/beside && ../bin/python -c 'from dataprep import create_loader'
	touch $(STAMP)

demo: $(STAMP)
	$(BIN)/python examples/demo.py demo

test: lint pytest

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

pytest: $(STAMP)
	$(BIN)/python -m pytest -q $(PARALLEL)

# An environment of its own: the trainers bring dependencies that nothing else needs.
test-trainers: .venv-trainers/.ready
	.venv-trainers/bin/python -m pytest -q tests/trainers

# Likewise: an encoder with its weights, k-means and faiss.
test-encoders: .venv-encoders/.ready
	.venv-encoders/bin/python -m pytest -q tests/encoders

.venv-%/.ready: requirements.lock requirements-%.lock pyproject.toml
	$(PYTHON) -m venv --clear .venv-$*
	.venv-$*/bin/python $(INSTALL) -r requirements.lock -r requirements-$*.lock
	.venv-$*/bin/python $(EDITABLE)
	touch $@

test-long: $(STAMP)
	$(BIN)/python -m pytest -q $(PARALLEL) -m hypothesis --hypothesis-profile=thorough
	$(BIN)/python -m pytest -q -m long

# Kills and failures take no notice of one another; the others go one at a time, as some count on
# having the processors, or a mounted file system, to themselves.
KILLS := $(wildcard tests/faults/test_kill_*.py tests/faults/test_sys*.py tests/faults/test_every_*.py)

test-faults: $(STAMP)
	$(BIN)/python -m pytest -q $(PARALLEL) -m faults --write-results $(KILLS)
	$(BIN)/python -m pytest -q -m faults --write-results \
	  $(filter-out $(KILLS), $(wildcard tests/faults/test_*.py))

# Seeds are fixed, and each test bounds its own time and memory.
test-fuzz: $(STAMP)
	$(BIN)/python -m pytest -q $(PARALLEL) -m fuzz --write-results tests/fuzz

# Some quarter of an hour. MUTANTS="--only runtime/ --write" runs some, and writes theirs alone.
MUTANTS ?= --write
test-mutants: $(STAMP)
	$(BIN)/python -m tests.mutants.driver $(MUTANTS)

dist-check: $(STAMP)
	rm -rf build dist
	$(BIN)/python -m build --no-isolation --outdir dist .
	$(PYTHON) -m venv --clear build/venv
	build/venv/bin/python $(INSTALL) -r requirements.lock
	build/venv/bin/python $(INSTALL) --no-deps dist/*.whl
	cd build && venv/bin/dataprep build --input ../data_fixtures/stories.jsonl --out shards
	cd build && venv/bin/dataprep verify shards

# torch first: its CPU build, where the index in use has one, satisfies everything after it.
lock:
	$(PYTHON) -m venv --clear build/lock
	build/lock/bin/python $(INSTALL) torch==$$(sed -n 's/^torch==//p' requirements.lock)
	build/lock/bin/python -c 'import tomllib; p = tomllib.load(open("pyproject.toml", "rb")); \
	  print(*p["project"]["dependencies"], *p["project"]["optional-dependencies"]["dev"], \
	  *p["build-system"]["requires"], "wheel", sep="\n")' > build/lock.in
	build/lock/bin/python $(INSTALL) -r build/lock.in
	( sed -n '/^#/p' requirements.lock; \
	  build/lock/bin/python -m pip freeze --all | grep -v '^pip==' | sed 's/+cpu$$//' ) > build/lock.out
	mv build/lock.out requirements.lock

clean:
	rm -rf .venv .venv-trainers .venv-encoders demo build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
