VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/installed
PYTHON ?= python3

# What promises equal bits or compares with a reference, and the settings by which PyTorch's own loops,
# OpenBLAS and MKL compute as on an older processor, or one of AMD, without AVX-512.
CORE := $(addprefix tests/,gradients statistics kernels test_losses.py pipeline baselines meta evaluation distributed \
	system/test_tensors.py)
OLDER := ATEN_CPU_CAPABILITY=default OPENBLAS_CORETYPE=Haswell MKL_ENABLE_INSTRUCTIONS=AVX2

# Bytecode is kept: else each of the hundreds of processes that tests start compiles the package anew.
unexport PYTHONDONTWRITEBYTECODE
QUIET := OMP_WAIT_POLICY=passive OPENBLAS_NUM_THREADS=1
PARALLEL := $(QUIET) $(BIN)/python -m pytest -q --numprocesses auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder

.PHONY: install demo docs docs-tables check-digits test test-here test-elsewhere test-slow test-oldest test-older-processor browser-test check clean

install: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,docs,fast,lightning,report,s3]'
	touch $(STAMP)

demo: install
	rm -rf runs/demo
	$(BIN)/gradscore demo runs/demo

# Is the digits model still as good as its expected figures say? Written with --update; see docs/check.md.
# Weights trained on another processor are like those of another seed, and 523 samples may not tell them apart (exit 3).
check-digits: install
	$(BIN)/python data_scripts/digits.py
	$(BIN)/gradscore check configs/digits.yaml --expected configs/digits_expected.json --trust-code || [ $$? -eq 3 ]

# The manual, in site/: no warnings, and every link and anchor leads somewhere.
docs: install
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# The tables of what there is; a test says when they are outdated.
docs-tables: install
	$(BIN)/python docs/tables.py

# All but those marked slow, in as many processes as the machine has cores, up to four. Each has one thread, beside
# those that tests of threads ask for: several would wait for cores that other processes have. In test-elsewhere and
# test-older-processor each has all of PyTorch's, which wait without spinning, and one of OpenBLAS, whose threads would spin.
# Files go in order, not those of many tests first: the longest have few.
# At the same time what is for any device runs on the tests' own, where a tensor that was left on another one is refused.
test: install
	$(MAKE) --no-print-directory --jobs 2 test-here test-elsewhere

test-here: install
	OMP_NUM_THREADS=1 $(PARALLEL) -m "not slow"

test-elsewhere: install
	$(QUIET) $(BIN)/python -m pytest -q --device elsewhere tests

# Wheels, documentation, faults, storage, simulations, and what starts a new interpreter.
test-slow: install
	OMP_NUM_THREADS=1 $(PARALLEL) -m slow

# The core's tests once more, as on an older processor; on x86.
test-older-processor: install
	$(OLDER) $(PARALLEL) -m "not slow" $(CORE)

# Exactness and the digits with all dependencies but PyTorch at their oldest, in an environment of its own.
# `python benchmarks/versions.py`, before a release, has the oldest and the newest PyTorch as well.
test-oldest: install
	$(BIN)/python benchmarks/versions.py --short

# Needs Chromium.
browser-test: install
	$(BIN)/python -m pytest -q tests/reporting/browser.py

check: install
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/deptry gradscore cli
	$(BIN)/deptry --exclude benchmarks --ignore DEP002,DEP004 tests tests/support benchmarks data_scripts docs
	$(MAKE) --no-print-directory test
	$(MAKE) --no-print-directory test-slow

clean:
	rm -rf $(VENV) build dist site *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
