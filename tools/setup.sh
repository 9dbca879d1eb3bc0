#!/usr/bin/env bash
# Makes a checkout ready: system packages, .venv, torch, the development tools, ciranda itself.
# Only git and make are assumed. What is already there is left alone, so a second run is quick.
#
#   tools/setup.sh [test] [check] [docs] [fuzz] [bench] [starters] [frameworks]     also the packages that these need
#
#   TORCH_VERSION=2.11.0   another torch than the default
#   PYTHON=python3.12      another interpreter than python3
#   VENV=.venv             another place for the virtual environment
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

torch_version=${TORCH_VERSION:-2.15.0}
venv=${VENV:-.venv}
python=$venv/bin/python
stamps=$venv/.ciranda-stamps

# --- announcing ------------------------------------------------------------------------------
done_already() { printf 'setup: %-16s %s\n' "$1" "$2"; }

# step NAME TEXT COMMAND...: says what is done and how long it took; a failure ends the script.
step() {
  local name=$1 text=$2 began=$SECONDS
  shift 2
  printf 'setup: %-16s %s ...\n' "$name" "$text"
  "$@" || { printf 'setup: %-16s FAILED\n' "$name" >&2; exit 1; }
  printf 'setup: %-16s done in %d s\n' "$name" $((SECONDS - began))
}

# --- system packages ---------------------------------------------------------------------------
preprocesses() { printf '#include <%s>\n' "$1" | g++ -x c++ -E - >/dev/null 2>&1; }

at_least() {  # at_least WANTED FOUND: compares versions
  [[ "$(printf '%s\n%s\n' "$1" "$2" | sort -V | head -n 1)" == "$1" ]]
}

# Prints an interpreter that can make an environment with pip, and has the headers that an extension
# module needs. A bare `python3` may belong to another tool; the distribution's is then the next.
base_python() {
  local candidate
  for candidate in "${PYTHON:-python3}" /usr/bin/python3; do
    "$candidate" - <<'PY' >/dev/null 2>&1 && echo "$candidate" && return
import ensurepip, os, sys, sysconfig, venv
header = os.path.join(sysconfig.get_paths()["include"], "Python.h")
sys.exit(not (sys.version_info >= (3, 10) and os.path.exists(header)))
PY
  done
  return 1
}

links_sanitized() {
  echo 'int main() {}' | clang++ -fsanitize=address -x c++ - -o /dev/null 2>/dev/null
}

# Asks for the thing itself, not for the package: it may have come in another way.
have() {
  case $1 in
    g++ | ccache | clang | clang-format | doxygen | shellcheck | spin | tcc) command -v "$1" >/dev/null ;;
    clang-tidy) command -v run-clang-tidy >/dev/null ;;
    cmake) command -v cmake >/dev/null && at_least 3.25 "$(cmake --version | awk 'NR==1{print $3}')" ;;
    ninja-build) command -v ninja >/dev/null ;;
    openmpi-bin) command -v mpirun >/dev/null ;;
    iproute2) PATH=$PATH:/sbin command -v tc >/dev/null ;;
    openssh-server) [[ -x /usr/sbin/sshd ]] ;;
    linux-perf) command -v perf >/dev/null ;;
    python3-venv | python3-dev) base_python >/dev/null ;;
    libgtest-dev) preprocesses gtest/gtest.h ;;
    libbenchmark-dev) preprocesses benchmark/benchmark.h ;;
    dataset-fashion-mnist) [[ -d /usr/share/datasets/fashion-mnist ]] || is_installed "$1" ;;
    libgloo-dev) preprocesses gloo/allreduce.h ;;
    libssl-dev) preprocesses openssl/core_names.h ;;  # new in OpenSSL 3
    libclang-rt-dev) links_sanitized ;;
    *) is_installed "$1" ;;
  esac
}
is_installed() {
  [[ "$(dpkg-query -W -f '${Status}' "$1" 2>/dev/null)" == "install ok installed" ]]
}

required=(g++ cmake ninja-build python3-venv python3-dev libssl-dev)
# Faster builds; the demo's images without a download; the Gloo backend; what `ciranda compare` has beside
# us, and the hosts that it makes.
optional=(ccache dataset-fashion-mnist libgloo-dev openmpi-bin iproute2)
for group in "$@"; do
  case $group in
    test) required+=(libgtest-dev) optional+=(spin tcc) ;;
    check) required+=(libgtest-dev clang clang-format clang-tidy shellcheck) optional+=(libclang-rt-dev) ;;
    docs) required+=(doxygen) ;;
    fuzz) required+=(clang) optional+=(libclang-rt-dev) ;;
    bench) required+=(libbenchmark-dev) optional+=(libopenmpi-dev linux-perf) ;;
    # These bring daemons and a browser, so `make test` does not put them on everybody's machine.
    starters) optional+=(slurmctld slurmd openssh-server chromium-headless-shell) ;;
    frameworks) ;;
    *)
      echo "setup.sh: unknown group '$group' (test, check, docs, fuzz, bench, starters, frameworks)" >&2
      exit 2
      ;;
  esac
done

as_root() {
  if [[ $(id -u) == 0 ]]; then "$@"; else sudo "$@"; fi
}

can_install() {
  command -v apt-get >/dev/null || return 1
  [[ $(id -u) == 0 ]] && return 0
  command -v sudo >/dev/null || return 1
  sudo -n true 2>/dev/null || [[ -t 0 ]]  # without a terminal sudo cannot ask for a password
}

say_what_is_missing() {
  {
    echo "setup: these packages are missing, and they cannot be installed from here:"
    printf '         %s\n' "$@"
    echo "       Ask an administrator to run"
    echo "         apt-get install --no-install-recommends $*"
    echo "       (Debian and Ubuntu's names; elsewhere install what corresponds), then try again."
  } >&2
}

apt() {
  as_root env DEBIAN_FRONTEND=noninteractive apt-get -y -qq -o DPkg::Lock::Timeout=300 "$@" </dev/null
}

install_packages() {
  local log=build/packages.log package
  : >"$log"
  # A package list that cannot be refreshed may still be good enough.
  apt update >>"$log" 2>&1 ||
    echo "setup: could not refresh the list of packages; going on with the old one"
  apt install --no-install-recommends "${missing[@]}" >>"$log" 2>&1 || {
    tail -n 20 "$log" >&2
    return 1
  }
  for package in "${missing_optional[@]}"; do
    apt install --no-install-recommends "$package" >>"$log" 2>&1 ||
      echo "setup: optional package $package could not be installed; going on without it"
  done
}

missing=() missing_optional=()
for package in "${required[@]}"; do have "$package" || missing+=("$package"); done
for package in "${optional[@]}"; do have "$package" || missing_optional+=("$package"); done

# An optional package that was refused once is not asked for again on every run.
refused="build/.optional-packages-refused"
if ((${#missing[@]} == 0)) && [[ -f $refused && "$(cat "$refused")" == "${missing_optional[*]}" ]]; then
  missing_optional=()
fi

mkdir -p build
exec 9>build/.setup.lock
flock 9  # two `make` in one checkout take turns

if ((${#missing[@]} + ${#missing_optional[@]} == 0)); then
  done_already packages "all there"
elif can_install; then
  step packages "installing ${missing[*]} ${missing_optional[*]}" install_packages
  for package in "${missing[@]}"; do
    if ! have "$package"; then
      echo "setup: $package was installed but is too old or not found; ciranda needs g++ 12," \
        "CMake 3.25, Python 3.10 with headers, or newer" >&2
      exit 1
    fi
  done
  still=()
  for package in "${missing_optional[@]}"; do have "$package" || still+=("$package"); done
  echo "${still[*]}" >"$refused"
elif ((${#missing[@]} > 0)); then
  say_what_is_missing "${missing[@]}"
  exit 1
else
  done_already packages "all there but the optional ${missing_optional[*]}"
fi

# --- virtual environment and torch -------------------------------------------------------------
if "$python" -c '' 2>/dev/null; then
  done_already venv "$venv is there"
else
  base=$(base_python)
  step venv "making $venv with $("$base" --version)" "$base" -m venv --clear "$venv"
fi
mkdir -p "$stamps"

pip_install() {
  local quiet=()
  [[ -t 1 ]] || quiet=(--quiet --progress-bar off)
  "$python" -m pip install --disable-pip-version-check --no-input "${quiet[@]}" "$@" </dev/null
}

installed_version() {
  "$python" -c 'import sys; from importlib.metadata import version; print(version(sys.argv[1]))' \
    "$1" 2>/dev/null || true
}

# pip keeps one core busy for minutes. The others compile what needs no torch: the wheel's build then has it
# from the compiler cache.
core=
compile_core() {
  cmake --preset release -B build/core -DCIRANDA_BUILD_TESTS=OFF && cmake --build build/core
}
compile_core_beside_pip() {
  command -v ccache >/dev/null || return 0
  export -f compile_core
  nice bash -euc compile_core >build/core.log 2>&1 &
  core=$!
}
# What does not compile here, does not in the wheel's build, which says so.
wait_for_core() { wait "$core" || true; }

found_torch=$(installed_version torch)
if [[ "${found_torch%%+*}" == "$torch_version" ]]; then
  done_already torch "$found_torch is there"
else
  compile_core_beside_pip
  step torch "installing torch $torch_version (a download of gigabytes the first time)" \
    pip_install "torch==$torch_version"
fi

# Without CUDA's toolkit NCCL's headers want these, of the same CUDA as what torch brought.
cuda=$(installed_version nvidia-cuda-runtime | cut -d . -f 1,2)
if [[ -n "$cuda" && "$(installed_version nvidia-cuda-crt)" != "$cuda".* ]]; then
  step cuda "installing the headers nvidia-cuda-crt $cuda" pip_install "nvidia-cuda-crt==$cuda.*"
fi

wanted_tools=$(sha256sum requirements-dev.txt)
if [[ -f $stamps/tools && "$(cat "$stamps/tools")" == "$wanted_tools" ]]; then
  done_already tools "as in requirements-dev.txt"
else
  step tools "installing requirements-dev.txt" pip_install -r requirements-dev.txt
  echo "$wanted_tools" >"$stamps/tools"
fi

# Only a wheel: from its source Atheris builds a compiler first.
install_fuzzer() {
  pip_install --quiet --only-binary :all: -r requirements-fuzz.txt ||
    echo "setup: Atheris could not be installed; it may have no wheel for $("$python" --version) on" \
      "$(uname -m). \`make fuzz\` goes on without the targets in Python"
}
[[ " $* " != *" fuzz "* ]] || step fuzzer "as in requirements-fuzz.txt" install_fuzzer

if [[ " $* " == *" docs "* ]]; then
  wanted_docs=$(sha256sum requirements-docs.txt)
  if [[ "$(cat "$stamps/docs" 2>/dev/null)" == "$wanted_docs" ]]; then
    done_already sphinx "as in requirements-docs.txt"
  else
    step sphinx "installing requirements-docs.txt" pip_install -r requirements-docs.txt
    echo "$wanted_docs" >"$stamps/docs"
  fi
fi

if [[ " $* " == *" frameworks "* ]]; then
  wanted_frameworks=$(sha256sum requirements-frameworks.txt)
  if [[ "$(cat "$stamps/frameworks" 2>/dev/null)" == "$wanted_frameworks" ]]; then
    done_already frameworks "as in requirements-frameworks.txt"
  else
    step frameworks "installing requirements-frameworks.txt" \
      pip_install -r requirements-frameworks.txt --constraint requirements-dev.txt
    echo "$wanted_frameworks" >"$stamps/frameworks"
  fi
fi

# Peers that install from PyPI: MPIs, each where no other MPI is found, Ray and TensorFlow. numpy and mpi4py as
# in .venv.
install_peer() {  # install_peer ENVIRONMENT PACKAGE
  local environment=build/peers/$1 package=$2
  { "$python" -m venv --clear "$environment" &&
    "$environment/bin/python" -m pip install --disable-pip-version-check --no-input --quiet \
      --progress-bar off --only-binary :all: --constraint requirements-dev.txt \
      numpy mpi4py "$package" </dev/null &&
    echo "$wanted_tools" >"$environment/.installed"
  } || echo "setup: $package could not be installed; the benchmarks go on without this peer"
}

peer() {  # peer ENVIRONMENT PACKAGE
  if [[ "$(cat "build/peers/$1/.installed" 2>/dev/null)" == "$wanted_tools" ]]; then
    done_already "$1" "$2 is there"
  else
    step "$1" "installing $2, a peer of the benchmarks" install_peer "$1" "$2"
  fi
}
if [[ " $* " == *" bench "* ]]; then
  peer openmpi5 openmpi
  peer intelmpi impi-rt
  peer ray ray
  peer tensorflow tensorflow-cpu
fi

# --- ciranda -------------------------------------------------------------------------------------
# Everything that ends up in the wheel or decides how it is compiled.
inputs_of_the_build() {
  {
    find CMakeLists.txt cmake csrc python pyproject.toml tools/wheel_requirements.py LICENSE -type f \
      ! -name '*.pyc' ! -name '*.so' ! -name _build.py -print0 2>/dev/null | sort -z | xargs -0 sha256sum
    installed_version torch
    g++ -dumpfullversion -dumpmachine
  } | sha256sum
}

build_and_install() {
  SKBUILD_CMAKE_DEFINE="CIRANDA_WERROR=ON${SKBUILD_CMAKE_DEFINE:+;$SKBUILD_CMAKE_DEFINE}" \
    pip_install --no-build-isolation --no-deps --force-reinstall .
}

wanted_build=$(inputs_of_the_build)
if [[ -n "$(installed_version ciranda)" && -f $stamps/build &&
      "$(cat "$stamps/build")" == "$wanted_build" ]]; then
  done_already ciranda "built and installed"
else
  [[ -z $core ]] || step core "waiting for what compiles beside pip" wait_for_core
  step ciranda "building and installing (quick when little changed)" build_and_install
  echo "$wanted_build" >"$stamps/build"
fi
