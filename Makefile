# The one door. Needs GNU make of 3.82 or later, bash and a Python of 3.11 to 3.13 with venv; everything else goes into
# .venv. macOS comes with make 3.81: `brew install make`, then call it gmake.
$(if $(filter oneshell,$(.FEATURES)),,$(error This needs GNU make of 3.82 or later. On macOS: brew install make, then gmake))
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help env book notebooks lab test check test-slurm lint sweep verify gpu-kit clean
.DELETE_ON_ERROR:

CORES ?= $(shell nproc 2> /dev/null || getconf _NPROCESSORS_ONLN)
# What is tried for the environment: what PYTHON= says, or these.
PYTHONS := $(or $(PYTHON),python3 python3.13 python3.12 python3.11)
SUITABLE := import sys, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))
# By content, not by time: a fresh checkout of the same files installs nothing.
STAMP := .venv/.installed-$(shell cat requirements.lock pyproject.toml | { sha256sum 2> /dev/null || shasum -a 256; } | head -c 16)
export PATH := $(CURDIR)/.venv/bin:$(PATH)

# A lock for each kind of build: `book/tools/lock.py` locks descriptor 9, which the command inherits. A killed Snakemake
# leaves its own lock behind, hence --nolock, and half-done outputs, hence --rerun-incomplete. SNAKEMAKE= takes further
# flags, for example those of a cluster's executor; `make book` and `make sweep` then show Snakemake's own output. Each
# command takes the place of the shell (exec), so that a signal to make reaches it.
locked = mkdir -p _build; exec 9> _build/.$(1).lock; python3 book/tools/lock.py 9 2 || { status=$$?; \
	[ $$status != 75 ] || echo "another 'make $(1)' is at work in this folder; wait until it is done" >&2; exit $$status; }; \
	exec $(2)
snakemake = snakemake $(1) --cores $(CORES) --nolock --rerun-incomplete --keep-going --show-failed-logs -q host $(SNAKEMAKE)

help:
	@echo "make book     run the notebooks that need it and build the book: _build/html/index.html; 11 to 14 minutes on two"
	@echo "              cores the first time, then about one minute and what the changed pages take"
	@echo "make book QUICK=1"
	@echo "              the same pages with runs too small for conclusions: _build/quick/html/index.html; some six minutes"
	@echo "make lab      open copies of the notebooks in JupyterLab, for you to run and change: _build/lab"
	@echo "make notebooks"
	@echo "              what 'make book' also leaves in _build/plain: notebooks for Colab, GitHub and any Jupyter"
	@echo "make test     unit tests, then the theory's notebooks by nbval; some four minutes on two cores"
	@echo "make check    the rest: each page of the built book in Chromium, if there are both; whole runs, sweeps and simulations,"
	@echo "              the papers' grids in toy size, code of pages; the experiments by nbval with smoke parameters, which"
	@echo "              QUICK=1 leaves to make book QUICK=1. After a change of an experiment's page run it, too; CI does"
	@echo "make test-slurm"
	@echo "              sweep a small grid on a SLURM cluster of one node while jobs are cancelled, the node is drained and"
	@echo "              Snakemake is killed; on Debian, as root, with slurm-wlm and munge installed; some five minutes"
	@echo "make lint     ruff, the import walls, types, and the rules of the house: size, names, pages, grids"
	@echo "make sweep GRID=params/study/pruning/matthew-effect.yml"
	@echo "              run a grid, go on where it stopped, gather its table into results/; FORCE=1 runs again what is"
	@echo "              finished with other contents; on SLURM, with snakemake-executor-plugin-slurm installed, add"
	@echo "              SNAKEMAKE='--executor slurm --jobs 50 --slurm-status-command squeue'"
	@echo "make verify TABLE=results/pruning/matthew-effect-study.csv [SEEDS=1] [AVX2=1]"
	@echo "              run the first seeds of a recorded table again and compare; AVX2=1 rounds as a CPU without AVX-512"
	@echo "make gpu-kit [GRIDS='params/study/pruning/matthew-effect-utkface.yml ...'] [DATA=data] [TARGET=3.12]"
	@echo "              pack grids (params/gpu-list.txt by default), data and packages for a GPU machine with Python TARGET"
	@echo "              and without a network: _build/gpu-kit; there 'bash record --minutes 13' runs them"
	@echo "make env      only set up .venv, about two minutes; every command does that when it is needed"
	@echo "make clean    remove what was built; .venv, results/, the finished runs of sweeps, _build/lab and _build/gpu-kit stay"
	@echo
	@echo "PYTHON=/path/to/python3.12 chooses the Python of a new .venv, CORES=1 the number of cores."

env: $(STAMP)

$(STAMP):
	@mkdir -p _build; exec 9> _build/.env.lock
	for python in $(PYTHONS) .venv/bin/python; do
		! "$$python" book/tools/lock.py 9 2> /dev/null || break
	done
	test ! -e $@ || exit 0
	if ! .venv/bin/python -c '$(SUITABLE)' 2> /dev/null || ! .venv/bin/python -m pip --version > /dev/null 2>&1; then
		for candidate in $(PYTHONS); do
			! "$$candidate" -c '$(SUITABLE)' 2> /dev/null || { found=$$candidate; break; }
		done
		if [ -z "$${found:-}" ]; then
			echo "No Python of 3.11 to 3.13 with venv among: $(PYTHONS)." >&2
			echo "On Debian or Ubuntu: apt install python3-venv; or name one: make PYTHON=/path/to/python3.12" >&2
			exit 1
		fi
		"$$found" -m venv --clear .venv
	fi
	.venv/bin/python -m pip install --quiet --requirement requirements.lock
	.venv/bin/python -m pip install --quiet --no-deps --editable .
	rm -f .venv/.installed-*
	touch $@
.ONESHELL:

book: $(STAMP)
	@$(call locked,book,$(if $(SNAKEMAKE),,python book/tools/progress.py _build$(QUICK:%=/quick)) \
		$(call snakemake,book $(QUICK:%=--config quick=1)))

notebooks: $(STAMP)
	@$(call locked,book,$(call snakemake,_build/plain))

lab: $(STAMP)
	@python book/tools/lab.py
	jupyter lab --notebook-dir _build/lab

# nbval runs the notebooks: the theory's stored outputs are its test; of the experiments copies with smoke parameters. A
# process has one notebook at a time and trains on one core, so that the cores are not asked for twice. IPYTHONDIR is a
# folder of settings that make warnings errors, which nbval has no option for. QUICK=1 leaves the experiments to a quick
# book, which ran the same copies.
one_core = env FAIRLIB_CACHE=$(CURDIR)/_build/smoke/cache OMP_NUM_THREADS=1 LOKY_MAX_CPU_COUNT=1 IPYTHONDIR=$(CURDIR)/_build/smoke/ipython
in_turn = --numprocesses $(CORES) --dist
test: $(STAMP)
	pytest $(in_turn) loadgroup -m "not slow"
	python tests/notebooks/prepare.py _build/smoke
	$(one_core) pytest --nbval notebooks/theory $(in_turn) loadfile

check: $(STAMP)
	pytest $(in_turn) loadgroup -m slow
	$(if $(QUICK),exit 0)
	python tests/notebooks/prepare.py _build/smoke
	$(one_core) pytest --nbval-lax _build/smoke $(in_turn) loadfile

test-slurm: $(STAMP)
	@python tests/slurm.py

lint: $(STAMP)
	ruff check .
	ruff format --check .
	lint-imports
	mypy
	python tools/house.py

sweep: $(STAMP)
	@test -n "$(GRID)" || { echo "make sweep needs a grid: make sweep GRID=params/study/pruning/matthew-effect.yml" >&2; exit 2; }
	@test -f "$(GRID)" || { echo "there is no grid $(GRID); there are: $$(ls params/study/*/*.yml params/paper/*/*.yml | tr '\n' ' ')" >&2; exit 2; }
	$(if $(SNAKEMAKE),,whopays plan "$(GRID)" > /dev/null)
	@$(call locked,sweep,$(if $(SNAKEMAKE),,python book/tools/progress.py "$(GRID)") \
		$(call snakemake,sweep --forcerun point --config grid="$(GRID)" $(if $(FORCE),force=1)))

verify: $(STAMP)
	@test -n "$(TABLE)" || { echo "make verify needs a table: make verify TABLE=results/pruning/matthew-effect-study.csv" >&2; exit 2; }
	@$(call locked,verify,whopays verify "$(TABLE)" --seeds $(or $(SEEDS),1) $(if $(AVX2),--avx2))

gpu-kit: $(STAMP)
	@python book/tools/gpu_kit.py $(or $(GRIDS),params/gpu-list.txt) \
		$(if $(DATA),--data "$(DATA)") $(if $(TARGET),--python $(TARGET))

clean:
	[ ! -d _build ] || find _build -mindepth 1 -maxdepth 1 ! -name sweeps ! -name lab ! -name gpu-kit ! -name '.*.lock' -exec rm -rf {} +
	rm -rf .snakemake .pytest_cache .ruff_cache .import_linter_cache .mypy_cache
