# Two commands do all set-up on a fresh machine: `make demo` and `make test`.

PYTHON ?= python3
DEMO_ARGS ?=
BENCH ?=
PYTEST_ARGS ?= -q
MARKED ?= not slow

RUN := .venv/run
DEV := .venv/dev
COMPILED := build/compiled
REPORTS := build/tests
ON_COMPILED = PYTHONPATH=$(CURDIR)/$(COMPILED) $(DEV)/bin/python
IS_COMPILED := from penstock.flow import fairqueue as module; \
	assert module.__file__.endswith('.so'), module.__file__
# Named by a variable so that `make -n test` only prints it: a line with MAKE itself is always run.
# Three at a time keep two cores busy: tests of servers and leases wait as much as they work.
TOGETHER := $(MAKE) --no-print-directory -k -j3 $(if $(filter output-sync,$(.FEATURES)),-O)
BOOTSTRAP = command -v $(PYTHON) >/dev/null || { \
	echo "penstock: needs Python 3.11 or newer, found no $(PYTHON): install it, or name one with 'make PYTHON=/path/to/python3'" >&2; exit 1; }; \
	$(PYTHON) tools/bootstrap.py $(if $(filter file,$(origin PYTHON)),--search)

# Test groups run side by side. Directories of tests/integration that are not named here are in
# `integration`, and all else in tests/ is in `unit`, so that nothing is left out. `cluster` is run by
# `make test-cluster`: a Spark cluster needs both cores for minutes. Tests marked `slow` are run by
# `make test-slow`.
TESTS_property := tests/property
TESTS_system := tests/scripts tests/sim
TESTS_conformance := tests/conformance
TESTS_repository := tests/docs tests/tools
TESTS_bench := tests/bench
TESTS_e2e := tests/e2e
TESTS_server := $(addprefix tests/integration/,server)
TESTS_client := $(addprefix tests/integration/,client commits ingest metering)
TESTS_topics := tests/integration/topics
TESTS_lake := tests/integration/lake
TESTS_tables := $(addprefix tests/integration/,tables spark/refresh)
TESTS_delta := tests/integration/spark/delta
TESTS_spark = $(filter-out %/__pycache__ $(TESTS_tables) $(TESTS_delta), \
	$(patsubst %/,%,$(wildcard tests/integration/spark/*/)) \
	$(wildcard tests/integration/spark/test_*.py))
TESTS_cluster := tests/spark_cluster
TESTS_integration = $(filter-out %/__pycache__ tests/integration/spark \
	$(TESTS_server) $(TESTS_client) $(TESTS_topics) $(TESTS_lake) $(TESTS_tables), \
	$(patsubst %/,%,$(wildcard tests/integration/*/)) $(wildcard tests/integration/test_*.py))
TESTS_unit = $(filter-out %/__pycache__ tests/integration $(TESTS_property) $(TESTS_system) \
	$(TESTS_conformance) $(TESTS_repository) $(TESTS_bench) $(TESTS_e2e) $(TESTS_cluster), \
	$(patsubst %/,%,$(wildcard tests/*/)) $(wildcard tests/test_*.py))
# The longest first, so that all end at about the same time.
CHECKS := tests-spark tests-tables tests-delta tests-integration tests-repository tests-e2e tests-server tests-client \
	tests-bench tests-lake tests-property tests-system tests-topics tests-conformance tests-unit \
	types lint layers

.DEFAULT_GOAL := help
.PHONY: help demo test test-slow test-cluster test-nightly bench shots lock docs vendor types-js generate format clean compiled smoke-compiled test-compiled wheel sim oracle env-run env-dev \
	checks slow-checks lint types layers

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: env-run ## show the product at work (DEMO_ARGS="--seconds 10")
	@JAVA_HOME="$$(head -n 1 $(RUN)/java-home)" $(RUN)/bin/penstock demo $(DEMO_ARGS)

test: env-dev ## run every check and every test that is not slow
test: GOAL := checks
test-slow: env-dev ## run the tests that take ten seconds or more each: kills, soaks, whole demos
test-slow: GOAL := MARKED=slow slow-checks
test test-slow:
	@status=0; reports="$$(mktemp -d)"; \
	export JAVA_HOME="$$(head -n 1 $(DEV)/java-home)"; \
	$(TOGETHER) REPORTS="$$reports" $(GOAL) || status=1; \
	$(DEV)/bin/python tools/totals.py "$$reports" || status=1; \
	rm -rf "$$reports"; exit $$status

test-cluster: export JAVA_HOME = $(shell head -n 1 $(DEV)/java-home 2>/dev/null)
test-cluster: env-dev tests-cluster ## run the tests that need a Spark cluster, on one made here

sim: env-dev ## run thousands of seeds of simulated Raft groups, of cores and of whole nodes, about an hour
	@$(DEV)/bin/python -m tests.simulator.raft --runs 2000 --steps 20000
	@$(DEV)/bin/python -m tests.simulator.raft --runs 200 --steps 3000 --liveness
	@$(DEV)/bin/python -m tests.simulator.raft --system --runs 2000 --steps 20000
	@$(DEV)/bin/python -m tests.simulator.raft --system --runs 200 --steps 3000 --liveness

oracle: env-dev ## compare the Raft core with etcd's, where Go and etcd's sources are installed
	@$(DEV)/bin/python -m tests.oracle

test-nightly: env-dev ## run the long trials of differential refresh: random queries, all of TPC-H, 200 kills
	@JAVA_HOME="$$(head -n 1 $(DEV)/java-home)" PENSTOCK_DELTA_QUERIES=2000 PENSTOCK_KILLS=100 \
		PENSTOCK_TPCH=all PENSTOCK_TPCH_SCALE=0.1 PENSTOCK_TPCH_BATCHES=5 \
		$(DEV)/bin/python -m pytest $(PYTEST_ARGS) -o faulthandler_timeout=0 \
		tests/property/tables/delta tests/integration/spark/delta/test_tpch.py \
		tests/integration/spark/refresh/test_crash.py

checks: $(CHECKS)

slow-checks: $(filter tests-%,$(CHECKS))

lint:
	@$(DEV)/bin/ruff format --check --quiet --diff .
	@$(DEV)/bin/ruff check --quiet .
	@$(DEV)/bin/python tools/unasync.py --check

types:
	@$(DEV)/bin/mypy --no-error-summary

layers:
	@$(DEV)/bin/lint-imports --no-logo
	@$(DEV)/bin/python tools/layers.py src

tests-%:
	@mkdir -p $(REPORTS)
	@$(DEV)/bin/python tools/group.py $* $(REPORTS)/$*.xml $(wildcard $(TESTS_$*)) -- \
		-m "$(MARKED)" $(PYTEST_ARGS)

bench: env-dev ## run the benchmarks and print ratios (BENCH="--keep fairqueue": one, kept for the docs)
	@JAVA_HOME="$$(head -n 1 $(DEV)/java-home)" $(DEV)/bin/python -m bench $(BENCH)

shots: export JAVA_HOME = $(shell head -n 1 $(DEV)/java-home 2>/dev/null)
shots: env-dev ## take the pictures of the dashboard for README and docs, from a running demo
	@$(DEV)/bin/python -m tools.shots

compiled: env-dev ## build the optional compiled parts into build/compiled
	@rm -rf $(COMPILED)
	@PENSTOCK_COMPILE=1 $(DEV)/bin/python setup.py --quiet build --build-base build/mypyc --build-lib $(COMPILED)
	@echo "penstock: compiled into $(COMPILED); use it with PYTHONPATH=$(COMPILED)"

smoke-compiled: compiled ## build the compiled parts and run the quick tests on them
	@$(ON_COMPILED) -c "$(IS_COMPILED)"
	@$(ON_COMPILED) -m pytest $(PYTEST_ARGS) $(addprefix tests/unit/,flow log topics)

test-compiled: export JAVA_HOME = $(shell head -n 1 $(DEV)/java-home 2>/dev/null)
test-compiled: compiled ## run the tests of what is compiled on the compiled build
	@$(ON_COMPILED) -c "$(IS_COMPILED)"
	@$(ON_COMPILED) -m pytest $(PYTEST_ARGS) tests/conformance \
		$(wildcard $(foreach part,flow log topics server,tests/*/$(part)))

wheel: env-dev ## build the wheel to publish, compiled, into dist
	@PENSTOCK_COMPILE=1 $(DEV)/bin/python -m pip --quiet wheel --no-deps --no-build-isolation \
		--wheel-dir dist .

lock: env-dev ## resolve the requirements and write requirements/*.txt
	@$(DEV)/bin/python tools/lock.py

docs: env-dev ## write the generated reference into docs/reference
	@$(DEV)/bin/python -m tools.reference

vendor: env-dev ## fetch the dashboard's third-party files again, by npm, with hashes
	@$(DEV)/bin/python tools/vendor.py

types-js: ## check the JSDoc types of the dashboard's modules, where npm is there
	@found="$$(npx --yes --package typescript tsc -p tools/tsconfig.json | grep -a 'static/js/')"; \
	test -z "$$found" || { echo "$$found"; exit 1; }

generate: env-dev ## make the blocking client from the asynchronous one
	@$(DEV)/bin/python tools/unasync.py

format: env-dev ## format the code and fix what ruff can fix
	@$(DEV)/bin/ruff format --quiet .
	@$(DEV)/bin/ruff check --fix --quiet .

env-run:
	@$(BOOTSTRAP) run

env-dev:
	@$(BOOTSTRAP) dev

clean: ## remove environments, builds and caches
	@rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	@find . -name __pycache__ -prune -exec rm -rf {} +
