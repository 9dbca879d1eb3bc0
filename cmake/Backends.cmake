# Which of the backends that need a library are built: X_backend.cc and what belongs to it, or
# no_X.cc. Such a backend is a folder with a no_X.cc; cmake/X.cmake looks for its library. Takes the
# others out of core_sources, and puts what core then links into ciranda_backend_libraries.

file(GLOB without_library CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/csrc/core/backend/*/no_*.cc")
foreach(file ${without_library})
  cmake_path(GET file PARENT_PATH folder)
  cmake_path(GET folder FILENAME backend)
  string(TOUPPER "${backend}" upper)
  option(CIRANDA_${upper} "Build the ${backend} backend where what it needs is found" ON)
  if(CIRANDA_${upper})
    include(backend_${backend})
  endif()
  if(NOT CIRANDA_WITH_${backend})
    list(FILTER core_sources EXCLUDE REGEX "/backend/${backend}/${backend}_[a-z_]*\\.cc$")
  else()
    list(FILTER core_sources EXCLUDE REGEX "/backend/${backend}/no_${backend}\\.cc$")
  endif()
endforeach()
