# Finds torch by asking the interpreter we build for, and defines
#   ciranda::libtorch     LibTorch, see LibTorch.cmake
#   ciranda_torch_flags   how our files are compiled against it
#   ciranda_torch_python  what the extension module needs besides

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
    "    pip install torch 'scikit-build-core>=1.1' ninja\n"
    "    pip install --no-build-isolation .\n")
endif()

string(JSON CIRANDA_TORCH_VERSION GET "${torch_facts}" version)
string(JSON torch_root GET "${torch_facts}" root)
string(JSON torch_cxx11_abi GET "${torch_facts}" cxx11_abi)
message(STATUS "torch ${CIRANDA_TORCH_VERSION} in ${torch_root}")

if(CIRANDA_TORCH_VERSION VERSION_LESS 2.11)
  message(FATAL_ERROR "ciranda needs torch 2.11 or newer, found ${CIRANDA_TORCH_VERSION}: "
                      "pip install --upgrade torch")
endif()

include("${CMAKE_CURRENT_LIST_DIR}/LibTorch.cmake")
ciranda_import_libtorch("${torch_root}" "${torch_cxx11_abi}")

# How our own files are compiled against torch.
add_library(ciranda_torch_flags INTERFACE)
# In the command line, so that another torch recompiles what depends on it.
target_compile_definitions(ciranda_torch_flags INTERFACE
  "CIRANDA_TORCH_VERSION=\"${CIRANDA_TORCH_VERSION}\"")
# Assertions in torch's headers carry their file name: say which header, not on whose machine.
target_compile_options(ciranda_torch_flags INTERFACE
  "-ffile-prefix-map=${torch_root}/=torch/"
  "-ffile-prefix-map=${Python3_INCLUDE_DIRS}/=python/")

add_library(ciranda_torch_python INTERFACE)
target_link_libraries(ciranda_torch_python INTERFACE ciranda::libtorch ciranda::libtorch_python)
# torch's own extension builder sets these two; pybind11 wants the first in its error messages.
target_compile_definitions(ciranda_torch_python
  INTERFACE TORCH_API_INCLUDE_EXTENSION_H TORCH_EXTENSION_NAME=_C)
