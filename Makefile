# make demo: see it run. make test: the default tests; .ci/run: everything CI runs. TORCH_INDEX
# chooses the torch build.
PYTHON ?= python3
TORCH ?= torch==2.13.0
TORCH_INDEX ?=
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# A cache of its own: `--last-failed` of the suite would find failures that it does not have, and run
# everything.
KERNEL_TESTS := TRITON_INTERPRET=1 $(BIN)/python -m pytest tests/kernels_triton -n 2 \
	-o cache_dir=.pytest_cache/kernels

# The versions of the machine that lends a GPU, as far as they can be had with this Python and torch.
LEASE_VENV := .venv-lease
LEASE_BIN := $(LEASE_VENV)/bin
LEASE_STAMP := $(LEASE_VENV)/.installed
# Of the tests of GPU paths, those in which transformers or Triton has a part.
LEASE_TESTS := tests/engine/forward tests/engine/load tests/engine/decoders tests/engine/steps \
	tests/engine/memory/test_arena.py \
	$(patsubst %,tests/engine/gpu/test_%.py,capture_lint device driver green kernel_warm_up step_memory)

.PHONY: install demo test test-kernels test-blocks test-slow test-cluster test-browser test-judges test-lease-versions check lint docs docs-generated constraints clean

install: $(STAMP)

# torch goes first: a bare dependency on it would pull the newest CUDA build.
$(STAMP): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) $(TORCH)
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	touch $@

demo: install
	$(BIN)/muxcluster demo $(ARGS)

# Two processes, a file of tests in one of them: most tests keep one core busy. Files start in order
# of their names, so that none of the long ones (api, bench, cli, cluster, engine) comes last.
# The Triton kernels' tests change how Triton is imported, so they have processes of their own; here
# one case of each.
test: install
	$(BIN)/python -m pytest $(or $(ARGS),-n 2 --dist loadfile --no-loadscope-reorder)
ifeq ($(ARGS)$(shell uname -s),Linux)
	$(KERNEL_TESTS) --one-case
endif

test-kernels: install
	$(KERNEL_TESTS) $(ARGS)

# Tests marked slow, then those that take fewer random cases by default: tests/amounts.py.
THOROUGH_TESTS := $(shell grep -rl --include="test_*.py" "amounts import examples" tests)
test-slow: install
	$(BIN)/python -m pytest --hypothesis-profile=thorough -m "slow and not gpu" $(ARGS)
	$(BIN)/python -m pytest --hypothesis-profile=thorough $(or $(ARGS),$(THOROUGH_TESTS))
ifeq ($(ARGS)$(shell uname -s),Linux)
	$(KERNEL_TESTS) -m slow
endif

# Suites that run with KV blocks of 8 or 16 tokens otherwise, with larger ones: tests/blocks.py.
BLOCK_TESTS := tests/engine tests/kvcache tests/kernels
test-blocks: install
	for size in 32 64; do \
	  export MUXCLUSTER_TEST_BLOCK_TOKENS=$$size; \
	  $(BIN)/python -m pytest $(BLOCK_TESTS) $(or $(ARGS),-n 2 --dist loadfile) || exit 1; \
	  $(KERNEL_TESTS) $(ARGS) || exit 1; \
	done

# Hosts made of namespaces, which needs root, iproute2, sshd and rsync: skipped, with the reason,
# where one is missing.
test-cluster: install
	$(BIN)/python -m pytest -m hosts tests/cluster_hosts $(ARGS)

BROWSER_STAMP := $(VENV)/.browser-installed
$(BROWSER_STAMP): $(STAMP)
	$(BIN)/python -m pip install --quiet --editable '.[browser]'
	touch $@

# The live page in Chromium (Debian: chromium): skipped, with the reason, where there is none.
test-browser: $(BROWSER_STAMP)
	$(BIN)/python -m pytest -m browser tests/http/live $(ARGS)

# Other people's clients, each in an environment of its own in .judges: needs a registry.
test-judges: install
	$(BIN)/python -m tests.judges.run $(ARGS)

$(LEASE_STAMP): pyproject.toml
	test -x $(LEASE_BIN)/python || $(PYTHON) -m venv $(LEASE_VENV)
	$(LEASE_BIN)/python -m pip install --quiet $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) $(TORCH)
# Without psutil transformers 5.17 finds no memory on a CPU; that machine has it.
	$(LEASE_BIN)/python -m pip install --quiet 'transformers==5.17.*' 'triton==3.6.*' psutil \
		--editable '.[dev]'
# Triton 3.6 interprets kernels with numpy before 2.4 only.
	$(LEASE_BIN)/python -m pip install --quiet --no-deps --target $(LEASE_VENV)/interpreter \
		'numpy==2.3.*'
	touch $@

# Wheels of Python 3.12 and numpy 2.5 cannot be used here: lease.sh checks the tags of what travels.
test-lease-versions: $(LEASE_STAMP)
	$(LEASE_BIN)/python -m pytest -n 2 --dist loadfile $(LEASE_TESTS) $(ARGS)
	PYTHONPATH=$(LEASE_VENV)/interpreter TRITON_INTERPRET=1 $(LEASE_BIN)/python -m pytest \
		-n 2 --dist loadfile -W 'ignore:Conversion of an array:DeprecationWarning' \
		tests/kernels_triton --one-case
# ptxas of 3.6 spills up to 16 bytes in three of the binaries, of 3.7 in none.
	$(LEASE_BIN)/python bench/compile_kernels.py --quick --allowed-stack 16
	$(LEASE_BIN)/python bench/gpu/engine.py --dry --only equal equal.stock serve.1b.transformers
	$(LEASE_BIN)/python bench/gpu/facts.py --dry
	$(LEASE_BIN)/python bench/gpu/kernels.py --dry --only correct

check: install lint
ifeq ($(shell uname -s),Linux)
	$(BIN)/python bench/compile_kernels.py
endif

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

DOCS_STAMP := $(VENV)/.docs-installed
$(DOCS_STAMP): $(STAMP)
	$(BIN)/python -m pip install --quiet --editable '.[docs]'
	touch $@

# The documentation as HTML in docs/_build; every warning is an error.
docs: $(DOCS_STAMP)
	$(BIN)/python -m docs.generate --check
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --quiet docs docs/_build

# Pages, drawings and blocks that quote the code or a record of bench/results: write them again.
docs-generated: install
	$(BIN)/python -m docs.generate

# The versions of this environment, for those who install the wheel.
constraints: install
	$(BIN)/python -m docs.generate.constraints > constraints.new
	mv constraints.new constraints.txt

clean:
	rm -rf $(VENV) $(LEASE_VENV) .demo build docs/_build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
