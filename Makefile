# Everything a person types. The environments: .venv (controller and tests), .eyrie/venv (the node's, made by the play).

PYTHON ?= $(shell for p in python3 python3.11 python3.12 python3.13; do \
  $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
PLAY := PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/ansible-playbook
NODE := $(or $(EYRIE_ROOT),.eyrie)/venv/bin/python
NODE_TOOLS := build/test-node
AUDIT := build/audit
LOCKS := requirements/node-cpu.txt requirements/node-cuda.txt
PYTEST := $(BIN)/python -m pytest
SHELL := /bin/bash

.PHONY: help demo plan test lint unit node slow e2e faults short-faults molecule sbom audit clean

help: ## list the targets
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /\1\t/' | expand -t 12

demo: $(VENV)/controller ## from nothing to a served, measured draft on this machine's CPU
	$(PLAY) train.yml -l local

plan: $(VENV)/controller ## what the demo would do, and why; changes nothing
	$(PLAY) train.yml -l local --check --diff

test: lint unit node short-faults e2e ## lint, unit, module and node tests, a dozen faults, one real run of the whole chain

lint: $(VENV)/test ## ruff, mypy, yamllint, ansible-lint, syntax
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/yamllint --strict .
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/ansible-lint --offline --strict
	$(PLAY) train.yml --syntax-check -l local >/dev/null

unit: $(VENV)/test ## tests that need no node environment
	$(PYTEST) tests/unit tests/modules -m "not node"

node: $(VENV)/test $(NODE_TOOLS)/done ## tests with torch, vLLM and speculators, in the node's own environment
	$(PLAY) playbooks/provision.yml -l local --tags layout,runtime
	PYTHONPATH="$(NODE_TOOLS):src" $(NODE) -m pytest -p no:cacheprovider tests/unit -m "node and not slow"

slow: $(VENV)/test $(NODE_TOOLS)/done ## the longest node tests: real trainers killed and resumed, conversions
	$(PLAY) playbooks/provision.yml -l local --tags layout,runtime
	PYTHONPATH="$(NODE_TOOLS):src" $(NODE) -m pytest -p no:cacheprovider tests/unit -m "node and slow"

e2e: $(VENV)/test ## one real run on a small budget: plan, run, no-op, change, kill
	$(PYTEST) tests/e2e

faults: $(VENV)/test $(NODE_TOOLS)/done ## every stage x every fault, planted secrets, seeded canaries; SHORT=1: a dozen faults, the secrets
	$(PLAY) playbooks/provision.yml -l local --tags layout,runtime
	PYTHONPATH="$(NODE_TOOLS):src" $(NODE) tests/faults/matrix.py $(if $(SHORT),--short)
	PATH="$(CURDIR)/$(BIN):$$PATH" PYTHONPATH="$(NODE_TOOLS):src" $(NODE) -m pytest -p no:cacheprovider tests/faults $(if $(SHORT),-m "not slow")

short-faults:
	$(MAKE) faults SHORT=1

molecule: $(VENV)/test ## the container scenarios: systemd, SSH; SCENARIO=port, SCENARIO=group: two and four hosts, the real model, minutes
	PATH="$(CURDIR)/$(BIN):$$PATH" molecule/run $(SCENARIO)

sbom: $(AUDIT)/done ## CycloneDX bills of materials of the controller's and the nodes' environments, in build/sbom
	mkdir -p build/sbom
	$(AUDIT)/bin/cyclonedx-py environment --output-reproducible --output-file build/sbom/controller.json $(BIN)/python
	$(foreach lock,$(LOCKS),$(AUDIT)/bin/cyclonedx-py requirements --output-reproducible --output-file build/sbom/$(notdir $(basename $(lock))).json $(lock) &&) true
	test ! -x $(NODE) || $(AUDIT)/bin/cyclonedx-py environment --output-reproducible --output-file build/sbom/node.json $(NODE)

audit: $(AUDIT)/done ## known vulnerabilities of all that is pinned; UNREACHABLE=warn: no advisory source is no failure
	$(AUDIT)/bin/python requirements/audit.py --unreachable $(or $(UNREACHABLE),fail) \
	  --installed "$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')" $(LOCKS)

clean: ## stop what serves, and remove what was made here, the node's environment and all runs below .eyrie included
	-@test ! -e .eyrie/supervisor/supervisord.pid || { pid=$$(cat .eyrie/supervisor/supervisord.pid) \
	  && .eyrie/venv/bin/supervisorctl -c .eyrie/supervisor/supervisord.conf shutdown \
	  && while kill -0 $$pid 2>/dev/null; do sleep 0.2; done; }
	rm -rf $(VENV) .eyrie build artifacts .cache .ansible .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(VENV)/controller: requirements/controller.txt
	@test -n "$(PYTHON)" || { echo "No Python 3.11 or later here. Debian 12 and 13 have it: apt-get install python3 python3-venv" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "$(PYTHON) cannot make environments. As root: apt-get install python3-venv" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(PIP) -r requirements/controller.txt
	@touch $@

$(VENV)/test: $(VENV)/controller requirements/test.txt
	$(PIP) -r requirements/controller.txt -r requirements/test.txt
	@touch $@

$(AUDIT)/done: requirements/audit.txt $(VENV)/controller
	$(BIN)/python -m venv $(AUDIT)
	$(AUDIT)/bin/python -m pip install --quiet --disable-pip-version-check -r requirements/audit.txt
	@touch $@

$(NODE_TOOLS)/done: requirements/test-node.txt $(VENV)/controller
	$(PIP) --no-deps --upgrade --target $(NODE_TOOLS) -r requirements/test-node.txt
	@touch $@
