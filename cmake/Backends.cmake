# The backends that need a library. Each is a row of kBackends in core/wire/types.h and a folder of its
# name, with X_*.cc and what belongs to it, or no_X.cc for a build without the library, and X.cmake,
# which looks for it. Takes the files that are not built out of core_sources, adds the table of
# registry.h, and sets
#   ciranda_backend_libraries  what core then links
#   ciranda_cpu_backends       names for --cpu-operations, as Python has them in a tuple
#   ciranda_gpu_backends       the same for --gpu-operations

set(types "${PROJECT_SOURCE_DIR}/csrc/core/wire/types.h")
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${types}")
file(READ "${types}" text)
string(REGEX MATCHALL "{\\.id = BackendId::k[A-Za-z0-9]+, \\.name = [^}]*}" rows "${text}")
list(POP_FRONT rows)  # native, which needs none
foreach(row IN LISTS rows)
  string(REGEX REPLACE ".*\\.id = (BackendId::[A-Za-z0-9]+).*" "\\1" id "${row}")
  string(REGEX REPLACE ".*\\.name = \"([a-z0-9]+)\".*" "\\1" backend "${row}")
  set(folder "${PROJECT_SOURCE_DIR}/csrc/core/backend/${backend}")
  string(TOUPPER "${backend}" upper)
  option(CIRANDA_${upper} "Build the ${backend} backend where what it needs is found" ON)
  if(CIRANDA_${upper})
    include("${folder}/${backend}.cmake")
  endif()
  if(NOT CIRANDA_WITH_${backend})
    list(FILTER core_sources EXCLUDE REGEX "/backend/${backend}/${backend}_[a-z_]*\\.cc$")
  else()
    list(FILTER core_sources EXCLUDE REGEX "/backend/${backend}/no_${backend}\\.cc$")
  endif()
  string(APPEND ciranda_backend_headers "#include \"core/backend/${backend}/${backend}.h\"\n")
  string(APPEND ciranda_backend_rows "      {${id}, make_${backend}, ${backend}_facts},\n")
  if(row MATCHES "\\.on_gpu = true")
    string(APPEND ciranda_gpu_backends "\"${backend}\", ")
  else()
    string(APPEND ciranda_cpu_backends "\"${backend}\", ")
  endif()
endforeach()

set(entries "${PROJECT_BINARY_DIR}/backend_entries.cc")
configure_file(cmake/backend_entries.cc.in "${entries}" @ONLY)
list(APPEND core_sources "${entries}")
