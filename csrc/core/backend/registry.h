#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/backend/backend.h"

namespace ciranda {

// An allgather of some bytes of each rank, which the native backend runs: how a library that makes
// its own connections learns where the other ranks are.
class Exchange {
 public:
  virtual ~Exchange() = default;
  virtual bool done() const = 0;
  // By rank. Only once done.
  virtual Result<std::vector<std::vector<std::byte>>> result() const = 0;
};

// What a backend knows of its rank.
struct BackendContext {
  Rank rank = 0;
  int size = 1;
  int local_rank = 0;
  int local_size = 1;
  // The address at which other ranks reach this one, numeric; loopback on one host.
  std::string address;
  // Starts an Exchange under a name that no other one in progress has; every rank has to, in any
  // order. Only from start() and advance(), which are called again when it is done.
  std::function<std::unique_ptr<Exchange>(std::string name, std::vector<std::byte> mine)> exchange;
  // Has the engine call advance() soon: a thread that waits, or with overlap the background one.
  // Thread-safe, does not block, and valid until the backend is destroyed.
  std::function<void()> wake;
};

// What of a backend this build and this machine have.
struct BackendFacts {
  BackendId id = BackendId::kNative;
  bool built = true;       // into this library
  bool available = false;  // on this machine
  std::string version;     // of the library; empty if unknown
  std::string path;        // of the library that is, or would be, used; empty if there is none
  std::string why_not;     // one sentence that says what to do; empty if available
};

// One row a backend that needs a library. The functions live in the backend's folder; CMake chooses
// X_backend.cc or no_X.cc.
struct BackendEntry {
  BackendId id;
  std::unique_ptr<Backend> (*make)(BackendContext context);  // only if available; does not block
  BackendFacts (*facts)();                                   // thread-safe; loads the library
};

// All of them, one for each of kBackends but native. CMake makes the table (cmake/Backends.cmake).
const std::vector<BackendEntry>& backend_entries();

// In the order of BackendId, native first.
std::vector<BackendFacts> backend_facts();

}  // namespace ciranda
