#!/usr/bin/env bash
# Everything that judges the text of the project without running it. Fixes nothing itself:
#   clang-format -i FILE, .venv/bin/ruff check --fix, .venv/bin/ruff format
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

stage "C++ format (clang-format)" cpp_is_formatted || true
stage "C++ lint of core (clang-tidy)" core_is_tidy || true
# SC2015: in `a && b || true` a failed stage shall not end the script.
stage "shell scripts (shellcheck)" shellcheck -x -P SCRIPTDIR -e SC2015 tools/*.sh .ci/run || true
stage "Python lint (ruff)" "$python" -m ruff check || true
stage "Python format (ruff)" "$python" -m ruff format --check || true
stage "Python types (mypy --strict)" "$python" -m mypy || true
stage "architecture and links (tests/tidy)" "$python" -m pytest -q tests/tidy tests/sim/test_suites.py || true
stage "how comments read (a thermometer, no limit)" "$python" tools/prose.py || true
stage_summary "make check"
