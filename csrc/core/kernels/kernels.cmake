# Included by the directory that defines ciranda_core: source properties are seen only there.
# One file per instruction set; each runs only where variants_x86.cc finds the processor able.
set(_kernels ${CMAKE_CURRENT_LIST_DIR})

# No contraction to fused multiply-adds: every variant promises the same bits.
# No errno of sqrt's: one instruction then.
# -O3 because the loops over a strip must unroll to stay in registers; under a sanitizer that takes
# seven times as long to compile as -O0, and saves less than that in the tests.
set(_kernel_options -ffp-contract=off -fno-math-errno)
if(CIRANDA_SANITIZE)
  list(APPEND _kernel_options -O0)
else()
  list(APPEND _kernel_options $<$<NOT:$<CONFIG:Debug>>:-O3>)
endif()
set_source_files_properties(${_kernels}/reduce_portable.cc ${_kernels}/combine.cc
  PROPERTIES COMPILE_OPTIONS "${_kernel_options}")
# Precompiled headers are for files of the same options.
set_source_files_properties(
  ${_kernels}/reduce_portable.cc ${_kernels}/combine.cc ${_kernels}/reduce_avx2.cc
  ${_kernels}/reduce_avx512.cc PROPERTIES SKIP_PRECOMPILE_HEADERS ON)

if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
  set_source_files_properties(${_kernels}/reduce_avx2.cc
    PROPERTIES COMPILE_OPTIONS "${_kernel_options};-mavx2;-mf16c")
  set_source_files_properties(${_kernels}/reduce_avx512.cc
    PROPERTIES COMPILE_OPTIONS
      "${_kernel_options};-mavx2;-mf16c;-mavx512f;-mavx512bw;-mavx512vl;-mavx512dq;-mprefer-vector-width=512")
  set_source_files_properties(${_kernels}/variants_portable.cc
    PROPERTIES HEADER_FILE_ONLY ON)  # in the source glob, but not compiled
else()
  set_source_files_properties(
    ${_kernels}/variants_x86.cc ${_kernels}/reduce_avx2.cc ${_kernels}/reduce_avx512.cc
    PROPERTIES HEADER_FILE_ONLY ON)
endif()
