# How every target of this project is compiled: the interface target ciranda_build_flags.
# Nothing global is changed that a parent project (add_subdirectory, FetchContent) would notice.

if(PROJECT_IS_TOP_LEVEL AND NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
endif()

set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

# A compiler cache only changes how long a build takes, so it needs no option. What it must not mind
# is that precompiled headers hold dates and macros.
find_program(CIRANDA_CCACHE ccache)
if(CIRANDA_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER
      "${CMAKE_COMMAND};-E;env;CCACHE_SLOPPINESS=pch_defines,time_macros;${CIRANDA_CCACHE}")
endif()

add_library(ciranda_build_flags INTERFACE)

target_compile_options(ciranda_build_flags INTERFACE
  -Wall -Wextra -Wshadow -Wconversion
  -Wsign-conversion  # clang's -Wconversion has it, GCC's has not
  -Wno-missing-field-initializers  # {.op = kSum} leaves the other fields at their defaults: meant
  $<$<CXX_COMPILER_ID:Clang>:-Wthread-safety>
  $<$<BOOL:${CIRANDA_WERROR}>:-Werror>
  # GCC 12 warns about overlapping copies inside `"text" + std::string` (GCC bug 105651).
  "$<$<AND:$<CXX_COMPILER_ID:GNU>,$<VERSION_LESS:$<CXX_COMPILER_VERSION>,13>>:-Wno-restrict>"
  # -O2 for all, -O3 where it was measured (kernels.cmake). Line tables only: enough for a readable
  # backtrace or profile, a fraction of the size of -g.
  "$<$<CONFIG:Release>:-O2;-g1>"
  # Paths in assertions and debug lines start at the repository, wherever it was built; two build
  # trees of one checkout compile the same bytes, so the compiler cache serves both. (The last map
  # that fits wins.)
  "-ffile-prefix-map=${PROJECT_SOURCE_DIR}/="
  "-ffile-prefix-map=${PROJECT_BINARY_DIR}=.")

if(CIRANDA_SANITIZE)
  target_compile_options(ciranda_build_flags INTERFACE
    "-fsanitize=${CIRANDA_SANITIZE}" -fno-sanitize-recover=all -fno-omit-frame-pointer
    -O1)  # what is watched takes longer to compile than to run
  target_link_options(ciranda_build_flags INTERFACE "-fsanitize=${CIRANDA_SANITIZE}")
  if(CIRANDA_SANITIZE STREQUAL "thread")
    target_compile_definitions(ciranda_build_flags INTERFACE CIRANDA_YIELD_POINTS)
  endif()
else()
  target_compile_options(ciranda_build_flags INTERFACE
    -fstack-protector-strong
    # Undefined first: some distributions predefine another level, and redefining warns.
    $<$<NOT:$<CONFIG:Debug>>:-U_FORTIFY_SOURCE>
    $<$<NOT:$<CONFIG:Debug>>:-D_FORTIFY_SOURCE=2>)
endif()
target_link_options(ciranda_build_flags INTERFACE LINKER:-z,relro LINKER:-z,now)

# Of targets with precompiled headers, which ccache leaves alone without these.
add_library(ciranda_precompiled_flags INTERFACE)
target_compile_options(ciranda_precompiled_flags INTERFACE
  $<$<CXX_COMPILER_ID:GNU>:-fpch-preprocess>
  "$<$<CXX_COMPILER_ID:Clang>:SHELL:-Xclang -fno-pch-timestamp>")

# Linked after ciranda_build_flags by the tests, whose own code takes longer to compile than to run:
# under a sanitizer three times as long with -O1 as without.
set(level -O1)
if(CIRANDA_SANITIZE)
  set(level -O0)
endif()
add_library(ciranda_test_flags INTERFACE)
target_compile_options(ciranda_test_flags INTERFACE
  $<$<CONFIG:Release>:${level}>
  # At -O1, GCC sees uninitialized values in each std::optional.
  $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
target_link_libraries(ciranda_test_flags INTERFACE ciranda_precompiled_flags)
if(CIRANDA_SANITIZE MATCHES "fuzzer-no-link")
  target_compile_options(ciranda_test_flags INTERFACE -fno-sanitize=fuzzer-no-link)  # core's alone
endif()

# Compiles the files of a folder as one: what templates become, half of what tests or a sanitizer's
# build take, they have in common. Names in anonymous namespaces must differ then. Folders that match
# `apart` stay as they are.
function(ciranda_unite_folders target apart)
  get_target_property(sources ${target} SOURCES)
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
  foreach(source IN LISTS sources)
    cmake_path(RELATIVE_PATH source BASE_DIRECTORY "${PROJECT_SOURCE_DIR}" OUTPUT_VARIABLE path)
    cmake_path(GET path PARENT_PATH folder)
    if(NOT folder MATCHES "${apart}")
      string(MAKE_C_IDENTIFIER "${folder}" group)
      set_source_files_properties("${source}" PROPERTIES UNITY_GROUP ${group})
    endif()
  endforeach()
endfunction()
