# Finds torch by asking the interpreter we build for, and defines
#   ciranda::torch_deps         LibTorch: headers, libtorch, libtorch_cpu, libc10
#   ciranda::torch_python_deps  the same plus libtorch_python, for the extension module
#
# find_package(Torch) is not used: with a CUDA build of torch it demands a CUDA toolkit, it
# overwrites CMAKE_CUDA_ARCHITECTURES, and it does not offer libtorch_python.

find_package(Python3 3.10 REQUIRED COMPONENTS Interpreter Development.Module)

# PYTHONPATH stays in effect: it may be what makes torch visible.
execute_process(
  COMMAND "${Python3_EXECUTABLE}" "${CMAKE_CURRENT_LIST_DIR}/print_torch_facts.py"
  OUTPUT_VARIABLE torch_facts
  ERROR_VARIABLE torch_error
  RESULT_VARIABLE torch_result)

if(NOT torch_result EQUAL 0)
  string(STRIP "${torch_error}" torch_error)
  message(FATAL_ERROR
    "ciranda is compiled against the torch it will run with, and ${Python3_EXECUTABLE} cannot "
    "import torch (${torch_error}).\n"
    "If you ran `pip install .`, pip built in an isolated environment, which never holds your "
    "torch. Install torch first and switch the isolation off:\n"
    "    pip install torch && pip install --no-build-isolation .\n")
endif()

string(JSON CIRANDA_TORCH_VERSION GET "${torch_facts}" version)
string(JSON torch_root GET "${torch_facts}" root)
string(JSON torch_cxx11_abi GET "${torch_facts}" cxx11_abi)
message(STATUS "torch ${CIRANDA_TORCH_VERSION} in ${torch_root}")

if(CIRANDA_TORCH_VERSION VERSION_LESS 2.11)
  message(FATAL_ERROR "ciranda needs torch 2.11 or newer, found ${CIRANDA_TORCH_VERSION}: "
                      "pip install --upgrade torch")
endif()

set(torch_include_dirs "${torch_root}/include" "${torch_root}/include/torch/csrc/api/include")

function(ciranda_import_torch_library name)
  set(path "${torch_root}/lib/lib${name}.so")
  if(NOT EXISTS "${path}")
    message(FATAL_ERROR "torch ${CIRANDA_TORCH_VERSION} lacks ${path}")
  endif()
  add_library(ciranda::torch_lib_${name} SHARED IMPORTED)
  set_target_properties(ciranda::torch_lib_${name} PROPERTIES
    IMPORTED_LOCATION "${path}"
    # Not written into our files as a path: the run-time search path finds it by name.
    IMPORTED_SONAME "lib${name}.so")
endfunction()

foreach(name IN ITEMS torch torch_cpu c10 torch_python)
  ciranda_import_torch_library(${name})
endforeach()

add_library(ciranda_torch_deps INTERFACE)
add_library(ciranda::torch_deps ALIAS ciranda_torch_deps)
# SYSTEM silences warnings of torch's headers. BEFORE makes the pybind11 that torch bundles win over
# any other copy: two copies register the same types twice and do not see each other's.
target_include_directories(ciranda_torch_deps SYSTEM BEFORE INTERFACE ${torch_include_dirs})
target_compile_definitions(ciranda_torch_deps INTERFACE
  "_GLIBCXX_USE_CXX11_ABI=${torch_cxx11_abi}"
  # In the command line, so that another torch recompiles what depends on it.
  "CIRANDA_TORCH_VERSION=\"${CIRANDA_TORCH_VERSION}\"")
# Assertions in torch's headers carry their file name: say which header, not on whose machine.
target_compile_options(ciranda_torch_deps INTERFACE
  "-ffile-prefix-map=${torch_root}/=torch/"
  "-ffile-prefix-map=${Python3_INCLUDE_DIRS}/=python/")
target_compile_features(ciranda_torch_deps INTERFACE cxx_std_20)
target_link_libraries(ciranda_torch_deps
  INTERFACE ciranda::torch_lib_torch ciranda::torch_lib_torch_cpu ciranda::torch_lib_c10)

add_library(ciranda_torch_python_deps INTERFACE)
add_library(ciranda::torch_python_deps ALIAS ciranda_torch_python_deps)
target_link_libraries(ciranda_torch_python_deps
  INTERFACE ciranda_torch_deps ciranda::torch_lib_torch_python)
# torch's own extension builder sets these two; pybind11 wants the first in its error messages.
target_compile_definitions(ciranda_torch_python_deps
  INTERFACE TORCH_API_INCLUDE_EXTENSION_H TORCH_EXTENSION_NAME=_C)
