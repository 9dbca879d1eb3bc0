#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/backend/backend.h"

namespace ciranda {

// An allgather of some bytes of each rank, run by the native backend. A library that makes its own
// connections learns from it where the other ranks are.
class Exchange {
 public:
  virtual ~Exchange() = default;
  virtual bool done() const = 0;
  // Returns the bytes of each rank, by rank. Only once done.
  virtual Result<std::vector<std::vector<std::byte>>> result() const = 0;
};

// What a backend knows about its group and this rank. Ranks are numbered within the group.
struct BackendContext {
  Rank rank = 0;
  int size = 1;
  int local_rank = 0;             // index of this rank in `locals`
  std::vector<Rank> locals = {};  // the host's local ranks of the members on this host, ascending
  // Numeric address at which other ranks reach this one; loopback on one host.
  std::string address;
  // Starts an Exchange under a name that no other Exchange in progress has. Every rank must start
  // it, in any order. Only from start() and advance(), which are called again when it is done.
  std::function<std::unique_ptr<Exchange>(std::string name, std::vector<std::byte> mine)> exchange;
  // Makes the engine call advance() soon: in a thread that waits or, with overlap, in the
  // background thread. Thread-safe, does not block, and valid until the backend is destroyed.
  std::function<void()> wake;
};

// Availability of a backend in this build and on this machine.
struct BackendFacts {
  BackendId id = BackendId::kNative;
  bool built = true;       // into this library
  bool available = false;  // on this machine
  std::string version;     // of the library; empty if unknown
  std::string path;        // of the library that is, or would be, used; empty if there is none
  std::string why_not;     // one sentence that says what to do; empty if available
};

// A row for each backend that needs a library. The functions live in the backend's folder; CMake
// chooses X_backend.cc or no_X.cc.
struct BackendEntry {
  BackendId id;
  std::unique_ptr<Backend> (*make)(BackendContext context);  // only if available; does not block
  BackendFacts (*facts)();                                   // thread-safe; loads the library
};

// Returns a row for each of kBackends but native. CMake makes the table (cmake/Backends.cmake).
const std::vector<BackendEntry>& backend_entries();

// Returns every backend's facts, in the order of BackendId, native first.
std::vector<BackendFacts> backend_facts();

}  // namespace ciranda
