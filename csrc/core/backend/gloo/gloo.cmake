# Defines ciranda::gloo, a private copy of the distribution's Gloo in the build tree, if it is
# installed, and sets CIRANDA_WITH_gloo.
#
# LibTorch exports a Gloo of another version, and two of them in one process mix up their symbols. So
# in the copy the namespace gloo is called glpN, and the files that include Gloo's headers are
# compiled with -Dgloo=glpN. The new name is as long as the old one and has its hash: the linker's is
# h * 33 + c for each character c, p is o + 1 and N is o - 33. The table of symbols therefore stays
# right, and the whole renaming is a replacement of text.

# A library that is gone is looked for again.
if(DEFINED CIRANDA_GLOO_LIBRARY AND NOT EXISTS "${CIRANDA_GLOO_LIBRARY}")
  unset(CIRANDA_GLOO_LIBRARY CACHE)
endif()
find_path(CIRANDA_GLOO_INCLUDE gloo/allreduce.h DOC "folder of gloo/allreduce.h")
find_library(CIRANDA_GLOO_LIBRARY gloo DOC "libgloo.so")
find_program(CIRANDA_SED sed DOC "GNU sed")
find_file(CIRANDA_GLOO_COPYRIGHT copyright NO_DEFAULT_PATH
          PATHS /usr/share/doc/libgloo0 /usr/share/doc/libgloo-dev DOC "license of libgloo")
mark_as_advanced(CIRANDA_GLOO_INCLUDE CIRANDA_GLOO_LIBRARY CIRANDA_SED CIRANDA_GLOO_COPYRIGHT)

set(ciranda_private_gloo "${PROJECT_BINARY_DIR}/gloo/libcgloo.so")
if(CIRANDA_GLOO_INCLUDE AND CIRANDA_GLOO_LIBRARY AND CIRANDA_SED)
  file(REAL_PATH "${CIRANDA_GLOO_LIBRARY}" library)
  file(MAKE_DIRECTORY "${PROJECT_BINARY_DIR}/gloo")
  file(COPY_FILE "${library}" "${ciranda_private_gloo}")
  execute_process(COMMAND "${CMAKE_COMMAND}" -E env LC_ALL=C "${CIRANDA_SED}" -i
                          -e "s/4gloo/4glpN/g"
                          -e "s/libgloo\\.so\\.[0-9]\\x00/libcgloo.so\\x00\\x00/"
                          "${ciranda_private_gloo}")
  file(STRINGS "${ciranda_private_gloo}" soname REGEX "^libcgloo\\.so$" LIMIT_COUNT 1)
  if(soname)
    set(CIRANDA_WITH_gloo ON)
  else()
    message(WARNING "ciranda builds without Gloo: ${library} is not a shared library that calls "
                    "itself libgloo.so.N; install the distribution's (libgloo-dev)")
  endif()
endif()

if(CIRANDA_WITH_gloo)
  message(STATUS "Gloo: ${library}")
  set_source_files_properties("${PROJECT_SOURCE_DIR}/csrc/core/backend/gloo/gloo_group.cc"
    PROPERTIES COMPILE_DEFINITIONS "gloo=glpN")
  add_library(ciranda::gloo SHARED IMPORTED GLOBAL)
  set_target_properties(ciranda::gloo PROPERTIES
    IMPORTED_LOCATION "${ciranda_private_gloo}"
    IMPORTED_SONAME libcgloo.so)
  target_include_directories(ciranda::gloo INTERFACE "${CIRANDA_GLOO_INCLUDE}")
  list(APPEND ciranda_backend_libraries ciranda::gloo)
else()
  message(STATUS "Gloo: none (libgloo-dev)")
endif()
