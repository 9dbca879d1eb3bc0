#include <torch/csrc/utils/pybind.h>

#include "bindings/bindings.h"

PYBIND11_MODULE(_C, module) {
  module.doc() = "The C++ engine of ciranda; programs use ciranda.torch instead.";
  ciranda::bind_errors(module);
  ciranda::bind_world(module);
  ciranda::bind_collectives(module);
  ciranda::bind_optimizer(module);
  ciranda::bind_servers(module);
  ciranda::bind_elastic(module);
}
