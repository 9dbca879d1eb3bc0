#!/usr/bin/env bash
# Everything that judges the text of the project without running it. Fixes nothing itself:
#   clang-format -i FILE, .venv/bin/ruff check --fix, .venv/bin/ruff format
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

cpp_files() {
  find csrc tests benchmarks examples \( -name '*.cc' -o -name '*.h' -o -name '*.cpp' \) -print0
}
formatted() { cpp_files | xargs -0 clang-format --dry-run --Werror; }

# Configured for clang, so that the compile commands hold no option that only GCC knows.
tidy_core() {
  cmake --preset clang >/dev/null &&
    run-clang-tidy -quiet -p build/clang -j "$(nproc)" 'csrc/core/' >build/clang-tidy.log 2>&1 && return
  grep -hE '(error|warning):' build/clang-tidy.log | sort -u  # a header is reported by each user
  echo "with context: build/clang-tidy.log"
  return 1
}

stage "C++ format (clang-format)" formatted || true
stage "C++ lint of core (clang-tidy)" tidy_core || true
# SC2015: in `a && b || true` a failed stage shall not end the script.
stage "shell scripts (shellcheck)" shellcheck -x -P SCRIPTDIR -e SC2015 tools/*.sh .ci/run || true
stage "Python lint (ruff)" "$python" -m ruff check || true
stage "Python format (ruff)" "$python" -m ruff format --check || true
stage "Python types (mypy --strict)" "$python" -m mypy || true
stage "architecture and links (tests/tidy)" "$python" -m pytest -q tests/tidy || true
stage_summary "make check"
