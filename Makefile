# Two commands: `make serve` and `make test`. Everything lands in .venv; run twice, the second run installs nothing.
#   make serve MODEL=path-or-hub-id ARGS='--port 8000'
#   make test            lint, types and all tests, as CI does
#   make clients         the web page in Chromium, and other people's clients against a whole server, as CI does
#   make soak, make fuzz the long randomised runs: of tree and scheduler, and of requests (20,000 and more)
#   make suite        drives JSON-Schema-Test-Suite, from PyPI, through the gate of schemas; fails where one is violated
#   make mutants         plants every fault of tests/mutants/faults.py and says which test catches it
PYTHON ?= python3
MODEL ?=
ARGS ?=
# GPU packages come along where an NVIDIA driver answers. Without one, torch is taken from an index with CPU builds,
# since PyPI's own x86_64 build brings several GB of CUDA libraries.
GPU := $(shell nvidia-smi >/dev/null 2>&1 && echo yes)
TORCH ?= torch==2.13.0
TORCH_INDEX ?= $(if $(GPU),,https://download.pytorch.org/whl/cpu)
# Schemas and grammars, 8 MB. Without what they ask for besides: all of it is there already, but for Triton, a GB that
# only a GPU needs.
GRAMMAR := xgrammar==0.2.9 apache-tvm-ffi==0.1.15 llguidance==1.9.1
EXTRAS := $(if $(GPU),[gpu],)
PIP := .venv/bin/python -P -m pip install --quiet --disable-pip-version-check
PYTEST_ARGS ?=

.PHONY: serve test lint types unit clients fuzz soak suite mutants venv clean

serve: .venv/.installed
	@exec .venv/bin/serve $(MODEL) $(ARGS)

test: lint types unit

lint: .venv/.installed-dev
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .

types: .venv/.installed-dev
	.venv/bin/mypy -p corymb.cache -p corymb.scheduler -p corymb.kernels -p corymb.models -p corymb.speculative -p corymb.serve

unit: .venv/.installed-dev
	.venv/bin/pytest $(PYTEST_ARGS) --ignore=tests/clients

clients: .venv/.installed-clients
	.venv/bin/pytest $(PYTEST_ARGS) -o asyncio_mode=auto tests/clients

fuzz: .venv/.installed-clients
	SCHEMA_EXAMPLES=700 SCHEMA_CALLS=20000 .venv/bin/pytest --timeout=0 tests/clients/test_schema.py

soak: .venv/.installed-dev
	.venv/bin/pytest --hypothesis-profile=soak -p no:cacheprovider --timeout=0 tests/cache tests/scheduler tests/grammars

suite: .venv/.installed-dev
	@.venv/bin/python -P -m pip download --quiet --disable-pip-version-check --no-deps --no-binary :all: --dest .venv/suite jsonschema==4.26.0
	@tar xzf .venv/suite/jsonschema-4.26.0.tar.gz -C .venv/suite
	.venv/bin/python benchmarks/schema_suite.py .venv/suite/jsonschema-4.26.0/json/tests

mutants: .venv/.installed-dev
	.venv/bin/python tests/mutants/mutants.py

venv: .venv/.installed

.venv/bin/pip:
	@$(PYTHON) .ci/make_venv.py .venv

.venv/.installed: pyproject.toml .venv/bin/pip
	@echo "Installing Corymb into .venv (once; torch is the large part) ..."
	@$(PIP) --retries 2 '$(TORCH)' $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX),)
	@$(PIP) --editable '.$(EXTRAS)'
	@$(PIP) --no-deps $(GRAMMAR)
	@touch $@

# Strict editable mode lays out links that type checkers can follow; a new file needs a reinstall, hence the file list.
.venv/.installed-dev: .venv/.installed $(wildcard serve/*.py serve/web/* scheduler/*.py cache/*.py kernels/*.py models/*.py speculative/*.py)
	@echo "Installing the test tools into .venv ..."
	@rm -rf build
	@$(PIP) --editable '.[dev]' --config-settings editable_mode=strict
	@touch $@

.venv/.installed-clients: .venv/.installed-dev
	@echo "Installing other people's clients into .venv ..."
	@rm -rf build
	@$(PIP) --editable '.[dev,clients]' --config-settings editable_mode=strict
	@touch $@

clean:
	rm -rf .venv build artefacts *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
