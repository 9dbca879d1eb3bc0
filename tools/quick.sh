#!/usr/bin/env bash
# What is likely to break after a change of a file or two, in minutes: `make test` is for the rest.
# Left out are simulations, backends of every kind, and all that starts many processes.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

build_core_tests() { cmake --preset release >/dev/null && cmake --build --preset release; }
core_tests() {
  ctest --preset release --output-on-failure --exclude-regex \
    'Simulation|AllBackends|AHundredWorlds|Farewell|Gloo|Strangers|ManyHosts|Nccl'
}
smoke_tests() {
  "$python" -m pytest -q tests/tidy tests/sim/test_suites.py \
    tests/python/torch/test_optimizer_training.py::test_ranks_train_as_one_rank_with_the_joined_batch
}

stage "build core and its tests" build_core_tests && stage "core tests (ctest)" core_tests || true
stage "two ranks of torch, architecture and links (pytest)" smoke_tests || true
stage "C++ format (clang-format)" cpp_is_formatted || true
stage "C++ lint of core (clang-tidy)" core_is_tidy || true
stage "Python lint (ruff)" "$python" -m ruff check || true
stage "Python format (ruff)" "$python" -m ruff format --check || true
stage_summary "make quick"
