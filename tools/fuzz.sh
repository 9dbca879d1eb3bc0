#!/usr/bin/env bash
# Throws random bytes at everything that reads bytes from outside, under ASan and UBSan.
#
#   tools/fuzz.sh [SECONDS] [TARGET...]     60 s for each of all targets; TARGET as in tests/fuzz
#
# What a run has learnt stays in build/fuzz/learnt. An input that crashes lies in build/fuzz/crashes:
# give it a telling name in tests/fuzz/corpus/TARGET, and it is a test.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
seconds=${1:-60}
(($# > 0)) && shift
targets=("$@")
if ((${#targets[@]} == 0)); then
  for source in tests/fuzz/*_fuzz.cc; do targets+=("$(basename "$source" _fuzz.cc)"); done
fi

build_targets() { cmake --preset fuzz >/dev/null && cmake --build --preset fuzz; }

fuzz() {
  local name=$1 learnt=build/fuzz/learnt/$1 log=build/fuzz/$1.log
  mkdir -p "$learnt" build/fuzz/crashes
  if "build/fuzz/tests/fuzz/${name}_fuzz" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 \
    -artifact_prefix="build/fuzz/crashes/$name-" -print_final_stats=1 \
    "$learnt" "tests/fuzz/corpus/$name" >"$log" 2>&1; then
    grep -E 'number_of_executed_units|cov:' "$log" | tail -n 2
  else
    tail -n 40 "$log"
    return 1
  fi
}

stage "build the fuzz targets" build_targets || { stage_summary "make fuzz"; exit 1; }
for name in "${targets[@]}"; do
  stage "fuzz $name for $seconds s" fuzz "$name" || true
done
stage_summary "make fuzz"
