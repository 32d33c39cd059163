# Targets for people and for CI. `make help` lists them.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
SLURM  ?= 24.11
TESTBED := docker-slurm-testbed/testbed
# These tests mostly wait for Slurm: more workers than cores, each with clusters of its own. By their folder, because
# each worker imports what it may choose from, 20 s of a core for all.
CLUSTER := $(BIN)/pytest tests/cluster -n 4 --dist worksteal --durations=15
# A worker per core of the smallest machine that we care for. TensorFlow is told to be quiet.
UNIT    := env TF_CPP_MIN_LOG_LEVEL=3 $(BIN)/pytest -m "not cluster" -n 2 --dist worksteal
# The tests on the clusters wait for Slurm a third of the time: beside them, the unit tests get what these leave of the
# processor. Linux shares it between sessions first, so they have one of their own; what ends this shell ends them.
BESIDE  := sh -c 'setsid sh -c "(echo 19 >/proc/self/autogroup) 2>/dev/null; \
           exec env --default-signal=INT nice -n 19 \"\$$@\"" sh "$$@" & \
           trap "kill $$!" INT TERM; wait $$!' sh
# Tests that train something are most of the time of the unit tests: `make test` has them.
FAST    := $(BIN)/pytest -m "not cluster and not learn" -n 2 --dist worksteal

.PHONY: help venv demo check compile format images unit clusters parts test test-fast test-cluster coverage soak soak-machine \
        testbed testbed-down results pages lock clean packages release docs
.DEFAULT_GOAL := help

help:  ## Show this help
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# $(call install,LINES): a .venv with what these lines of the lock file say (a sed program), whatever else is in it already.
# They name every package: --no-deps keeps pip before 24 from looking for coverage[toml] beyond them, which fails as soon as
# coverage has a release.
define install
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "rltuned needs Python 3.11 or later; set PYTHON=python3.11"; exit 1; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || { echo "installing python3-venv (Debian and Ubuntu keep it apart)"; apt-get update -qq && apt-get install -y -qq python3-venv; }
	[ -x $(BIN)/pip ] || $(PYTHON) -m venv $(VENV)
	@echo "installing the locked packages into $(VENV): a quarter of a minute for the demonstration, one or two for all"
	@sed '$(1)' requirements.lock | $(BIN)/pip install --quiet --no-compile --disable-pip-version-check --no-deps --require-hashes -r /dev/stdin
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
endef

# The stamps are rebuilt when the lock file or the project file changes.
$(VENV)/.installed: requirements.lock pyproject.toml
	$(call install,)
	@touch $@

# What the demonstration needs, in the same versions and without TensorFlow; `make venv` completes the same .venv later.
$(VENV)/.simulate: requirements.lock pyproject.toml
	$(call install,/^# dev/Q)
	@touch $@

venv: $(VENV)/.installed  ## Make .venv with everything for development, from the lock file

demo: $(if $(wildcard $(VENV)/.installed),$(VENV)/.installed,$(VENV)/.simulate)  ## The daemon at work on a simulated cluster, beside the same cluster without it (DEMO="--policy sjf …")
	$(BIN)/rltuned demo $(DEMO)

# What Numba compiles is kept beside the sources; done once here, while the gates run, the tests need not wait for it.
compile: venv
	$(BIN)/python -m rltuned.simulate

check: venv  ## Formatting, lint, types, layer contracts
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

format: venv  ## Format and fix what can be fixed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

test-fast: venv  ## Everything that needs neither containers nor training, under 2 minutes
	$(MAKE) --no-print-directory -j2 check compile
	$(FAST)

# Once, before there are workers; mostly waiting for a mirror, so it may go on beside the gates and the unit tests.
images: venv
	$(TESTBED) build --all

unit: export RLTUNED_TEST_PLACEMENT_INSTANCES ?= 2000
unit: export RLTUNED_TEST_SIMULATIONS ?= 800
# Real traces, where somebody has put them: they are not part of the project.
unit: export RLTUNED_TEST_TRACES ?= $(wildcard ../shared/traces)
unit: venv
	$(if $(BESIDE_CLUSTERS),$(BESIDE)) $(UNIT) $(COVERAGE)

clusters: venv
	$(CLUSTER) $(COVERAGE)

test-cluster: images clusters  ## Only the tests on the containerised Slurm clusters

# Whatever part fails, the end says how long each took, beside each other where they may be; `parts` is all of them.
TIMES := build/times
timed-check timed-compile timed-images: timed-venv
timed-unit: timed-check timed-compile
timed-clusters: timed-images
timed-unit: export BESIDE_CLUSTERS = yes
timed-%:
	@began=$$(date +%s); $(MAKE) --no-print-directory $*; ended=$$?; \
	printf '%-9s %6d s%s\n' $* $$(($$(date +%s) - began)) "$$([ $$ended = 0 ] || echo '  failed')" >>$(TIMES); exit $$ended

parts:
	@$(MAKE) --no-print-directory -j3 timed-unit timed-clusters

test:  ## Everything: gates, tests, and the real Slurm clusters in containers; ends with how long each part took
	@mkdir -p $(dir $(TIMES)) && rm -f $(TIMES)
	@$(MAKE) --no-print-directory timed-parts; ended=$$?; cat $(TIMES); exit $$ended

# Apart from `test`: a worker of pytest-cov has been seen to hang for good in a lock of coverage.
coverage: export COVERAGE = --cov --cov-append --cov-report=term
coverage: images  ## The same tests, and which lines none of them runs
	rm -f .coverage
	$(MAKE) --no-print-directory unit
	$(MAKE) --no-print-directory clusters

# What the state machine's and the soak's seeds find; each ends with 1 on a violation.
SOAK_MINUTES ?= 10
soak: images  ## Chaos on the real clusters, ten minutes each (SOAK_MINUTES=60, SEED=7), twenty on a site of each
	for release in 22.05 24.11 26.05; do $(TESTBED) soak --slurm $$release --minutes $(SOAK_MINUTES) --seed $(or $(SEED),1) || exit 1; done
	for release in 22.05 24.11 26.05; do $(TESTBED) site --slurm $$release --minutes 20 --share 1.0 || exit 1; done

soak-machine: export RLTUNED_TEST_MACHINE_MINUTES ?= 30
soak-machine: venv  ## The state machine of the whole daemon with random seeds for half an hour (RLTUNED_TEST_MACHINE_MINUTES=30)
	$(BIN)/python -m pytest -q -s tests/unit/controller/test_machine.py -p no:randomly -o timeout=0

testbed: venv  ## A real Slurm cluster steered by rltuned (SLURM=22.05, 24.11 or 26.05)
	$(TESTBED) demo --slurm $(SLURM)

testbed-down:  ## Remove the cluster of `make testbed`
	$(TESTBED) down

# Where the published traces are: they are not part of the project. Goes on where it was stopped; RESULTS="--only venus …" for a part.
TRACES ?= traces
STUDY  := OMP_NUM_THREADS=1 nice -n 10 $(BIN)/python -m studies --revision $$(git rev-parse HEAD 2>/dev/null || echo unknown)

results: venv  ## Run all studies that are not up to date and write docs/results.md (TRACES=DIR)
	$(STUDY) --traces $(TRACES) $(RESULTS)

pages: venv  ## Write what is generated and kept again: the man page, reference.md, results.md, the dashboards, from what is there
	$(BIN)/python -m studies
	$(BIN)/python -m studies.manpage > docs/rltuned.1
	$(BIN)/python -m studies.reference > docs/reference.md
	$(BIN)/python -m studies.manpage --exit-codes > docs/exit-codes.md
	$(BIN)/python -m studies.dashboards
	$(BIN)/python packaging/licences.py > docs/licences.md

# What a release is made with has an environment of its own: neither the tests nor the daemon need it.
PUBLISH := build/publish
$(PUBLISH)/.installed: requirements-publish.lock
	$(PYTHON) -m venv $(PUBLISH)
	$(PUBLISH)/bin/pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r $<
	@touch $@

# The same commit makes the same bytes.
RELEASE := SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct 2>/dev/null || echo 1577836800) PATH="$(CURDIR)/$(PUBLISH)/bin:$$PATH"

packages: venv $(PUBLISH)/.installed  ## Wheel, sdist, Debian packages and RPM, into dist/
	rm -rf dist
	$(RELEASE) $(BIN)/python -m build --no-isolation
	$(RELEASE) $(BIN)/python packaging/build.py deb --wheel dist/*.whl
	command -v rpmbuild >/dev/null || apt-get install -y -qq rpm
	$(RELEASE) $(BIN)/python packaging/build.py rpm --wheel dist/*.whl

release: packages  ## The same with an SBOM (CycloneDX) of each package and SHA256SUMS
	$(RELEASE) packaging/sbom dist dist/*.whl
	cd dist && sha256sum * > SHA256SUMS

# README.md of the root is the first page; the other files are what pages link to.
docs: $(PUBLISH)/.installed  ## The documentation site, into build/site; ends with an error where a link leads nowhere
	rm -rf build/site-source build/site
	mkdir -p build/site-source
	cp -a --parents *.md LICENSE docs docker-slurm-testbed/README.md studies/README.md deploy systemd models packaging build/site-source/
	NO_MKDOCS_2_WARNING=1 $(PUBLISH)/bin/mkdocs build --quiet --strict

lock:  ## Resolve the lock files again (needs uv)
	$(PYTHON) packaging/lock.py

clean:  ## Remove caches and the virtual environment
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis dist build
