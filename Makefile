# These targets are for people. .ci/run is for a bare machine: it installs what is
# missing and runs `make check`.

GO       ?= go
TOOL      = $(GO) tool -modfile=tools/go.mod
PACKAGES ?= ./...

# The highest tier of the tests that run: push, merge or nightly (test/rig/tier.go).
TESTS ?= push
export TESTS

# How long the tests of one package may take before they are ended: only what hangs takes so long.
TIMEOUT ?= 60m

# How many tests of one package run at once. Many wait for a process, a container or a moment, so
# more than there are processors.
PARALLEL ?= $(shell echo $$((2 * $$(nproc))))

# Programs, tests and checks are compiled alike, so that everything is compiled once: without C, and
# without the paths of this machine.
export CGO_ENABLED = 0
export GOFLAGS     = -trimpath

# make lint runs go vet. -count=1, because go test does not see when a program that a test starts has
# changed, and would print an old result.
GOTEST = $(GO) test -vet=off -ldflags '-s -w' -shuffle=on -count=1 -parallel $(PARALLEL) -timeout $(TIMEOUT)

# Runs go test, kills what the tests leave running, and prints which tests were slow or left out.
TESTRUN = E2E_PROGRAMS=$(abspath $(BIN)) $(BIN)/testrun

# The race detector needs a C compiler. Without one these tests run without it; .ci/run installs one.
RACE    := $(if $(shell command -v $$($(GO) env CC) 2>/dev/null),-race)
RACERUN = CGO_ENABLED=$(if $(RACE),1,0) $(TESTRUN)

# The packages whose tests run with the race detector on each merge: those with many goroutines.
# Nightly all do.
RACED = /execagent/(agent|client|procs|registry/internal|relay|rpc|transport)(/|$$)|/internal/(relay|netproxy|fswatch|conns|approval|httpclient|sockets)(/|$$)

# The packages of RACED.
RACEDPACKAGES = $$($(GO) list $(PACKAGES) | grep -E '$(RACED)')

# Tests of these packages that move many megabytes. The race detector makes them 20 to 40 times as slow, and finds
# nothing in many bytes that it does not find in few. So they run without it on each merge, and with it nightly.
BULK  = ^(TestCarried|TestChunksStay|TestDiskFull|TestFeed|TestFeedFails|TestLargeFile|TestRelayConn|TestShortOfMemory|TestSocketCuts|TestSocketPressure|TestStdioLimit|TestStreamConn|TestWebSocketConnOverTLS|TestWebSocketTakesTheLargestMessage)$$

# What runs for each tier.
push    = $(TESTRUN) -durations $(BIN)/durations.json -test 5s -package 30s $(GOTEST) $(PACKAGES)
merge   = $(BESIDE) $(MERGED)
nightly = $(RACERUN) $(GOTEST) $(RACE) $(PACKAGES)

# The tests of a merge run in three parts. They run side by side, because one waits while another one computes.
MERGED = merge-raced merge-others merge-bulk
BESIDE = $(MAKE) --no-print-directory -k -j3 -Otarget

FUZZTIME ?= 30s
COUNT    ?= 10
DURATION ?= 2m
RACETIME ?= 60s

.DEFAULT_GOAL := help

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# The folder that the programs are built in.
BIN ?= bin

# Releases are built without tags and without flags for single packages, so that go
# install builds the same program.
PRODUCT = $(GO) build -ldflags '-s -w'

.PHONY: build
build: build-agent build-registry ## build bin/agent with bin/agent-mcp, and bin/registry, static and stripped

.PHONY: build-agent build-registry
build-agent:
	$(PRODUCT) -o $(BIN)/agent ./cmd/agent
	$(PRODUCT) -o $(BIN)/agent-mcp ./cmd/agent/agent-mcp
build-registry:
	$(PRODUCT) -o $(BIN)/registry ./cmd/registry

# The folder of the artefacts of a release, the key that signs them (cosign's, or none), and the URI of the builder.
# Whoever makes a signed release again has only its public key.
DIST       ?= dist
KEY        ?=
PUBLIC_KEY ?=
BUILDER    ?=

.PHONY: release release-tool
release: release-tool ## make a release of the commit: VERSION=v0.1.0, signed if KEY=cosign.key is given (docs/dev/release.md)
	$(if $(filter dist,$(DIST)),rm -rf dist)
	$(BIN)/release -version '$(VERSION)' -dist $(DIST) $(if $(KEY),-key $(KEY)) $(if $(PUBLIC_KEY),-public-key $(PUBLIC_KEY)) $(if $(BUILDER),-builder $(BUILDER))
release-tool:
	$(GO) build -C tools/release -o $(abspath $(BIN))/release .

.PHONY: release-check
release-check: ## make a release twice, in two folders with empty caches, and compare; look for paths of this machine
	sh test/release/check.sh $(VERSION)

# What signs and verifies in the tests of a release, what reads its SBOMs, and what installs its packages for PyPI and
# npm: with an old Node and with one that has process.execve.
COSIGN     = v3.1.3
VALIDATORS = spdx-tools==0.8.5 'cyclonedx-python-lib[json-validation]==11.12.0' pipx==1.18.4 uv==0.13.9 twine==7.0.0
NODES      = node16@npm:node@16.20.2 node24@npm:node@24.21.0

CHECKED    = $(abspath $(BIN))/venv-release

$(BIN)/cosign:
	GOBIN=$(abspath $(BIN)) $(GO) install github.com/sigstore/cosign/v3/cmd/cosign@$(COSIGN)
# The version is that of helm's library in deploy/check.
$(BIN)/helm:
	GOBIN=$(abspath $(BIN)) $(GO) install helm.sh/helm/v3/cmd/helm@$$($(GO) list -C deploy/check -m -f '{{.Version}}' helm.sh/helm/v3)
$(CHECKED)/ready: NEEDS = $(VALIDATORS)
# What pipx and the client for Python depend on, and what builds the client.
$(BIN)/wheels-release/ready: $(CHECKED)/ready tools/release/backend.txt
	$(CHECKED)/bin/pip download -q --no-deps -d $(@D) pip==26.3 websockets==17.4
	$(CHECKED)/bin/pip download -q --no-deps --require-hashes -d $(@D) -r tools/release/backend.txt
	touch $@
$(BIN)/nodes-release/ready:
	npm install --silent --no-audit --no-fund --prefix $(@D) $(NODES)
	touch $@

# The tests of what a release has. Each is test/release/NAME.sh, and gets the folder of the artefacts.
RELEASE_TESTS = verify packages images publish formula install npm pypi stranger

# The artefacts that they get. They are made once for a commit, and signed with a key that is thrown away.
TESTED := $(abspath $(BIN))/tested/$(shell git rev-parse HEAD 2>/dev/null)

$(TESTED)/dist/SHA256SUMS.bundle: $(BIN)/cosign
	rm -rf $(dir $(TESTED)) && mkdir -p $(TESTED)
	cd $(TESTED) && COSIGN_PASSWORD= $(abspath $(BIN))/cosign generate-key-pair
	COSIGN_PASSWORD= $(MAKE) release VERSION=v0.0.0-test DIST=$(TESTED)/dist KEY=$(TESTED)/cosign.key

release-test-publish: $(BIN)/helm

.PHONY: release-test $(RELEASE_TESTS:%=release-test-%)
release-test: $(RELEASE_TESTS:%=release-test-%) ## make a release, and install, use, verify and remove what it has (root, the internet)
$(RELEASE_TESTS:%=release-test-%): release-test-%: $(TESTED)/dist/SHA256SUMS.bundle $(CHECKED)/ready $(BIN)/wheels-release/ready $(BIN)/nodes-release/ready
	PATH=$(abspath $(BIN)):$$PATH PYTHON=$(CHECKED)/bin/python WHEELS=$(abspath $(BIN))/wheels-release \
		NODES="$$(echo $(abspath $(BIN))/nodes-release/node_modules/node*/bin/node)" sh test/release/$*.sh $(TESTED)/dist

.PHONY: man
man: build ## write the man pages of both programs to bin/man (needs help2man)
	sh tools/man.sh $(BIN)/man $(BIN)/agent $(BIN)/registry

.PHONY: flags
flags: build ## write docs/flags.md, the reference of all flags
	sh tools/flags.sh $(BIN)/agent $(BIN)/registry >docs/flags.md

.PHONY: nouserns
nouserns: ## build bin/nouserns, which launches a program as Docker's default profile confines it
	$(PRODUCT) -o $(BIN)/nouserns ./test/rig/nouserns

# The programs that tests start, and what runs the tests.
.PHONY: build-programs build-tests
build-programs: build nouserns
	$(PRODUCT) -o $(BIN)/escape ./test/e2e/escape
build-tests: build-programs
	$(GO) build -C tools -o $(abspath $(BIN))/testrun ./testrun

.PHONY: demo
demo: build ## registry, agent and a command through the encrypted relay, on this machine
	sh deploy/demo.sh $(BIN)/agent $(BIN)/registry

.PHONY: test
test: build-tests ## run the tests of each push; TESTS=merge and TESTS=nightly run more
	@$($(TESTS))

# The packages that take longest come first: go test starts them in this order.
LONGEST = (test/e2e|conformance|test/hostile|test/programs)$$
.PHONY: $(MERGED)
merge-raced:
	@$(RACERUN) $(GOTEST) $(RACE) -skip '$(BULK)' $(RACEDPACKAGES)
merge-others:
	@$(TESTRUN) $(GOTEST) $$($(GO) list $(PACKAGES) | grep -vE '$(RACED)' | \
		awk -v longest='$(LONGEST)' '$$0 ~ longest { print; next } { later = later "\n" $$0 } END { print later }')
merge-bulk:
	@$(TESTRUN) $(GOTEST) -run '$(BULK)' $(RACEDPACKAGES)

.PHONY: test-race
test-race: build-tests ## the same tests, all with the race detector
	@$(nightly)

# How many runs of make test calm makes of each kind.
RUNS ?= 10

.PHONY: calm
calm: ## look for tests that depend on the machine: make test RUNS (10) times in each of five ways (tools/calm.sh)
	status=0; for kind in plain busy one race odd; do sh tools/calm.sh $$kind $(RUNS) || status=1; done; exit $$status

# The tests of the clients, and of the adapters, start these programs.
SDKTEST = EXECAGENT_AGENT=$(abspath $(BIN))/agent EXECAGENT_REGISTRY=$(abspath $(BIN))/registry

# What these tests need is fetched once: ready, and npm's list of what it has installed, are newer than what
# asks for it. Harnesses are needed by the adapters alone, so they have a venv and a folder of their own.
VENV      = $(abspath $(BIN))/venv
HARNESSED = $(abspath $(BIN))/venv-adapters
MODULES   = sdk/typescript/node_modules/.package-lock.json
HARNESSES = sdk/typescript/adapters/node_modules/.package-lock.json

# agent mcp is driven by more versions of the official SDK than the one that the harnesses agree on: the first
# generation, and the newest.
MCPS = $(abspath $(BIN))/mcp-1.30.0 $(abspath $(BIN))/mcp-2.3.0

.PHONY: fetch fetch-sdk
fetch: fetch-sdk $(HARNESSED)/ready $(HARNESSES) $(MCPS) ## fetch what the tests of the clients and of the adapters need (pip, npm)
fetch-sdk: $(VENV)/ready $(MODULES)

$(VENV)/ready: NEEDS = -e . --group dev
$(HARNESSED)/ready: NEEDS = -e '.[openai-agents,pydantic-ai,deepagents,strands,adk,inspect-ai]' --group adapters
%/ready: sdk/python/pyproject.toml
	python3 -m venv $(@D)
	$(@D)/bin/python -m pip install -q --upgrade pip
	cd sdk/python && $(@D)/bin/pip install -q --no-compile $(NEEDS)
	touch $@
%/node_modules/.package-lock.json: %/package-lock.json
	cd $* && npm ci --no-audit --no-fund
	touch $@

$(MCPS): $(abspath $(BIN))/mcp-%: $(HARNESSED)/ready
	rm -rf $@
	$(HARNESSED)/bin/pip install -q --no-compile --target $@ mcp==$*

.PHONY: sdk sdk-python sdk-typescript
sdk: sdk-python sdk-typescript ## test the clients for Python and TypeScript on our programs (needs Python 3.11, Node 20.19, pip and npm)
sdk-python: build $(VENV)/ready
	cd sdk/python && $(VENV)/bin/ruff check -q && $(VENV)/bin/ruff format -q --check && $(VENV)/bin/mypy
	cd sdk/python && $(SDKTEST) $(VENV)/bin/python -m pytest -q
sdk-typescript: build $(MODULES)
	cd sdk/typescript && $(SDKTEST) npm test

.PHONY: adapters adapters-types adapters-python adapters-typescript
adapters: adapters-types adapters-python adapters-typescript ## test the adapters to harnesses, each driven by its harness with a scripted model (pip, npm; also fetches a Node 22)
adapters-types: $(HARNESSED)/ready
	cd sdk/python && $(HARNESSED)/bin/ruff check -q && $(HARNESSED)/bin/ruff format -q --check
	cd sdk/python && $(HARNESSED)/bin/mypy src/execagent/[!_]*.py tests/adapters/*.py
adapters-python: build $(HARNESSED)/ready $(MCPS)
	cd sdk/python && $(SDKTEST) $(HARNESSED)/bin/python -m pytest -q -W default tests/adapters
	cd sdk/python && for sdk in $(MCPS); do \
		PYTHONPATH=$$sdk $(SDKTEST) $(HARNESSED)/bin/python -m pytest -q -W default tests/adapters/test_mcp.py || exit 1; done
adapters-typescript: build $(MODULES) $(HARNESSES)
	cd sdk/typescript/adapters && $(SDKTEST) npm test

.PHONY: test-tools
test-tools: release-tool ## check imports, documents, citations, pictures, licences, install.sh, and the programs that run the tests
	$(GO) test -C tools -vet=off -count=1 ./testrun ./lint ./archtest ./pictures
	$(BIN)/release -check-licenses
	sh test/release/refusals.sh $(BIN)/release
	sh test/release/install.sh

.PHONY: forge-check
forge-check: ## lint the workflows of the forge (actionlint), and look up the make targets that they name
	$(TOOL) actionlint
	@for target in $$(sed -n 's/^ *\(- run: \|run: \)\{0,1\}make \([a-z][a-z-]*\).*/\2/p; s/^ *part: \[\(.*\)\]/\1/p' .github/workflows/*.yml | tr -d ,); do \
		grep -q "^$$target:" Makefile || { echo "a workflow names make $$target, which does not exist" >&2; exit 1; }; done
	@sed -n 's/^ *part: \[\(.*\)\]/\1/p' .github/workflows/nightly.yml | tr -d , | grep -qx '$(NIGHTLY)' || \
		{ echo 'nightly.yml has other parts than make nightly: $(NIGHTLY)' >&2; exit 1; }

.PHONY: gen
gen: ## compile the system call filters and the relay's frames again (needs libseccomp and protoc)
	$(GO) generate ./...

.PHONY: pictures
pictures: ## draw the pictures of the documents again (docs/pictures)
	$(GO) run -C tools ./pictures

.PHONY: record
record: build-agent ## record the terminal of docs/pictures again, and draw it
	$(GO) run -C tools ./pictures -record $(abspath $(BIN))/agent

.PHONY: fuzz
fuzz: ## run every fuzz target for FUZZTIME (30s) each, and say how many
	GO='$(GO)' sh tools/fuzz.sh $(FUZZTIME)

.PHONY: bench
bench: ## run the benchmarks COUNT (10) times; see docs/bench.md for the comparison
	$(GO) test -run '^$$' -bench . -benchmem -count=$(COUNT) $(PACKAGES)

.PHONY: bench-relay
bench-relay: build ## remote mode, ours and (CODEX_BIN) the reference behind our registry, in one run
	$(GO) run ./test/relaybench -agent $(BIN)/agent -registry $(BIN)/registry

.PHONY: bench-supervised
bench-supervised: build nouserns ## what a sandbox costs, in namespaces and supervised, in one run (root)
	$(GO) run ./test/sandboxbench -agent $(BIN)/agent -nouserns $(BIN)/nouserns

.PHONY: bench-network
bench-network: build nouserns ## what a managed network costs, transparent and by SOCKS5; 100,000 connects (root)
	$(GO) run ./test/netbench -agent $(BIN)/agent -nouserns $(BIN)/nouserns

.PHONY: lint
lint: ## gofmt, go vet, go fix, staticcheck and others (tools/lint): all must be silent
	@out=$$(gofmt -l .) && test -z "$$out" || { echo "gofmt -w is needed on:"; echo "$$out"; exit 1; }
	$(GO) build -C tools -o $(abspath $(BIN))/lint ./lint
	$(GO) vet -vettool=$(abspath $(BIN))/lint $(PACKAGES)

.PHONY: vuln
vuln: ## look for known vulnerabilities (needs the internet)
	$(TOOL) govulncheck $(PACKAGES)

# What is not bound to Linux.
PORTABLE = ./protocol ./rpc ./transport ./client/... ./harness/... ./relay ./auth ./sandbox

.PHONY: typecheck
typecheck: ## check the types of what is built for other systems, without compiling it (tools/typecheck)
	$(GO) build -C tools -o $(abspath $(BIN))/typecheck ./typecheck
	$(BIN)/typecheck linux/arm64 ./cmd/...
	$(BIN)/typecheck darwin/arm64 $(PORTABLE)

.PHONY: cross
cross: build-arm64 ## build for arm64 and check the agent, and compile what is not bound to Linux for others
	E2E_BINARY=$(abspath bin)/arm64/agent E2E_BINARY_ARCH=arm64 $(GO) test -count=1 -run '^TestBinary$$' ./test/e2e
	GOOS=darwin GOARCH=arm64 $(GO) build $(PORTABLE)

.PHONY: e2e
e2e: build-tests ## run the end-to-end tests: scripts, the documents' commands, the binary itself
	@$(TESTRUN) $(GOTEST) ./test/e2e/... ./cmd/...

.PHONY: containers
containers: build-tests ## run what is tested in containers, with escapes in every kind of them (root, podman)
	@TESTS=nightly $(TESTRUN) $(GOTEST) -v -run 'Container|DockerProfile|Images' ./test/e2e

.PHONY: conformance conformance-suite
conformance: build-tests ## check our agent and clients with the conformance suite
	@TESTS=merge $(TESTRUN) $(GOTEST) ./conformance/...
conformance-suite: ## build bin/conformance-suite, which checks any executor or client (conformance/README.md)
	$(PRODUCT) -o $(BIN)/conformance-suite ./conformance

.PHONY: interop
interop: build conformance-suite ## drive the agent with the real Codex CLI, and agent mcp with it and Claude Code (root, npm)
	sh test/interop/interop.sh

.PHONY: interop-nouserns
interop-nouserns: build conformance-suite nouserns ## the same where user namespaces are forbidden: what asks for a sandbox
	NOUSERNS=1 sh test/interop/interop.sh

.PHONY: interop-versions
interop-versions: build conformance-suite ## the same with the oldest and the newest CLI, and what differs from the one that interop drives
	sh test/interop/versions.sh

# The root of Debian's packages that programs runs in. It has Go packages, so it is not below this folder.
PROGRAMS_ROOT ?= /var/tmp/execagent-programs

.PHONY: programs
programs: ## run everyday programs in the sandbox and unconfined, in a root of Debian's packages (root, mmdebstrap)
	sh test/programs/root.sh $(PROGRAMS_ROOT)
	$(GO) test -count=1 -timeout $(TIMEOUT) ./test/programs -all -twice -uids 0,1000 -root $(PROGRAMS_ROOT) -dir /srv

.PHONY: soak
soak: ## work over connections that are cut at random, for DURATION (2m)
	CGO_ENABLED=$(if $(RACE),1,0) $(GO) test $(RACE) -run TestSoak -v -timeout 30m ./test/e2e -soak $(DURATION)

# The commit that upgrade takes for the version before.
OLD ?= $(shell git describe --tags --abbrev=0 2>/dev/null || git rev-parse HEAD~40)

.PHONY: upgrade
upgrade: build ## run a registry of OLD (the last tag, or 40 commits ago) beside one of this tree, with streams under way
	E2E_OLD=$(OLD) $(GO) test -count=1 -run '^TestUpgrade$$' -v ./test/e2e

# How many connections fail in cuts, in each of its two runs.
CUTS ?= 10000

.PHONY: cuts
cuts: ## have clients lose nothing while CUTS (10000) connections fail at any byte, direct and through the relay
	CGO_ENABLED=$(if $(RACE),1,0) $(GO) test $(RACE) -run TestCuts -v -timeout 60m ./test/e2e -cuts $(CUTS)

# Where kernels are kept that were downloaded.
KERNELS ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/execagent/kernels

.PHONY: kernels
kernels: ## try to escape on older kernels of Debian, in virtual machines (needs apt-get and qemu-system-x86)
	$(GO) test -count=1 -v -timeout 3h ./test/kernels -kernels $(KERNELS)

.PHONY: exec-races
exec-races: ## have commands change what they execute while it is checked, each way for RACETIME (60s)
	EXEC_RACES=$(RACETIME) $(GO) test -run 'TestRaces|TestSupervisorKilled' -count=1 -v -timeout 90m ./internal/sandbox/supervise/execcheck ./test/exectree

.PHONY: hunt
hunt: build ## let a command loose on its sandbox for long: random calls, deaths of its supervisor
	$(GO) test -v -timeout 12h ./test/hostile -hunt

CONTAINERS = $(or $(shell command -v podman),$(shell command -v docker),$(error podman or docker is needed))

# What the images are labelled with. podman keeps health checks only in images of Docker's format.
IMAGES = $(CONTAINERS) build $(if $(findstring podman,$(CONTAINERS)),--format docker) \
	--build-arg VERSION=$$($(BIN)/agent version | sed -n 's/^agent //p') \
	--build-arg REVISION=$$(git rev-parse HEAD 2>/dev/null || echo unknown)

.PHONY: image
image: build ## build the container images execagent/agent and execagent/registry, from scratch
	$(IMAGES) -t execagent/agent .
	$(IMAGES) -t execagent/registry -f deploy/registry.Dockerfile .

# The architectures of the images, as Go and container engines call them.
ARCHITECTURES ?= amd64 arm64

.PHONY: images
images: build $(ARCHITECTURES:%=build-%) ## build both images for amd64 and arm64, as manifest lists (podman)
	for name in agent registry; do \
		$(CONTAINERS) manifest rm execagent/$$name:all 2>/dev/null; \
		for arch in $(ARCHITECTURES); do \
			file=Dockerfile; test $$name = agent || file=deploy/$$name.Dockerfile; \
			$(IMAGES) --platform linux/$$arch --build-arg BIN=bin/$$arch --manifest execagent/$$name:all -f $$file . || exit; \
		done; \
	done

.PHONY: $(ARCHITECTURES:%=build-%)
$(ARCHITECTURES:%=build-%): build-%:
	GOARCH=$* $(PRODUCT) -o bin/$*/agent ./cmd/agent
	GOARCH=$* $(PRODUCT) -o bin/$*/agent-mcp ./cmd/agent/agent-mcp
	GOARCH=$* $(PRODUCT) -o bin/$*/registry ./cmd/registry

# Without go vet, which would look at all of Kubernetes' packages too.
.PHONY: deploy-check
deploy-check: build ## render and check what is in deploy: manifests, chart, compose, units, profile
	cd deploy/check && $(GO) test -vet=off -count=1 -timeout $(TIMEOUT) ./...

.PHONY: check
check: TESTS = merge
check: lint build-tests typecheck ## what .ci/run runs, besides the network-dependent steps
	$(BESIDE) $(MERGED) test-tools forge-check deploy-check

# The parts of nightly, each of which the forge runs on a machine of its own.
NIGHTLY = test adapters cross containers fuzz cuts soak exec-races hunt upgrade kernels programs interop-nouserns interop-versions release-check release-test

.PHONY: nightly
nightly: TESTS = nightly
nightly: ## run what takes hours: all tests with the race detector, hunts, fuzzing, containers, kernels, programs
	$(MAKE) -k TESTS=nightly $(NIGHTLY)

.PHONY: clean
clean: ## remove what was built
	rm -rf bin
