# Every target sets itself up in .venv; `make` alone lists them.
# An empty environment (env -i) has no PATH, without which make finds no program; $(shell) then needs a real shell, hence the "<".
ifeq ($(origin PATH),undefined)
export PATH := /usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
endif
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
NATIVE := $(wildcard segstore/_native/*.c segstore/_native/*.h segstore/_native/contract/*.h segstore/_native/build.py segstore/bench/zero_copy/*.c segstore/bench/zero_copy/*.h)
GENERATED := segstore/_native/_segstore.c
SANITIZED := build/sanitize
EXTRAS := dev,spark
PYTEST_ARGS ?=
# A process for each core and one more, at most four; PYTEST_ARGS="-n0" or "-p no:xdist" for one only.
PARALLEL = $(if $(findstring no:xdist,$(PYTEST_ARGS)),,-n auto)

# Where programs of the tests find their helpers.
EMPTY :=
ROOMS := $(wildcard $(CURDIR)/tests/support/*)
HELPERS := PYTHONPATH=$(subst $(EMPTY) $(EMPTY),:,$(ROOMS)):$(CURDIR)/tests/plugins

# Tests and what they start import the same files thousands of times: without kept bytecode each compiles them.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
# Every target that has a word of help, and check-machine, is no file.
.PHONY: check-machine $(shell sed -n 's/^\([a-z-]*\):.*\#\# .*/\1/p' <$(firstword $(MAKEFILE_LIST)))

help:  ## list the targets
	@echo "make TARGET, where TARGET is one of:"
	@awk -F':.*## ' '/^##@ / {printf "\n%s\n", substr($$0, 5)} /^[a-z-]+:.*## / {printf "  %-17s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# What a machine must have, and what to do where it has not.
check-machine:
	@command -v $(PYTHON) >/dev/null 2>&1 || { \
	  echo "segstore needs Python 3.10 or newer, and there is no '$(PYTHON)' here."; \
	  echo "Install one (Debian, Ubuntu: apt-get install python3 python3-venv python3-dev), or name it: make PYTHON=/path/to/python3"; exit 1; } >&2
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { \
	  echo "segstore needs Python 3.10 or newer; '$(PYTHON)' is $$($(PYTHON) --version 2>&1)."; \
	  echo "Install a newer one and name it: make PYTHON=python3.12"; exit 1; } >&2
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { \
	  echo "'$(PYTHON)' cannot make virtual environments: its venv or ensurepip module is not installed."; \
	  echo "Install it (Debian, Ubuntu: apt-get install python3-venv)."; exit 1; } >&2
	@$(PYTHON) -c 'import os, sysconfig; raise SystemExit(not os.path.exists(os.path.join(sysconfig.get_paths()["include"], "Python.h")))' || { \
	  echo "'$(PYTHON)' has no C headers (Python.h), which building segstore needs."; \
	  echo "Install them (Debian, Ubuntu: apt-get install python3-dev)."; exit 1; } >&2
	@cc=$${CC:-$$($(PYTHON) -c 'import sysconfig; print(sysconfig.get_config_var("CC") or "cc")')}; \
	command -v $${cc%% *} >/dev/null 2>&1 || { \
	  echo "segstore has a part in C, and there is no C compiler '$${cc%% *}' here."; \
	  echo "Install one (Debian, Ubuntu: apt-get install gcc libc6-dev), or name it: make CC=clang"; exit 1; } >&2

# Packages come from the network, Spark's 400 MB among them: what to do where that fails is said after pip's own words.
# A cache that can't be written (a read-only home) makes pip fail as it builds a package: it goes without.
pip_install = cache=$$($(BIN)/python -m pip cache dir 2>/dev/null); \
	mkdir -p "$$cache" 2>/dev/null && [ -w "$$cache" ] || export PIP_NO_CACHE_DIR=1; \
	PYTHONWARNINGS=ignore $(BIN)/python -m pip install -q $(1) || { \
	  echo "pip could not install what segstore's targets need; its own words are above."; \
	  echo "It needs a package index (the network, or PIP_INDEX_URL) and about 1.5 GB of disk; make goes on from here when called again."; exit 1; } >&2

$(BIN)/python: | check-machine
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml setup.py | check-machine $(BIN)/python
	@$(call pip_install,--upgrade pip "setuptools>=77" wheel "cffi>=1.16")
	@$(call pip_install,--no-build-isolation -e ".[$(EXTRAS)]")
	@touch $@

# A changed C file is built again without asking the network.
$(VENV)/.built: $(VENV)/.installed $(filter-out $(GENERATED),$(NATIVE)) | check-machine
	$(BIN)/python setup.py -q build_ext --inplace --force
	@touch $@

##@ To begin with

demo: $(VENV)/.built  ## flights into a log, a kill midway; a group, live; a disk lost; Spark's stream (ARGS=--no-live, --replicated, ...)
	$(BIN)/python -m segstore demo $(ARGS)

test: $(VENV)/.built  ## every unit test with more of its cases, and a draw of every other kind, some minutes; SEGSTORE_SEED=N draws the same (PYTEST_ARGS="-k name")
	$(BIN)/python -m pytest --tier test $(PARALLEL) $(PYTEST_ARGS)

docs: $(VENV)/.docs  ## the site of documentation in build/site/, strict: no warning, no broken link
	$(BIN)/python tools/reference.py
	$(BIN)/zensical build --clean --strict
	@echo "Open build/site/index.html"

##@ Tests

quick: $(VENV)/.built  ## every unit test with some of its cases, a minute: no whole command, no Java, no other process, no kills, faults or models
	$(BIN)/python -m pytest --tier quick $(PARALLEL) $(PYTEST_ARGS)

test-rest: $(VENV)/.built  ## what `make test` with the same SEGSTORE_SEED leaves out
	$(BIN)/python -m pytest --tier rest $(PARALLEL) $(PYTEST_ARGS)

test-more: $(VENV)/.built  ## a seventh of that, drawn by SEGSTORE_DRAW=N: what .ci/run has time for
	$(BIN)/python -m pytest --tier more $(PARALLEL) $(PYTEST_ARGS)

test-all: $(VENV)/.built  ## every test, an hour and a quarter on 2 cores
	$(BIN)/python -m pytest --tier all $(PARALLEL) $(PYTEST_ARGS)

test-failed: $(VENV)/.built  ## the tests that failed in the last run, one after the other
	$(BIN)/python -m pytest --last-failed --last-failed-no-failures none -n0 $(PYTEST_ARGS)

model-check: $(VENV)/.built  ## the core of replicas, the locks of a log, shared logs, and share partitions, in their large spaces, in half an hour
	SEGSTORE_LARGE_SPACES=1 $(BIN)/python -m pytest -n0 --timeout=0 -o faulthandler_timeout=0 tests/models/replicas tests/models/log_locks tests/models/test_shared_log_model.py tests/models/share_partitions $(PYTEST_ARGS)

##@ Code

lint: $(VENV)/.installed  ## ruff: lint and format
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .

format: $(VENV)/.installed  ## ruff: put the code in format
	$(BIN)/python -m ruff check --fix .
	$(BIN)/python -m ruff format .

types: $(VENV)/.built  ## mypy --strict
	$(BIN)/python -m mypy --strict segstore

sanitize: $(VENV)/.built  ## the C parts under AddressSanitizer and UndefinedBehaviorSanitizer
	./tools/sanitize.sh $(BIN)/python $(SANITIZED) $(PARALLEL) $(PYTEST_ARGS)

coverage: $(VENV)/.built  ## lines and branches of Python and C that the tests reach, into build/coverage/
	./tools/coverage.sh $(BIN)/python build/coverage $(PARALLEL) $(PYTEST_ARGS)

reliability: $(VENV)/.installed  ## write the counts in docs/reliability.md, as the last `make test-all` had them
	cd tests/support/faults && $(HELPERS) ../../../$(BIN)/python -m faulty.report

counts: $(VENV)/.installed  ## hold the last `make test-all` to the counts in docs/reliability.md
	cd tests/support/faults && $(HELPERS) ../../../$(BIN)/python -m faulty.report --check

MINUTES ?= 5
fuzz: $(VENV)/.built  ## every parser on mutated bytes for MINUTES=5, under the sanitizers (ARGS="--target store --seed 7")
	cd tests/hostile && $(HELPERS) ../../tools/sanitized.sh ../../$(BIN)/python build/fuzz-build ../../$(BIN)/python -m fuzz.run --minutes $(MINUTES) $(ARGS)

spark: $(VENV)/.built  ## the tests of Spark alone
	$(BIN)/python -m pytest tests/spark tests/cli/test_checkpoints.py tests/unit/filetree $(PYTEST_ARGS)

##@ Packages

# The site needs segstore's own packages and the generator: neither Spark nor what the tests use.
$(VENV)/.docs: pyproject.toml setup.py | check-machine $(BIN)/python
	@$(call pip_install,--upgrade pip "setuptools>=77" wheel "cffi>=1.16")
	@[ -e $(VENV)/.installed ] || { $(call pip_install,--no-build-isolation -e .); }
	@$(call pip_install,--group docs)
	@touch $@

dist: $(VENV)/.installed  ## an sdist and a wheel in dist/, and proof that both install elsewhere
	./tools/check_dist.sh $(BIN)/python dist

# zig builds wheels from a copy of the tree: neither segstore nor Spark is installed for that.
$(VENV)/.wheels: pyproject.toml | check-machine $(BIN)/python
	@$(call pip_install,--upgrade pip)
	@$(call pip_install,--group wheels)
	@touch $@

wheels: $(VENV)/.wheels  ## wheels of Linux in dist/, by zig: manylinux and musllinux, x86-64 and AArch64; judged, and used (RUN="--run musllinux_1_2_x86_64=PYTHON --free-threaded PYTHON")
	$(BIN)/python tools/wheels.py dist $(RUN)

macos: $(VENV)/.wheels  ## each C file compiled for macOS by zig; nothing is run
	$(BIN)/python tools/macos.py

image: dist  ## that wheel, README's program and the demo on a machine image without a compiler (ARGS="--root DIRECTORY")
	$(BIN)/python tools/image.py dist/segstore-*.whl $(ARGS)

##@ Measurements

bench: $(VENV)/.built  ## zero copy, studies, peers and ratios against the baseline, in 15 minutes; into benchmarks/results/ and docs/
	$(BIN)/python -m benchmarks.run_all $(ARGS)

bench-serve: $(VENV)/.built  ## segstore serve beside a warm Kafka broker, by turns, in 8 minutes; into benchmarks/results/ and docs/serve.md
	$(BIN)/python -m benchmarks.serve --out benchmarks/results --pages $(ARGS)

bench-append: $(VENV)/.built  ## each kind of append beside a plain one, by turns, in two minutes; into benchmarks/results/ and docs/benchmarks.md
	$(BIN)/python -m benchmarks.append_kinds $(ARGS)

bench-operate: $(VENV)/.built  ## what counting requests costs a server, by turns, in three minutes (ARGS=--quick)
	$(BIN)/python -m benchmarks.operate $(ARGS)

bench-shared: $(VENV)/.built  ## processes that share a store, beside one alone, servers and databases, and new hosts, in six minutes; into benchmarks/results/ and docs/processes.md (ARGS=--quick)
	$(BIN)/python -m benchmarks.bench_shared $(ARGS)

bench-queues: $(VENV)/.built  ## share groups beside consumer groups, persist-queue and SQLite, by turns, in eight minutes; into benchmarks/results/ and docs/queues.md (ARGS=--quick)
	$(BIN)/python -m benchmarks.bench_queue $(ARGS)

bench-tables: $(VENV)/.built  ## topics as tables beside Parquet files, in DuckDB and polars, by turns, in four minutes; into benchmarks/results/ and docs/tables.md (ARGS=--quick)
	$(BIN)/python -m benchmarks.bench_tables $(ARGS)

bench-baseline: $(VENV)/.built  ## measure the ratios anew, as what later runs are compared with
	$(BIN)/python -m benchmarks.run_all --only ratios --baseline --no-pages

bench-spark: $(VENV)/.built  ## the benchmarks of Spark: source, sink, checkpoints
	$(BIN)/python -m pytest benchmarks/bench_spark_*.py benchmarks/bench_checkpoints.py -p no:cacheprovider \
	  --benchmark-only --benchmark-columns=min,median,rounds $(PYTEST_ARGS)

bench-archive: $(VENV)/.built  ## how old an archive is, what it costs the writer, how fast a restore is, in five minutes (ARCHIVE=s3://...)
	$(BIN)/python -m pytest benchmarks/bench_archive.py -p no:cacheprovider --benchmark-only \
	  --benchmark-columns=min,median,rounds $(PYTEST_ARGS)

bench-memory: $(VENV)/.built  ## what a partition of 10 GiB costs in memory; as much disk
	$(BIN)/python -m pytest benchmarks/bench_memory.py -p no:cacheprovider --benchmark-only $(PYTEST_ARGS)

##@ Long runs

SECONDS ?= 600
soak: $(VENV)/.built  ## everything at once for SECONDS=600: is disk, memory, are files and threads bounded, is nothing lost?
	$(BIN)/python benchmarks/soak.py --seconds $(SECONDS)

SEEDS ?= 200
STEPS ?= 5000
faults: $(VENV)/.built  ## each call of each operation fails, each power cut and a second one, kills of Spark; an hour (FAULTS=5: five times the default)
	SEGSTORE_FAULTS=$(or $(FAULTS),all) $(BIN)/python -m pytest $(PARALLEL) tests/crash/test_each_call_*.py tests/hostile/test_planted_files.py tests/hostile/test_hard_links.py tests/spark/test_kill.py --timeout=0 -o faulthandler_timeout=0 $(PYTEST_ARGS)

storm: $(VENV)/.built  ## storms of Ctrl-C, single and paired, at any moment of anything for SECONDS=600 (ARGS="--only logs --first seed")
	cd tests/processes && $(HELPERS) ../../$(BIN)/python -m storm --seconds $(SECONDS) $(ARGS)

suites: $(VENV)/.built  ## other projects' suites against Kafka's broker and ours, an hour; into docs/serve.md (ARGS="--sources FOLDER --only librdkafka")
	$(HELPERS):$(CURDIR)/tools $(BIN)/python tools/suites.py $(ARGS)

KILLS ?= 10000
storm-shared: $(VENV)/.built  ## processes that share a store die, stop and are killed at any step, KILLS=10000 times (ARGS="--kind fences --first seed")
	cd tests/processes && $(HELPERS) ../../$(BIN)/python -m shared_storm --kills $(KILLS) $(ARGS)

groups: $(VENV)/.built  ## groups whose members pause, vanish and die, judged by Jepsen's anomalies, for SECONDS=600 (ARGS="--first seed")
	cd tests/processes && $(HELPERS) ../../$(BIN)/python -m jepsen --seconds $(SECONDS) $(ARGS)

wire-storm: $(VENV)/.built  ## clients of three libraries against `segstore serve`, with kills, pauses, cut connections, for SECONDS=600 (ARGS="--first seed")
	cd tests/processes && $(HELPERS) ../../$(BIN)/python -m wire_storm --seconds $(SECONDS) $(ARGS)

queue-judge: ROUNDS = 1000
queue-judge: $(VENV)/.built  ## rounds of a share group whose consumers, connections and store fail, ROUNDS=1000 (ARGS="--first seed")
	cd tests/processes && $(HELPERS) ../../$(BIN)/python -m queue_judge --rounds $(ROUNDS) $(ARGS)

archive-judge: ROUNDS = 1000
archive-judge: $(VENV)/.built  ## rounds of a store, its archive and restores, whose processes are killed, ROUNDS=1000 (ARGS="--first seed")
	cd tests/processes && $(HELPERS) ../../$(BIN)/python -P -m archive_judge --rounds $(ROUNDS) $(ARGS)

simulate: $(VENV)/.built  ## a store against a model, SEEDS=200 runs of STEPS=5000; what fails is shrunk (FIRST=seed)
	cd tests/models && $(HELPERS) ../../$(BIN)/python -m simulation --seeds $(SEEDS) --steps $(STEPS) $(if $(FIRST),--first $(FIRST))

simulate-replicas: SEEDS = 200
simulate-replicas: STEPS = 100
simulate-replicas: $(VENV)/.built  ## a replicated store, thread by thread, SEEDS=200 runs of STEPS=100 (FIRST=seed)
	cd tests/models && $(HELPERS) ../../$(BIN)/python -m replicated_simulation --seeds $(SEEDS) --steps $(STEPS) $(if $(FIRST),--first $(FIRST))

GAMES ?= 1000
table-games: $(VENV)/.built  ## tables of drawn logs by polars, pyarrow's datasets, DuckDB and pandas against a plain loop, GAMES=1000 (ARGS="--first seed")
	cd tests/models && $(HELPERS):$(CURDIR)/tests/models ../../$(BIN)/python -m table_games --games $(GAMES) $(ARGS)

golden-logs: $(VENV)/.built  ## the hashes of the logs that seeds leave, anew: after a change that is meant to write other bytes (ARGS="--dump DIRECTORY --seed 7")
	cd tests/models && $(HELPERS) ../../$(BIN)/python -m golden_logs $(ARGS)

ROUNDS ?= 200
crash: $(VENV)/.built  ## a writer is killed ROUNDS=200 times, readers follow; 5,000 partitions with few descriptors
	CRASH_ROUNDS=$(ROUNDS) $(BIN)/python -m pytest tests/crash/test_crash_loop.py tests/processes/test_hard_places.py --timeout 86400 $(PYTEST_ARGS)

##@ Cleaning

clean:  ## remove all that make has made
	rm -rf $(VENV) build dist *.egg-info .cache .pytest_cache .mypy_cache .ruff_cache .hypothesis .benchmarks
	rm -f $(GENERATED) segstore/_native/*.so segstore/bench/zero_copy/*.so
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
