#pragma once

#include <pybind11/pybind11.h>

namespace ciranda {

// Each function binds one subject, without any logic. The GIL is released around every call that
// may block.
void bind_errors(pybind11::module_& module);
void bind_world(pybind11::module_& module);
void bind_collectives(pybind11::module_& module);
void bind_optimizer(pybind11::module_& module);
void bind_servers(pybind11::module_& module);
void bind_elastic(pybind11::module_& module);

}  // namespace ciranda
