# What is installed, below one relocatable root:
#   component python       _C, _member and _build.py: the wheel's package folder is the root
#   component development  include/, lib/libciranda_{core,torch}.a, lib/cmake/ciranda
#   both                   bin/ciranda-ps; lib/libcgloo.so, see backend/gloo/gloo.cmake
# The wheel takes both, so C++ programs build against what pip installed.

include(CMakePackageConfigHelpers)

set(ciranda_include_dir include)
set(ciranda_lib_dir lib)
set(ciranda_cmake_dir lib/cmake/ciranda)

if(CIRANDA_BUILD_TORCH)
  install(TARGETS _C _member LIBRARY DESTINATION . COMPONENT python)
  install(FILES "${PROJECT_BINARY_DIR}/ciranda/_build.py" DESTINATION . COMPONENT python)

  # A set of its own: programs without torch never see it.
  install(TARGETS ciranda_torch EXPORT cirandaTorchTargets
          ARCHIVE DESTINATION ${ciranda_lib_dir} COMPONENT development
          INCLUDES DESTINATION ${ciranda_include_dir})
  install(EXPORT cirandaTorchTargets NAMESPACE ciranda:: DESTINATION ${ciranda_cmake_dir}
          COMPONENT development)
  configure_file(cmake/cirandaTorch.cmake.in "${PROJECT_BINARY_DIR}/cirandaTorch.cmake" @ONLY)
  install(FILES "${PROJECT_BINARY_DIR}/cirandaTorch.cmake" cmake/LibTorch.cmake
          DESTINATION ${ciranda_cmake_dir} COMPONENT development)
endif()

foreach(component python development)
  install(TARGETS ciranda-ps RUNTIME DESTINATION bin COMPONENT ${component})
endforeach()

if(CIRANDA_WITH_gloo)
  foreach(component python development)
    install(PROGRAMS "${ciranda_private_gloo}" DESTINATION ${ciranda_lib_dir} COMPONENT ${component})
    if(CIRANDA_GLOO_COPYRIGHT)
      install(FILES "${CIRANDA_GLOO_COPYRIGHT}" DESTINATION ${ciranda_lib_dir}
              RENAME libcgloo.copyright COMPONENT ${component})
    endif()
  endforeach()
endif()

if(EXISTS "${PROJECT_SOURCE_DIR}/csrc/include/ciranda")
  install(DIRECTORY "${PROJECT_SOURCE_DIR}/csrc/include/ciranda"
          DESTINATION ${ciranda_include_dir} COMPONENT development
          FILES_MATCHING PATTERN "*.h")
endif()

install(TARGETS ciranda_core EXPORT cirandaTargets
        ARCHIVE DESTINATION ${ciranda_lib_dir} COMPONENT development
        INCLUDES DESTINATION ${ciranda_include_dir})
install(EXPORT cirandaTargets NAMESPACE ciranda:: DESTINATION ${ciranda_cmake_dir}
        COMPONENT development)

configure_package_config_file(cmake/cirandaConfig.cmake.in
  "${PROJECT_BINARY_DIR}/cirandaConfig.cmake"
  INSTALL_DESTINATION ${ciranda_cmake_dir}
  NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file("${PROJECT_BINARY_DIR}/cirandaConfigVersion.cmake"
  COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/cirandaConfig.cmake"
              "${PROJECT_BINARY_DIR}/cirandaConfigVersion.cmake"
        DESTINATION ${ciranda_cmake_dir} COMPONENT development)
