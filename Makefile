# dlx-node: `make demo`, `make devnet` and `make test` are all a new user needs.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/pip --disable-pip-version-check
CONSTRAINTS := requirements/constraints.txt
NPM    := npm --prefix contracts
MERMAID := build/mermaid/package/dist/mermaid.min.js
SLITHER := .venv-slither
ADVISORIES := .venv-pip-audit
TRANSFORMERS4 := .transformers4
NEEDED := { echo 'on Debian and Ubuntu: apt-get install make git gcc libgmp-dev python3-dev python3-venv' >&2; exit 1; }

# Bytecode is kept, also where an image asks for none: each process would compile torch and libp2p again, for 3 seconds.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo devnet test test-slow bench-test check style types floors prose quick format contracts contracts-check contracts-test contracts-coverage slither bench device chaos attacks crash endurance convergence fuzz advisories release-check man docs docs-test clean

demo: $(VENV)/.installed
	$(BIN)/dlx-node demo $(ARGS)

# A chain, a run and a node, until Ctrl-C; it prints the line with which others join.
devnet: $(VENV)/.installed
	$(BIN)/dlx-node devnet $(ARGS)

# All tests but the slow ones and those of the benchmarks and the documents. Files are handed out whole to whoever is
# free, because the tests of a file share a devnet, a chain or a history; in their order, which tests/conftest.py makes:
# those that wait and those that compute in turns, the long ones first. Three on two cores, because many tests mostly
# wait: for blocks, deadlines and other processes.
WORKERS ?= 3
TESTS = $(BIN)/pytest --ignore tests/benchmarks --ignore tests/docs --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder
test: $(VENV)/.dev contracts/node_modules/.installed
	$(TESTS) -m "not slow" $(ARGS)

# A quarter of an hour: runs of several nodes that are killed, lied to and cut off, long simulations, and what pulled
# folders are to the last transformers 4.
test-slow: $(VENV)/.dev contracts/node_modules/.installed $(TRANSFORMERS4)/.installed
	$(TESTS) -m slow $(ARGS)

check: contracts-check style types floors prose

style: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m tests.waits

types: $(VENV)/.dev
	$(BIN)/mypy

floors: $(VENV)/.dev
	$(BIN)/lint-imports

prose: $(VENV)/.dev
	$(BIN)/python -m tests.docs.sentences
	$(BIN)/pytest --quiet tests/docs/test_sentences.py tests/docs/test_words.py tests/docs/test_names.py

# After every change: at most 90 seconds, but for the first time. BASE: the commit since which files have changed.
quick: style types floors prose
	$(BIN)/python -m tests.quick $(BASE)

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Rebuild the committed artifacts (ABI and bytecode); users never need Node.js.
contracts: contracts/node_modules/.installed
	$(NPM) run --silent compile

contracts-check: contracts/node_modules/.installed
	$(NPM) run --silent check

# With the compiler settings of the deployed code.
contracts-test: contracts/node_modules/.installed
	$(NPM) run --silent test

# Again, instrumented: fails below 95% of lines or 90% of branches.
contracts-coverage: contracts/node_modules/.installed
	node contracts/coverage.mjs

# Fails on a finding of high or medium severity. Two detectors are left out: a local variable begins as zero, which is what
# a sum wants, and a product of a quotient is meant wherever it stands: grids, and shares that are rounded up.
slither: contracts/node_modules/.installed $(SLITHER)/.installed
	cd contracts && PATH="$$PWD/node_modules/.bin:$$PATH" ../$(SLITHER)/bin/slither . --filter-paths "node_modules/" \
		--exclude-low --exclude-informational --exclude-optimization --exclude uninitialized-local,divide-before-multiply --fail-medium

# The benchmarks in short versions: what they print and write, and what they are made of.
bench-test: $(VENV)/.dev
	$(BIN)/pytest --numprocesses $(WORKERS) --dist loadfile tests/benchmarks $(ARGS)

bench: $(VENV)/.installed
	$(BIN)/python -m benchmarks.overhead
	$(BIN)/python -m benchmarks.codecs
	$(BIN)/python -m benchmarks.round
	$(BIN)/python -m benchmarks.latency

# Where a GPU is at hand: the tests that take every device, two nodes on one GPU, a node's speed beside a bare loop.
device: $(VENV)/.dev
	$(BIN)/pytest tests/training tests/node/trainer tests/e2e/test_devices.py $(ARGS)
	$(BIN)/python -m benchmarks.device

# A node through 1,000 tiny rounds: what it holds, and by how much that grows.
endurance: $(VENV)/.installed
	$(BIN)/python -m benchmarks.endurance

# Hours: every method's loss beside its traffic, and which outer optimisers stay stable.
convergence: $(VENV)/.installed
	$(BIN)/python -m benchmarks.convergence
	$(BIN)/python -m benchmarks.stability

# Minutes: nodes on the embedded chain, anvil and hardhat's node, through faults of the chain node and reorgs; and, for
# root, nodes on bad links and machines. With ARGS="--conditions long" an hour, of all links and for as long as they last.
chaos: $(VENV)/.dev contracts/node_modules/.installed
	$(BIN)/pytest tests/e2e/test_chains.py tests/e2e/test_conditions.py --chains embedded,anvil,hardhat --conditions short $(ARGS)

# Half an hour: every attack of docs/threats.md, under each aggregation policy and in a real run of 4 x 2 nodes.
attacks: $(VENV)/.dev
	$(BIN)/python -m benchmarks.attacks $(ARGS)

# A minute: the embedded chain is killed 50 times under load, and loses nothing that it acknowledged.
crash: $(VENV)/.dev
	$(BIN)/pytest tests/ledger/test_chain_crash.py --kills 50

# Search for payloads that break a decoder, until stopped or for FUZZ_SECONDS.
FUZZ_SECONDS ?= 300
fuzz: $(VENV)/.dev
	$(BIN)/python -m tests.fuzz.codecs -max_total_time=$(FUZZ_SECONDS)

# Known vulnerabilities of the pinned packages; says so where no database can be reached, and with ARGS=--required fails.
advisories: $(ADVISORIES)/.installed
	$(ADVISORIES)/bin/python -m tests.packaging.advisories $(ADVISORIES)/bin/pip-audit $(ARGS)

# The dry run of a release (docs/release.md): build sdist and wheel, look at them and at their metadata, install them
# into a clean environment, and run a demo of one node there. RELEASE=--final: what only a release needs, too.
release-check: $(BIN)/pip
	$(BIN)/python -m tests.packaging.release $(RELEASE)

# The man pages, from the commands themselves, and the table of settings in docs/operator.md.
man: $(VENV)/.installed
	$(BIN)/python -m dlx.node.cli.manual docs

# The documentation as a site: build/site/index.html.
docs: $(VENV)/.docs $(MERMAID)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

# What it says to do: every command of the tutorials, the notebooks; and the site in a browser.
docs-test: docs
	$(BIN)/pytest --numprocesses 2 --dist loadfile tests/docs $(ARGS)

clean:
	rm -rf $(VENV) $(SLITHER) $(ADVISORIES) $(TRANSFORMERS4) contracts/node_modules contracts/out contracts/cache

# pip is what venv makes last: where it is missing, the environment is half made, and is made again. The headers are asked
# for now, because the one package that is compiled fails only when all others are downloaded.
$(BIN)/pip:
	@test -d src/dlx/node || { echo 'src/dlx/node leads to no folder: this checkout has no symbolic links. Clone with `git clone -c core.symlinks=true` (on Windows inside WSL).' >&2; exit 1; }
	@command -v $(PYTHON) > /dev/null || $(NEEDED)
	@$(PYTHON) -c 'import sys; sys.exit("dlx-node needs Python 3.11 or newer; set PYTHON=... to one") if sys.version_info < (3, 11) else None'
	@printf '#include <Python.h>\n#include <gmp.h>\n' | gcc $(CFLAGS) -E -I"$$($(PYTHON) -c 'import sysconfig; print(sysconfig.get_path("include"))')" - > /dev/null || $(NEEDED)
	@$(PYTHON) -m venv $(VENV) || $(NEEDED)

# torch is installed first and by its pin, so that a machine with a CPU wheel at hand takes that one. Bytecode is made of
# what is imported, when it is: of all files it would take as long as the demo's training.
$(VENV)/.installed: pyproject.toml $(CONSTRAINTS) | $(BIN)/pip
	@echo 'installing torch and what else a node needs into $(VENV): minutes, and silent until it is done'
	$(PIP) install --quiet --no-compile --constraint $(CONSTRAINTS) "torch==2.13.0"
	$(PIP) install --quiet --no-compile --constraint $(CONSTRAINTS) --editable ".[train,chain,plot]"
	@touch $@

$(VENV)/.dev: $(VENV)/.installed
	$(PIP) install --quiet --constraint $(CONSTRAINTS) --editable ".[dev]"
	@touch $@

$(VENV)/.docs: $(VENV)/.dev
	$(PIP) install --quiet --constraint $(CONSTRAINTS) --editable ".[docs]"
	@touch $@

# An environment of its own, because slither wants another web3.
$(SLITHER)/.installed: requirements/slither.txt
	$(PYTHON) -m venv $(SLITHER)
	$(SLITHER)/bin/pip --disable-pip-version-check install --quiet --requirement $<
	@touch $@

# An environment of its own, because nothing of the product needs it.
$(ADVISORIES)/.installed: requirements/pip-audit.txt
	$(PYTHON) -m venv $(ADVISORIES)
	$(ADVISORIES)/bin/pip --disable-pip-version-check install --quiet --requirement $<
	@touch $@

# Only what differs from the environment, whose torch and other packages it is used with.
$(TRANSFORMERS4)/.installed: requirements/transformers4.txt | $(BIN)/pip
	rm -rf $(TRANSFORMERS4)
	$(PIP) install --quiet --no-deps --target $(TRANSFORMERS4) --requirement $<
	@touch $@

# What draws the documents' diagrams on the site; GitHub has its own. By its pin and without its dependencies.
$(MERMAID):
	mkdir -p build/mermaid
	cd build/mermaid && npm pack --silent mermaid@11.12.2 && tar -xzf mermaid-11.12.2.tgz package/dist/mermaid.min.js package/LICENSE
	@touch $@

contracts/node_modules/.installed: contracts/package.json contracts/package-lock.json
	@node --eval 'process.exit(parseInt(process.versions.node) < 20 ? 1 : 0)' && command -v npm > /dev/null || { echo 'the contracts need Node.js 20 or newer, with npm' >&2; exit 1; }
	$(NPM) ci --no-audit --no-fund --silent
	@touch $@
