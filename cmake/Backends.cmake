# Which of the backends that need a library are built: X_backend.cc and what belongs to it, or
# no_X.cc. Takes the others out of core_sources, and puts what core then links into
# ciranda_backend_libraries.

option(CIRANDA_GLOO "Build the Gloo backend where libgloo is found" ON)
option(CIRANDA_NCCL "Build the NCCL backend where NCCL's headers are found" ON)

if(CIRANDA_GLOO)
  include(Gloo)
endif()
if(CIRANDA_NCCL)
  include(Nccl)
endif()

foreach(backend gloo nccl)
  if(NOT CIRANDA_WITH_${backend})
    list(FILTER core_sources EXCLUDE REGEX "/backend/${backend}/${backend}_[a-z_]*\\.cc$")
  else()
    list(FILTER core_sources EXCLUDE REGEX "/backend/${backend}/no_${backend}\\.cc$")
  endif()
endforeach()
