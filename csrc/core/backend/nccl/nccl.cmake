# Finds NCCL's headers, and CUDA's, which they include, for headers only: the library is looked for
# at run time. They lie in the wheels that torch brings (of the interpreter, or of the checkout's
# .venv), or where NCCL_HOME and CUDA_HOME say, or where the compiler looks. Without CUDA's toolkit the
# part of its headers that lies in crt is missing: it is the wheel nvidia-cuda-crt, which torch does
# not bring. Sets CIRANDA_WITH_nccl and, if it is on, defines ciranda_nccl_headers.

find_package(Python3 3.10 QUIET COMPONENTS Interpreter)
set(site_packages "${Python3_SITELIB}")
file(GLOB venv_site_packages "${PROJECT_SOURCE_DIR}/.venv/lib/python3*/site-packages")
list(APPEND site_packages ${venv_site_packages})
list(TRANSFORM site_packages APPEND "/nvidia" OUTPUT_VARIABLE wheels)

# An environment that is gone is looked for again.
foreach(dir CIRANDA_NCCL_INCLUDE_DIR CIRANDA_CUDA_INCLUDE_DIR)
  if(DEFINED ${dir} AND NOT EXISTS "${${dir}}")
    unset(${dir} CACHE)
  endif()
endforeach()
list(TRANSFORM wheels APPEND "/nccl" OUTPUT_VARIABLE nccl_wheels)
find_path(CIRANDA_NCCL_INCLUDE_DIR nccl.h
          HINTS ENV NCCL_HOME ${nccl_wheels} PATH_SUFFIXES include
          DOC "Where nccl.h is")
list(TRANSFORM wheels APPEND "/cu13" OUTPUT_VARIABLE cuda_wheels)
list(TRANSFORM wheels APPEND "/cuda_runtime" OUTPUT_VARIABLE older_cuda_wheels)
find_path(CIRANDA_CUDA_INCLUDE_DIR crt/host_config.h
          HINTS ENV CUDA_HOME ${cuda_wheels} ${older_cuda_wheels} /usr/local/cuda
          PATH_SUFFIXES include
          DOC "Where cuda_runtime.h and crt are")

# Float8 came with 2.24. The library may be older: that is looked at when it is loaded.
set(oldest_headers 22400)
set(nccl_version 0)
if(CIRANDA_NCCL_INCLUDE_DIR)
  file(STRINGS "${CIRANDA_NCCL_INCLUDE_DIR}/nccl.h" line REGEX "^#define NCCL_VERSION_CODE [0-9]+" LIMIT_COUNT 1)
  string(REGEX MATCH "[0-9]+" nccl_version "${line}")
endif()

set(CIRANDA_WITH_nccl OFF)
if(nccl_version GREATER_EQUAL oldest_headers AND
   EXISTS "${CIRANDA_CUDA_INCLUDE_DIR}/cuda_runtime.h")
  set(CIRANDA_WITH_nccl ON)
  add_library(ciranda_nccl_headers INTERFACE)
  target_include_directories(ciranda_nccl_headers SYSTEM INTERFACE
    "${CIRANDA_NCCL_INCLUDE_DIR}" "${CIRANDA_CUDA_INCLUDE_DIR}")
  # For these files alone: elsewhere the path would keep the compiler cache from serving two torches.
  set(nccl_sources ${core_sources})
  list(FILTER nccl_sources INCLUDE REGEX "/backend/nccl/nccl_[a-z_]*\\.cc$")
  set_source_files_properties(${nccl_sources} PROPERTIES COMPILE_OPTIONS
    "-isystem;${CIRANDA_NCCL_INCLUDE_DIR};-isystem;${CIRANDA_CUDA_INCLUDE_DIR}")
  list(APPEND ciranda_backend_libraries ${CMAKE_DL_LIBS})
  message(STATUS "NCCL's headers in ${CIRANDA_NCCL_INCLUDE_DIR}")
else()
  message(STATUS "NCCL's headers, 2.24 or newer, and CUDA's with crt were not found: no NCCL backend (see csrc/core/backend/nccl/nccl.cmake)")
endif()
