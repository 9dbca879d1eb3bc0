// A library with nothing of NCCL but a version, to be refused; built once for each version that
// nccl_api_test.cc wants.
#include <nccl.h>

[[gnu::visibility("default")]] ncclResult_t ncclGetVersion(int* version) {
  *version = CIRANDA_FAKE_NCCL_VERSION;
  return ncclSuccess;
}
