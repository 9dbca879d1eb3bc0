#!/usr/bin/env bash
# Builds and tests ciranda with another torch than the default: TORCH_VERSION, or else the oldest
# one that is supported. Its virtual environment and its build folder are its own, so .venv stays
# as it is, and a second run does only what changed.
#
#   tools/test_torch.sh [setup]     setup: the environment and the build alone
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
export TORCH_VERSION=${TORCH_VERSION:-2.11.0}
export VENV=.venv-torch-$TORCH_VERSION
export SKBUILD_BUILD_DIR="build/torch-$TORCH_VERSION/{wheel_tag}"
default_python=$python
python=$VENV/bin/python

[[ "${1:-}" != setup ]] || exec tools/setup.sh test

# Each way that data takes: collectives, hooks and buckets, objects, training through the launcher.
# What does not touch torch (faults, wrong use, the launcher) is tested with the default one.
selection=(tests/python/torch/test_{collectives,shared_step,objects}.py
  tests/python/torch/test_optimizer_{gradients,places,sparse,training}.py
  tests/python/examples/test_mnist.py)

default_setup() { env -u TORCH_VERSION -u VENV -u SKBUILD_BUILD_DIR tools/setup.sh test; }

# The default torch meets the build for this one, as after `pip install --upgrade torch`.
refuses_another_torch() {
  local folder output said status=0
  folder=$(mktemp -d)
  ln -s "$("$python" -c 'import ciranda; print(ciranda.__path__[0])')" "$folder/ciranda"
  output=$(PYTHONPATH=$folder "$default_python" -c 'import ciranda.torch' 2>&1) || status=$?
  rm -r "$folder"
  said=$(tail -n 1 <<<"$output")
  echo "$said"
  [[ $status == 1 && $said == "ImportError: ciranda was built for torch $TORCH_VERSION but torch "* ]]
}

stage "set-up with the default torch" default_setup &&
  stage "set-up with torch $TORCH_VERSION" tools/setup.sh test ||
  { stage_summary "make test-torch"; exit 1; }
stage "tests with torch $TORCH_VERSION" \
  "$python" -m pytest "${beside_each_other[@]}" --durations=5 "${selection[@]}" || true
stage "the build for torch $TORCH_VERSION refuses another" refuses_another_torch || true
stage_summary "make test-torch"
