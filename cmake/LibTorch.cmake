# ciranda_import_libtorch(ROOT CXX11_ABI): ROOT is pip's torch package or an unpacked LibTorch zip, a
# folder with include/ and lib/. Defines
#   ciranda::libtorch         headers, libtorch, libtorch_cpu, libc10
#   ciranda::libtorch_python  libtorch_python, where there is one
#
# find_package(Torch) is not used: with a CUDA build of torch it demands a CUDA toolkit, it
# overwrites CMAKE_CUDA_ARCHITECTURES, and it does not offer libtorch_python.
function(ciranda_import_libtorch root cxx11_abi)
  foreach(name IN ITEMS torch torch_cpu c10 torch_python)
    set(path "${root}/lib/lib${name}.so")
    if(NOT EXISTS "${path}")
      if(name STREQUAL "torch_python")
        continue()
      endif()
      message(FATAL_ERROR "ciranda: LibTorch in ${root} lacks ${path}")
    endif()
    add_library(ciranda::lib${name} SHARED IMPORTED)
    set_target_properties(ciranda::lib${name} PROPERTIES
      IMPORTED_LOCATION "${path}"
      # Not written into a program as a path: the run-time search path finds it by name.
      IMPORTED_SONAME "lib${name}.so")
  endforeach()
  # The headers belong to libtorch_cpu; those of an imported target are system headers.
  target_include_directories(ciranda::libtorch_cpu INTERFACE
    "${root}/include" "${root}/include/torch/csrc/api/include")
  target_compile_definitions(ciranda::libtorch_cpu INTERFACE "_GLIBCXX_USE_CXX11_ABI=${cxx11_abi}")
  target_compile_features(ciranda::libtorch_cpu INTERFACE cxx_std_20)
  target_link_libraries(ciranda::libtorch INTERFACE ciranda::libtorch_cpu ciranda::libc10)
endfunction()
