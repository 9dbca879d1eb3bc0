#!/usr/bin/env bash
# A wheel that can travel: for the torch of .venv (see the metadata), without Gloo, whose libraries
# not every machine has. It ends in dist/, or in the folder that is given.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
out=${1:-dist}

# What torch, the C++ compiler and every Linux with OpenSSL 3 bring.
known='^(libtorch.*|libc10.*|lib(ssl|crypto)\.so\.3|lib(stdc\+\+|gcc_s|m|c|dl|pthread)\.so\..*|ld-linux.*)$'

build_wheel() {
  # Beside the build of `make build`, which may have Gloo.
  SKBUILD_BUILD_DIR="build/wheel/{wheel_tag}" "$python" -m pip wheel --quiet --no-build-isolation \
    --no-deps -C cmake.define.CIRANDA_GLOO=OFF -w "$out" .
}

# What the module needs of a machine.
needs_nothing_else() {
  local folder wheel strangers
  folder=$(mktemp -d)
  wheel=$(find "$out" -name 'ciranda-*.whl' -newer pyproject.toml -print | sort | tail -n 1)
  "$python" -m zipfile -e "$wheel" "$folder"
  strangers=$(readelf -d "$folder"/ciranda/_C.*.so | sed -n 's/.*NEEDED.*\[\(.*\)\]/\1/p' |
    grep -vE "$known") || true
  rm -r "$folder"
  [[ -z $strangers ]] && echo "$wheel" && return
  echo "$wheel needs $(tr '\n' ' ' <<<"$strangers")"
  return 1
}

stage "build a wheel" build_wheel && stage "what it needs" needs_nothing_else || true
stage_summary "make wheel"
