# All work goes through here; uv is brought in at a fixed version, so a machine needs Python, a JDK, Maven (and Go later).
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory

# Images for containers often set it.  The tests start some hundred Python processes: each would compile all that it imports.
export PYTHONDONTWRITEBYTECODE :=

UV_VERSION := $(shell sed -n 's/^uv==\([^ ]*\).*/\1/p' scripts/uv.txt)
CACHE := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/tiersidecar
UV := $(CACHE)/uv-$(UV_VERSION)/bin/uv
PYTHON ?= python3
JOBS ?= $(shell getconf _NPROCESSORS_ONLN)
BIN := .venv/bin
# What `make setup` gives, for the fast part of `make test`: nobody needs Spark to run it.
BARE := .venv-bare
WITH_SERVERS := broker or server or spark or slow
IN_EVERY_RUN := not exhaustive
# What lies in the two directories is of the second half, all of it (tests/conftest.py marks the rest): to import it takes seconds.
FAST_TESTS := bin/pytest -n 2 -m "not ($(WITH_SERVERS))" --ignore=tests/integration --ignore=tests/spark --ignore=tests/native
# Of the other directories the second half takes the files in which one of its marks is written; to import the rest takes
# longer still, in each of its processes.  tests/conftest.py sees to it that no test is left out.
SECOND_HALF := tests/integration tests/spark $(sort $(filter-out tests/integration/% tests/spark/%,\
	$(shell grep -rlE --include='test_*.py' 'mark\.(broker|server|spark|slow)\b' tests)))
# One file waits for its brokers while others work. Each of the three has brokers, ports and directories of its own.
THREE_FILES := -n 3 --dist loadfile
# The native core is optional: without cargo all runs in Python, and that is said.
CARGO := $(shell command -v cargo)
SAY_THERE_IS_NO_CARGO := printf '\n*** %s ***\n\n' "no cargo: the native core is neither built nor tested, Python's loops run" >&2
# With the native core the fast tests run once more of all that walks over batches; they have run in Python before.
ON_BOTH_CORES := tests/unit/formats/kafka/test_segment_scan.py tests/unit/formats/kafka/test_batch_digest.py \
	tests/unit/reading/test_batch_cutter.py tests/unit/reading/test_local_cut.py tests/unit/reading/test_spoiled_segments.py \
	tests/property/test_cut_transactions_model.py tests/unit/formats/compaction tests/property/test_compaction_model.py
# On a shared CI machine a broker may stand still for longer than any deadline: there a test with servers that fails is run
# once more, and the summary lists it as RERUN. Such a line is a bug report. Nothing is run twice at a developer's desk.
# The summary lists what took longest as well.
IN_CI := $(if $(CI),--reruns 1 -rR --durations 40)

.PHONY: help
help: ## This list
	@awk -F':.*## ' '/^[a-z0-9-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: setup
setup: .venv/.native ## The daemon's environment in .venv, from uv.lock, and the native core where cargo is

.PHONY: setup-all
setup-all: .venv/.synced-all ## The same with the spark extra (pyspark is 450 MB)
	@$(MAKE) .venv/.native

.PHONY: demo
demo: .venv/.synced ## The whole product on a real broker, in about a minute; KEEP=1 leaves it running
	@$(BIN)/python scripts/demo.py $(if $(KEEP),--keep)

.PHONY: test
test: .venv/.synced-all $(BARE)/.synced ## All tests, the fast ones first; those with servers file by file, three at a time
	$(BARE)/$(FAST_TESTS) $(ARGS)
	@$(MAKE) test-native test-programs
	$(BIN)/pytest $(SECOND_HALF) $(THREE_FILES) -m "($(WITH_SERVERS)) and $(IN_EVERY_RUN) and not alone" $(IN_CI) $(ARGS)
	$(BIN)/pytest $(SECOND_HALF) -m "alone and $(IN_EVERY_RUN)" $(IN_CI) $(ARGS)

.PHONY: test-fast
test-fast: .venv/.synced ## Tests that need no servers and little time, in about a minute
	.venv/$(FAST_TESTS) $(ARGS)

.PHONY: test-native
test-native: .venv/.native ## The native core beside Python's loops, and the tests of what walks over batches on it
ifdef CARGO
	cd native && cargo fmt --check && cargo clippy --quiet --locked --all-targets -- -D warnings
	$(BIN)/pytest -n 2 tests/native $(ON_BOTH_CORES) $(ARGS)
else
	@$(SAY_THERE_IS_NO_CARGO)
endif

.PHONY: test-programs
test-programs: .venv/.synced ## Brokers, S3 server, Prometheus and so on for the tests, fetched and built once into the user's cache
	@$(BIN)/python scripts/test_programs.py

.PHONY: crash
crash: .venv/.synced ## kill -9 at every point of copy, pin, trim, expiry and cleaning (make test takes some)
	$(BIN)/pytest tests/integration/test_daemon_crash.py tests/integration/test_daemon_expiry_cluster.py \
		tests/integration/test_clean_crash.py $(ARGS)

.PHONY: recopy
recopy: .venv/.synced ## What the store has lost is copied again by the leader that follows: three brokers and sidecars
	$(BIN)/pytest tests/integration/test_recopy_cluster.py $(ARGS)

.PHONY: handover
handover: .venv/.synced ## A topic of three brokers goes to native tiering, one goes back to their disks, and each leads once
	$(BIN)/pytest tests/integration/test_handover_cluster.py tests/integration/test_back_to_local_cluster.py $(ARGS)

.PHONY: s3-faults
s3-faults: .venv/.synced ## All seeds of faults between the daemon and a real S3 server (make test takes some)
	$(BIN)/pytest tests/integration/test_s3_faults.py $(ARGS)

.PHONY: gcs-faults
gcs-faults: .venv/.synced ## All seeds of faults between the daemon and a server with Google Cloud Storage's API (make test takes some)
	$(BIN)/pytest tests/integration/test_gcs_faults.py $(ARGS)

.PHONY: azure-faults
azure-faults: .venv/.synced ## All seeds of faults between the daemon and Azurite, as Azure Blob Storage (make test takes some)
	$(BIN)/pytest tests/integration/test_azure_faults.py $(ARGS)

.PHONY: files-faults
files-faults: .venv/.synced ## All seeds of faults of a filesystem store: the volume gone, the disk full, files spoiled (make test takes some)
	$(BIN)/pytest tests/integration/test_files_faults.py $(ARGS)

.PHONY: hdfs-faults
hdfs-faults: .venv/.synced ## All seeds of faults between the daemon and HDFS, by the example of a store (make test takes some)
	$(BIN)/pytest tests/integration/test_hdfs_faults.py $(ARGS)

.PHONY: reconcile-live
reconcile-live: .venv/.synced-all ## Four reconcile runs over three minutes of copies, expiry and leader changes: no finding
	$(BIN)/pytest tests/spark/test_reconcile_live_cluster.py $(ARGS)

.PHONY: spark-cluster
spark-cluster: .venv/.synced-all ## Data source and reconcile on a standalone Spark cluster, from S3
	$(BIN)/pytest tests/spark/test_standalone_cluster.py $(ARGS)

.PHONY: failover
failover: .venv/.synced ## Kill the leader's broker in the middle of a copy, 20 times; ROUNDS=n for another count
	TIERSIDECAR_FAILOVER_ROUNDS=$(or $(ROUNDS),20) $(BIN)/pytest tests/integration/test_failover.py $(ARGS)

.PHONY: recreations
recreations: .venv/.synced ## A topic is made anew 500 times under its name while it is read by it: nothing of the former; COUNT=n for another number
	TIERSIDECAR_RECREATIONS=$(or $(COUNT),500) $(BIN)/pytest tests/integration/test_gateway_recreated.py $(ARGS)

.PHONY: client-suites
client-suites: .venv/.synced ## Tests of franz-go, librdkafka and (AIOKAFKA=checkout) aiokafka, directly and through gateways, on topics trimmed meanwhile; SUITE=x TESTS="a b" for some, RESULTS=directory to go on where a run ended
	AIOKAFKA="$(AIOKAFKA)" $(BIN)/python -m scripts.client_suites $(addprefix --suite ,$(SUITE)) $(addprefix --results ,$(RESULTS)) $(ARGS) $(TESTS)

.PHONY: fuzz
fuzz: .venv/.synced ## 200,000 hostile conversations through the gateway's core; COUNT=n, SEED=n for others (make test takes 2,000)
	TIERSIDECAR_FUZZ_CONVERSATIONS=$(or $(COUNT),200000) TIERSIDECAR_FUZZ_SEED=$(or $(SEED),0) \
		$(BIN)/pytest tests/property/test_gateway_conversations.py -k nothing_is_wrong $(ARGS)

.PHONY: chaos
chaos: .venv/.synced ## Real brokers, sidecars, S3 and a bad network, struck at random; MINUTES=15 SEED=1
	TIERSIDECAR_CHAOS_MINUTES=$(or $(MINUTES),15) TIERSIDECAR_CHAOS_SEED=$(or $(SEED),1) \
	  $(BIN)/pytest tests/integration/test_chaos.py $(ARGS)

.PHONY: conformance
conformance: .venv/.synced ## The simulated brokers beside Kafka, all scripts on both versions (make test takes some)
	$(BIN)/pytest tests/conformance $(ARGS)

.PHONY: mutation
mutation: .venv/.synced ## How many small faults in a package the tests notice; PACKAGE=decide (or tasks, reading) SAMPLE=1000 SEED=1
	$(BIN)/python scripts/mutation.py $(or $(PACKAGE),decide) --sample $(or $(SAMPLE),1000) --seed $(or $(SEED),1) --jobs $(JOBS) $(ARGS)

.PHONY: faults
faults: .venv/.synced ## 500 seeds of a bad store and crashes at any await, in virtual time; SEEDS=n for another count
	$(BIN)/python -m tests.simulation faults --seeds $(or $(SEEDS),500) --jobs $(JOBS)

.PHONY: simulate
simulate: .venv/.synced ## SEEDS=n seeds of a whole simulated cluster; FIRST=s to begin with another seed, JOBS=j processes (one per core), KIND=questions, losses, hazards or compaction
	$(BIN)/python -m tests.simulation $(or $(KIND),cluster) --seeds $(or $(SEEDS),200) --first $(or $(FIRST),0) --jobs $(JOBS)

.PHONY: planted
planted: .venv/.synced ## All faults planted in the product, which the simulation has to catch (make test takes most)
	TIERSIDECAR_ALL_PLANTED=1 $(BIN)/pytest tests/unit/simulation/test_mutations.py $(ARGS)

.PHONY: lint
lint: .venv/.synced-all ## ruff, mypy strict, import contracts, lock file
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(UV) lock --check

.PHONY: requirements
requirements: .venv/.synced ## Write into docs/requirements.md which tests cite each requirement
	$(BIN)/python scripts/requirements.py

.PHONY: fix
fix: format requirements ## What a tool can mend before a commit: format, and the generated column of docs/requirements.md

.PHONY: format
format: .venv/.synced ## Let ruff mend what it can
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

.PHONY: bench
bench: .venv/.native ## NAME=copy runs benchmarks/copy.py, QUICK=1 on less data
	@test -f "benchmarks/$(NAME).py" || { \
	  echo "make bench NAME=x, with x one of: $$(cd benchmarks && ls *.py | sed 's/\.py$$//' | paste -sd' ')" >&2; exit 2; }
	$(BIN)/python benchmarks/$(NAME).py $(if $(QUICK),--quick)

.PHONY: bench-report
bench-report: .venv/.synced-all ## docs/performance.md and its chart from all benchmarks, in about ten quiet minutes; NAMES="copy read" for some
	@$(MAKE) .venv/.native
	$(BIN)/python scripts/bench_report.py $(NAMES)

.PHONY: lock
lock: $(UV) ## Write uv.lock and sbom.cdx.json anew after a change of pyproject.toml
	$(UV) lock
	@$(MAKE) sbom

.PHONY: sbom
sbom: $(UV) ## Write sbom.cdx.json (CycloneDX) anew from uv.lock: what image and wheel are made of
	$(PYTHON) scripts/sbom.py $(UV) > sbom.cdx.json.new
	mv sbom.cdx.json.new sbom.cdx.json

.PHONY: clean
clean: ## Remove what the other targets made here (not the downloads in the user's cache directory)
	rm -rf native/target .venv $(BARE) .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis .demo dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# --inexact: an environment that has the spark extra keeps it.
.venv/.synced: pyproject.toml uv.lock | $(UV)
	$(UV) sync --frozen --inexact
	@touch $@

$(BARE)/.synced: pyproject.toml uv.lock | $(UV)
	UV_PROJECT_ENVIRONMENT=$(BARE) $(UV) sync --frozen
	@touch $@

.venv/.synced-all: pyproject.toml uv.lock | $(UV)
	$(UV) sync --frozen --extra spark
	@touch $@ .venv/.synced

# After each sync, because an exact one removes it; locking and syncing never run cargo.
.venv/.native: .venv/.synced native/pyproject.toml native/Cargo.toml native/Cargo.lock $(wildcard native/src/*.rs)
ifdef CARGO
	$(UV) sync --frozen --inexact --extra native
else
	@$(SAY_THERE_IS_NO_CARGO)
endif
	@touch $@

# Into a directory of its own first: an interrupted install leaves nothing half done behind, two at once do not meet.
$(UV):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "$(PYTHON) is $$($(PYTHON) --version 2>&1): Python 3.11 or later is needed (make PYTHON=python3.12 ...)" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' || { \
	  echo "$(PYTHON) cannot make virtual environments: apt install python3-venv (Debian)" >&2; exit 1; }
	@mkdir -p "$(CACHE)"
	@scratch=$$(mktemp -d "$(CACHE)/.uv.XXXXXX"); trap 'rm -rf "$$scratch"' EXIT; \
	  $(PYTHON) -m venv "$$scratch/uv"; \
	  "$$scratch/uv/bin/python" -m pip install --quiet --require-hashes -r scripts/uv.txt; \
	  test -x "$@" || mv -T "$$scratch/uv" "$(CACHE)/uv-$(UV_VERSION)"
