# Shared by the scripts of this folder: stages that are announced, timed and summed up.
# shellcheck shell=bash disable=SC2034  # what is set here is used by the others

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# Two gigabytes for each compiler: torch's headers are large.
jobs_for_this_machine() {
  local cores memory_gb
  cores=$(nproc)
  memory_gb=$(awk '/^MemTotal/ {print int($2 / 1048576)}' /proc/meminfo)
  local by_memory=$((memory_gb / 2 > 0 ? memory_gb / 2 : 1))
  echo $((cores < by_memory ? cores : by_memory))
}
# The wheel and the tests name the compiler alike, or the cache of compiled files keeps them apart.
export CXX=${CXX:-g++}
export CMAKE_BUILD_PARALLEL_LEVEL="${CMAKE_BUILD_PARALLEL_LEVEL:-$(jobs_for_this_machine)}"
export CTEST_PARALLEL_LEVEL="${CTEST_PARALLEL_LEVEL:-$(nproc)}"

python=.venv/bin/python
# pytest's options for files of tests beside each other. What a file sets up, its tests share; those
# that assert times want the machine for themselves.
beside_each_other=(-m "not soak and not timing"
  --numprocesses="$CMAKE_BUILD_PARALLEL_LEVEL" --dist=loadfile)

cpp_is_formatted() {
  find csrc tests benchmarks examples \( -name '*.cc' -o -name '*.h' -o -name '*.cpp' \) -print0 |
    xargs -0 clang-format --dry-run --Werror
}

# Configured for clang, so that the compile commands hold no option that only GCC knows.
core_is_tidy() {
  cmake --preset clang >/dev/null && "$python" tools/lint_core.py build/clang
}

if [[ -t 1 && -z "${NO_COLOR:-}" ]]; then
  bold=$'\e[1m' red=$'\e[31m' green=$'\e[32m' plain=$'\e[0m'
else
  bold='' red='' green='' plain=''
fi

stage_lines=()
stages_passed=0
stages_failed=0

# stage TITLE COMMAND [ARGUMENT...]: runs the command, remembers how it went and how long it took.
# Returns the command's status, so `stage ... || exit 1` stops where going on makes no sense.
stage() {
  local title=$1 status=0 began=$SECONDS
  shift
  printf '\n%s==> %s%s\n' "$bold" "$title" "$plain"
  "$@" || status=$?
  local seconds=$((SECONDS - began))
  if ((status == 0)); then
    stages_passed=$((stages_passed + 1))
    stage_lines+=("$(printf '  %sok    %s %5d s  %s' "$green" "$plain" $seconds "$title")")
  else
    stages_failed=$((stages_failed + 1))
    local why="status $status"
    ((status != 124)) || why="ended after its limit"
    stage_lines+=("$(printf '  %sFAILED%s %5d s  %s (%s)' "$red" "$plain" $seconds "$title" "$why")")
  fi
  return $status
}

# The last thing a script prints; fails if a stage did.
stage_summary() {
  printf '\n%s%s%s\n' "$bold" "$1" "$plain"
  printf '%s\n' "${stage_lines[@]}"
  printf '\nstages: %d passed, %d failed\n' $stages_passed $stages_failed
  ((stages_failed == 0))
}
