# On a fresh machine each target does all its own set-up: a .venv with everything pip can install.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test check kernels index bench leaderboard coverage cover docs wheels clean help

help:
	@echo "make demo   set up, then train and compare methods on MovieLens-100K (a few minutes)"
	@echo "make test   set up, lint, type-check, run all tests"
	@echo "make check  lint and types only"
	@echo "make index  after a method was added or declares something else: what \`fedrec methods\` lists"
	@echo "make coverage  the pages of docs/coverage, from the runs that were measured"
	@echo "make cover  how much of the code the tests run, line by line (htmlcov/index.html)"
	@echo "make docs   the documentation as a site"
	@echo "make leaderboard   all methods, ranked by equal trials: what is missing is run (hours), data and page are written"
	@echo "make wheels both distributions as wheels and source archives (dist/), tried in an empty environment"
	@echo "make bench  seconds per round of every method, and against one client at a time (half an hour)"

# torch goes first and pinned: left to a range, pip would take a build with gigabytes of CUDA packages.
$(STAMP): pyproject.toml studies/pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]" --editable studies
	@touch $(STAMP)

demo: $(STAMP)
	$(BIN)/python examples/demo.py

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# what tests would compile several times over is compiled beside the type checker, which leaves cores idle
kernels: $(STAMP)
	PYTHONPATH=tests $(BIN)/python -m kernels.users

test: $(STAMP)
	$(MAKE) -j2 check kernels
	$(BIN)/python -m pytest -n auto

index: $(STAMP)
	$(BIN)/python -c "from fedrec.methods import index; index.write()"

bench: $(STAMP)
	$(BIN)/fedrec bench

leaderboard: $(STAMP)
	$(BIN)/fedrec leaderboard

coverage: $(STAMP)
	for paper in fedca fedcia cgfedrec ifedrec fedrkg champion; do \
		$(BIN)/fedrec reproduce $$paper --coverage --out docs/coverage/$$paper > /dev/null || exit 1; done
	$(BIN)/fedrec reproduce --coverage --out docs/coverage > /dev/null

docs: $(STAMP)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[docs]"
	$(BIN)/mkdocs build --strict

cover: $(STAMP) kernels
	$(BIN)/python -m pip install --quiet --constraint constraints.txt pytest-cov
	$(BIN)/python -m pytest -n auto --cov=fedrec --cov=fedrec_studies --cov-report=term:skip-covered --cov-report=html

wheels: $(STAMP)
	rm -rf dist
	$(BIN)/python -m build --outdir dist .
	$(BIN)/python -m build --outdir dist studies
	$(BIN)/python examples/try_wheels.py dist

clean:
	rm -rf $(VENV) build dist htmlcov .coverage
