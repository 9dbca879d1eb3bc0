#!/usr/bin/env bash
# Core's tests under ASan + UBSan and under TSan, without suppressions. Arguments: which presets.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
presets=("$@")
((${#presets[@]} > 0)) || presets=(asan tsan)

# TSan of older clangs does not start where the kernel randomises addresses widely.
no_randomisation=()
if setarch "$(uname -m)" -R true 2>/dev/null; then
  no_randomisation=(setarch "$(uname -m)" -R)
fi

# The simulations decide the same here: fewer of them, for what memory and threads do meanwhile.
export CIRANDA_SIM_SCHEDULES=${CIRANDA_SIM_SCHEDULES:-200}

build_preset() { cmake --preset "$1" >/dev/null && cmake --build --preset "$1"; }

for preset in "${presets[@]}"; do
  stage "build core with $preset" build_preset "$preset" &&
    stage "core tests under $preset" "${no_randomisation[@]}" ctest --preset "$preset" || true
done
stage_summary "make sanitize"
