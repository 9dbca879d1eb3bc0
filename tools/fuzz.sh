#!/usr/bin/env bash
# Throws random bytes at everything that reads bytes from outside; what is in C++ under ASan and
# UBSan, what is in Python with Atheris. As many targets at a time as there are cores.
#
#   tools/fuzz.sh [SECONDS] [TARGET...]     60 s for each of all targets; TARGET as in tests/fuzz
#
# What a run has learnt stays in build/fuzz/learnt. An input that crashes lies in build/fuzz/crashes:
# give it a telling name in tests/fuzz/corpus/TARGET, and it is a test.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
export seconds=${1:-60} python
(($# > 0)) && shift
targets=("$@")
if ((${#targets[@]} == 0)); then
  for source in tests/fuzz/*_fuzz.*; do targets+=("$(basename "${source%_fuzz.*}")"); done
fi

build_targets() { cmake --preset fuzz >/dev/null && cmake --build --preset fuzz; }

fuzz() {
  local name=$1 learnt=build/fuzz/learnt/$1 log=build/fuzz/$1.log
  local target=("build/asan/tests/fuzz/${name}_fuzz")
  if [[ -f tests/fuzz/${name}_fuzz.py ]]; then
    target=("$python" "tests/fuzz/${name}_fuzz.py")
    if ! "$python" -c 'import atheris' 2>/dev/null; then
      echo "$name: left out, for Atheris is not installed (requirements-fuzz.txt)"
      [[ "${CIRANDA_TEST_REQUIRE:-}" != all ]]
      return
    fi
  fi
  mkdir -p "$learnt" build/fuzz/crashes
  if "${target[@]}" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 \
    -artifact_prefix="build/fuzz/crashes/$name-" -print_final_stats=1 \
    "$learnt" "tests/fuzz/corpus/$name" >"$log" 2>&1; then
    printf '%-17s %s\n' "$name" "$(grep -a 'DONE' "$log")"
  else
    printf 'FAILED %s\n%s\n' "$name" "$(tail -n 40 "$log")"
    return 1
  fi
}

fuzz_all() {
  # shellcheck disable=SC2016  # expanded by the shell that xargs starts
  printf '%s\0' "${targets[@]}" |
    xargs -0 -n 1 -P "$(nproc)" bash -euo pipefail -c 'fuzz "$1"' -
}
export -f fuzz

stage "build the fuzz targets" build_targets || { stage_summary "make fuzz"; exit 1; }
stage "fuzz ${targets[*]}, $seconds s each" fuzz_all || true
stage_summary "make fuzz"
