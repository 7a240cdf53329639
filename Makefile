# make demo: see it run. make test: everything CI runs. TORCH_INDEX chooses the torch build.
PYTHON ?= python3
TORCH ?= torch==2.13.0
TORCH_INDEX ?=
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
KERNEL_TESTS := TRITON_INTERPRET=1 $(BIN)/python -m pytest tests/kernels_triton

.PHONY: install demo test test-kernels test-slow test-cluster check lint clean

install: $(STAMP)

# torch goes first: a bare dependency on it would pull the newest CUDA build.
$(STAMP): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) $(TORCH)
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	touch $@

demo: install
	$(BIN)/muxcluster demo $(ARGS)

# Two processes, a file of tests in one of them: most tests keep one core busy.
# The Triton kernels' tests change how Triton is imported, so they have a process of their own.
test: install
	$(BIN)/python -m pytest $(or $(ARGS),-n 2 --dist loadfile)
ifeq ($(ARGS)$(shell uname -s),Linux)
	$(KERNEL_TESTS)
endif

test-kernels: install
	$(KERNEL_TESTS) $(ARGS)

test-slow: install
	$(BIN)/python -m pytest -m 'slow and not gpu' $(ARGS)

# Hosts made of namespaces, which needs root, iproute2, sshd and rsync: skipped, with the reason,
# where one is missing.
test-cluster: install
	$(BIN)/python -m pytest -m hosts tests/cluster_hosts $(ARGS)

check: install lint
	$(BIN)/python bench/code_size.py
ifeq ($(shell uname -s),Linux)
	$(BIN)/python bench/compile_kernels.py
endif

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

clean:
	rm -rf $(VENV) .demo build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
