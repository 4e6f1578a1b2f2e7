# Every target sets up what it needs; a second call finds it there.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:
.PHONY: help app test lint model bench train screenshots clean browser

PYTHON ?= python3
BIN := .venv/bin
SUDO := $(if $(filter 0,$(shell id -u)),,sudo)
# Python compiles what is imported when it is: all of what is installed would take a minute.
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-input --no-compile

# $(call install,package,what for): a Debian package, or a sentence where there is no apt-get.
define install
	echo "Installing $(1): $(2)."; \
	command -v apt-get >/dev/null || { echo "There is no apt-get here: please install $(1) by hand." >&2; exit 1; }; \
	$(SUDO) apt-get update -qq || true; \
	$(SUDO) env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $(1) </dev/null >/dev/null
endef

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

app: .venv/app ## serve the app; it opens on the model in the box
	@$(BIN)/streamlit run app.py

test: lint model browser ## run ruff and all tests, in a real Chromium too
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --maxprocesses=4 --dist loadfile --no-loadscope-reorder --ignore=tests/browser
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal tests/browser

lint: .venv/dev ## check format and style with ruff
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .

model: .venv/made ## put SmolLM2-135M-Instruct (98 MB) into models/
	@$(BIN)/python scripts/fetch_model.py

bench: .venv/dev model browser ## measure all that is claimed about speed and memory, beside the peers; an hour
	@$(BIN)/python -m benchmarks

train: .venv/app ## train the model in the box again, measure it and write its card; 20 to 30 minutes
	@$(BIN)/python -m scripts.tiny_llama

screenshots: .venv/dev model browser ## take the pictures in docs/screenshots again
	@$(BIN)/python scripts/screenshots.py

clean: ## remove the environment and all caches; models/ stays
	@rm -rf .venv .pytest_cache .ruff_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

browser: # Chromium for the browser tests, and a font that can draw 東
	@if ! command -v chromium chromium-browser google-chrome >/dev/null; then \
		$(call install,chromium,the browser tests need it); fi
	@if [ -z "$$(fc-list :lang=ja 2>/dev/null | head -n 1)" ]; then \
		$(call install,fontconfig fonts-noto-cjk,without it Chinese and Japanese tokens are drawn as boxes); fi

# The environment, by stamps: made, with what the app needs, with what the tests need besides.

.venv/made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Glass Llama needs Python 3.11 or later; $(PYTHON) is $$($(PYTHON) -V 2>&1)." >&2; exit 1; }
	@if ! $(PYTHON) -c 'import ensurepip, venv' 2>/dev/null; then \
		$(call install,python3-venv,Python came without it); fi
	@$(PYTHON) -m venv .venv
	@touch $@

.venv/app: .venv/made requirements.txt
	@echo "Installing requirements.txt into .venv; the first time takes some minutes."
	@$(PIP) -r requirements.txt
	@touch $@

.venv/dev: .venv/app requirements-dev.txt
	@echo "Installing requirements-dev.txt into .venv."
	@$(PIP) -r requirements-dev.txt
	@touch $@
