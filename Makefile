# Thin on purpose: each target is one script of tools/ or one command. `make` alone explains.
.DEFAULT_GOAL := help
.PHONY: help setup build demo quick wheel test test-torch bench soak check docs sanitize fuzz clean

SHELL := bash
PYTHON_IN_VENV := .venv/bin/python

help: ## this text
	@echo "ciranda: what you can make"
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | \
	  while IFS=$$'\t' read -r name text; do printf '  make %-10s %s\n' "$$name" "$$text"; done
	@echo "TORCH_VERSION=2.11.0 before any of them builds for another torch."

demo: setup ## train Fashion-MNIST on one and on two processes, and compare
	@$(PYTHON_IN_VENV) examples/demo.py

quick: ## after a small change: build, core's quick tests, two ranks of torch, checks; minutes
	@tools/setup.sh test
	@tools/quick.sh

wheel: setup ## a wheel for machines with the same torch, without Gloo; in dist
	@tools/wheel.sh

test: ## set up and run all tests
	@tools/setup.sh test
	@tools/test.sh

test-torch: ## build and test with TORCH_VERSION (2.11.0) in an environment of its own
	@tools/test_torch.sh

bench: ## measure against DDP, MPIs, RPC, Ray; tables, JSON and PNG in benchmarks/results
	@tools/setup.sh bench
	@cmake --preset bench >/dev/null && cmake --build --preset bench
	@$(PYTHON_IN_VENV) -m pytest benchmarks

soak: ## the tests that run for minutes, and the analysis of each path
	@tools/setup.sh test
	@cmake --preset release >/dev/null && cmake --build --preset release --target engine_tests sim_tests
	@CIRANDA_STRANGERS=10000 ctest --preset release -R Strangers
	@CIRANDA_SIM_SCHEDULES=1000000 build/release/tests/sim_tests --gtest_filter='MemberSimulation.*'
	@$(PYTHON_IN_VENV) -m pytest -m soak --timeout=3600 tests
	@tools/setup.sh check
	@cmake --preset clang >/dev/null
	@$(PYTHON_IN_VENV) tools/lint_core.py build/clang 'clang-analyzer-*,-clang-analyzer-optin.performance.Padding'

check: ## formatters, linters, types, architecture, links
	@tools/setup.sh check
	@tools/check.sh

docs: setup ## the site of pages, docstrings and headers, in build/docs/html; warnings are errors
	@tools/setup.sh docs
	@tools/docs.sh

sanitize: ## core's tests under ASan, UBSan and TSan, PRESETS="asan tsan"
	@tools/setup.sh check
	@tools/sanitize.sh $(PRESETS)

fuzz: ## every decoder against random bytes, SECONDS_EACH=60; regressions run in `make test`
	@tools/setup.sh fuzz
	@tools/fuzz.sh $(or $(SECONDS_EACH),60)

setup: ## system packages, .venv, torch, build, install; only what is missing
	@tools/setup.sh

build: setup ## the same: build and install what changed

clean: ## remove what builds made; .venv and its torch stay
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache
	rm -rf .venv*/.ciranda-stamps/build
