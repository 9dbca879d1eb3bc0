#include "core/backend/gloo/gloo_group.h"

#include <dlfcn.h>
#include <gloo/allgatherv.h>
#include <gloo/allreduce.h>
#include <gloo/alltoallv.h>
#include <gloo/broadcast.h>
#include <gloo/config.h>
#include <gloo/context.h>
#include <gloo/transport/address.h>
#include <gloo/transport/context.h>
#include <gloo/transport/device.h>
#include <gloo/transport/tcp/device.h>

#include <atomic>
#include <chrono>
#include <exception>
#include <set>
#include <utility>

#include "core/base/assert.h"
#include "core/base/mutex.h"
#include "core/kernels/reduce.h"

// CMake renames namespace gloo in this file, see gloo.cmake.
namespace ciranda {
namespace {

// The engine decides how long to wait for a peer, and cancels.
constexpr std::chrono::hours kForEver{24 * 365};

using Algorithm = gloo::AllreduceOptions::Algorithm;

// Bytes that the ring sends in one piece while the piece before is reduced. Each piece wakes two
// threads.
constexpr std::size_t kSegmentBytes = std::size_t{8} << 20;
// Up to this size two ranks use a cube. They send each other a half and its sum: two messages each
// as a cube, four as a ring.
constexpr std::size_t kCubeBytesMax = std::size_t{16} << 20;

using Waiting = gloo::transport::UnboundBuffer;

struct Cancelled : std::exception {
  const char* what() const noexcept override { return "Gloo was cancelled"; }
};

// Ends blocking calls. Gloo's collectives wait for peers only through buffers, and the room knows
// all existing buffers.
class WaitingRoom {
 public:
  void enter(Waiting& buffer) EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    const bool is_new = buffers_.insert(&buffer).second;
    CIRANDA_ASSERT(is_new);
  }
  void leave(Waiting& buffer) EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    const std::size_t left = buffers_.erase(&buffer);
    CIRANDA_ASSERT(left == 1);  // by enter()
  }
  void close() EXCLUDES(mutex_) {
    closed_.store(true);
    const MutexLock lock(mutex_);
    for (Waiting* buffer : buffers_) {
      buffer->abortWaitRecv();
      buffer->abortWaitSend();
    }
  }
  bool closed() const { return closed_.load(); }

 private:
  std::atomic<bool> closed_{false};
  Mutex mutex_;
  std::set<Waiting*> buffers_ GUARDED_BY(mutex_);
};

// Wraps a buffer of Gloo's so that the room can end its waits.
class Buffer final : public gloo::transport::UnboundBuffer {
 public:
  Buffer(std::unique_ptr<UnboundBuffer> own, WaitingRoom& room)
      : UnboundBuffer(own->ptr, own->size), own_(std::move(own)), room_(room) {
    room_.enter(*own_);
  }
  ~Buffer() override { room_.leave(*own_); }

  using UnboundBuffer::waitRecv;
  using UnboundBuffer::waitSend;
  bool waitRecv(int* rank, std::chrono::milliseconds) override {
    if (room_.closed() || !own_->waitRecv(rank, kForEver)) throw Cancelled();
    return true;
  }
  bool waitSend(int* rank, std::chrono::milliseconds) override {
    if (room_.closed() || !own_->waitSend(rank, kForEver)) throw Cancelled();
    return true;
  }
  void abortWaitRecv() override { own_->abortWaitRecv(); }
  void abortWaitSend() override { own_->abortWaitSend(); }
  void send(int to, std::uint64_t slot, std::size_t offset, std::size_t bytes) override {
    own_->send(to, slot, offset, bytes);
  }
  void recv(int from, std::uint64_t slot, std::size_t offset, std::size_t bytes) override {
    own_->recv(from, slot, offset, bytes);
  }
  void recv(std::vector<int> from, std::uint64_t slot, std::size_t offset,
            std::size_t bytes) override {
    own_->recv(std::move(from), slot, offset, bytes);
  }

 private:
  const std::unique_ptr<UnboundBuffer> own_;
  WaitingRoom& room_;
};

// Wraps Gloo's own pairs and makes our buffers for them.
class Pairs final : public gloo::transport::Context {
 public:
  Pairs(std::shared_ptr<Context> own, WaitingRoom& room)
      : Context(own->rank, own->size), own_(std::move(own)), room_(room) {
    setTimeout(kForEver);
    own_->setTimeout(kForEver);
  }
  std::unique_ptr<gloo::transport::Pair>& getPair(int peer) override { return own_->getPair(peer); }
  std::unique_ptr<gloo::transport::Pair>& createPair(int peer) override {
    return own_->createPair(peer);
  }
  std::unique_ptr<Waiting> createUnboundBuffer(void* data, std::size_t bytes) override {
    return std::make_unique<Buffer>(own_->createUnboundBuffer(data, bytes), room_);
  }

 private:
  const std::shared_ptr<Context> own_;
  WaitingRoom& room_;
};

class Ranks final : public gloo::Context {
 public:
  Ranks(std::shared_ptr<gloo::transport::Device> device, std::shared_ptr<Pairs> pairs)
      : Context(pairs->rank, pairs->size) {
    device_ = std::move(device);
    transportContext_ = std::move(pairs);
    timeout_ = kForEver;
  }
};

// Bytes of a peer's address in addresses(); more than Gloo needs.
constexpr std::size_t kAddressBytes = gloo::transport::Address::kMaxByteSize;

char* chars(std::byte* bytes) {
  return reinterpret_cast<char*>(bytes);
}

// Calls `fn` with a value of the dtype's size: Gloo takes the size of an element from a type.
template <typename Fn>
void with_type_of(DType dtype, Fn fn) {
  switch (dtype_bytes(dtype)) {
    case 1:
      return fn(std::uint8_t{});
    case 2:
      return fn(std::uint16_t{});
    case 4:
      return fn(std::uint32_t{});
    case 8:
      return fn(std::uint64_t{});
  }
  CIRANDA_UNREACHABLE();
}

std::byte* writable(const std::byte* in) {
  return const_cast<std::byte*>(in);  // Gloo does not write to what it only sends
}

// Returns the text of "[file:line] text", without the place in Gloo.
std::string without_place(std::string text) {
  const std::size_t end = text.front() == '[' ? text.find("] ") : std::string::npos;
  return end == std::string::npos ? text : text.substr(end + 2);
}

}  // namespace

struct GlooGroup::Mesh {
  Mesh(Rank rank, int size, const std::string& address)
      : device(gloo::transport::tcp::CreateDevice(address.c_str())),
        pairs(std::make_shared<Pairs>(device->createContext(rank, size), room)),
        ranks(std::make_shared<Ranks>(device, pairs)) {
    CIRANDA_ASSERT(rank >= 0 && rank < size);
    for (int peer = 0; peer < size; ++peer) {
      if (peer != rank) pairs->createPair(peer);
    }
  }

  void connect_pair(int peer, const std::vector<char>& address);

  // Runs `call` and turns an exception into an Error.
  template <typename Fn>
  Status run(Fn call) {
    try {
      call();
      return {};
    } catch (const Cancelled& cancelled) {
      return Error{.code = ErrorCode::kRankLost, .text = cancelled.what()};
    } catch (const std::exception& exception) {
      return blame(without_place(exception.what()));
    }
  }

  Error blame(const std::string& why) {
    const Rank peer = broken_peer();
    const std::string whom = peer == kNoRank ? "failed" : "lost rank " + std::to_string(peer);
    return {.code = ErrorCode::kRankLost, .text = "Gloo " + whom + ": " + why, .rank = peer};
  }

  // Returns the peer that was lost, or kNoRank. Gloo's error names no rank, but a broken pair
  // refuses all calls.
  Rank broken_peer() {
    constexpr std::uint64_t kSlot = 0;  // used by no collective
    for (Rank peer = 0; peer < ranks->size; ++peer) {
      if (peer == ranks->rank) continue;
      try {
        ranks->createUnboundBuffer(nullptr, 0)->recv(peer, kSlot, 0, 0);
      } catch (const std::exception&) {
        return peer;
      }
    }
    return kNoRank;
  }

  std::uint32_t next_tag = 0;
  WaitingRoom room;
  const std::shared_ptr<gloo::transport::Device> device;
  const std::shared_ptr<Pairs> pairs;
  const std::shared_ptr<gloo::Context> ranks;

  Mutex connecting_mutex;
  gloo::transport::Pair* connecting GUARDED_BY(connecting_mutex) = nullptr;
};

void GlooGroup::Mesh::connect_pair(int peer, const std::vector<char>& address) {
  gloo::transport::Pair& pair = *pairs->getPair(peer);
  {
    const MutexLock lock(connecting_mutex);
    if (room.closed()) throw Cancelled();
    CIRANDA_ASSERT(connecting == nullptr);  // one thread connects, one pair at a time
    connecting = &pair;
  }
  std::exception_ptr failure;
  try {
    pair.connect(address);
  } catch (...) {
    failure = std::current_exception();
  }
  {
    const MutexLock lock(connecting_mutex);
    connecting = nullptr;
  }
  if (room.closed()) throw Cancelled();
  if (failure) std::rethrow_exception(failure);
}

GlooGroup::GlooGroup(std::unique_ptr<Mesh> mesh) : mesh_(std::move(mesh)) {}
GlooGroup::~GlooGroup() = default;

Result<std::unique_ptr<GlooGroup>> GlooGroup::listen(Rank rank, int size,
                                                     const std::string& address) {
  try {
    return std::unique_ptr<GlooGroup>(new GlooGroup(std::make_unique<Mesh>(rank, size, address)));
  } catch (const std::exception& exception) {
    return Error{
        .code = ErrorCode::kSystem,
        .text = "Gloo cannot listen on " + address + ": " + without_place(exception.what())};
  }
}

std::vector<std::byte> GlooGroup::addresses() const {
  std::vector<std::byte> all;
  for (int peer = 0; peer < mesh_->ranks->size; ++peer) {
    std::vector<char> bytes(kAddressBytes);
    if (peer != mesh_->ranks->rank) bytes = mesh_->pairs->getPair(peer)->address().bytes();
    bytes.resize(kAddressBytes);
    const auto* begin = reinterpret_cast<const std::byte*>(bytes.data());
    all.insert(all.end(), begin, begin + bytes.size());
  }
  return all;
}

Status GlooGroup::connect(std::span<const std::vector<std::byte>> addresses) {
  Mesh& mesh = *mesh_;
  const auto size = static_cast<std::size_t>(mesh.ranks->size);
  const auto self = static_cast<std::size_t>(mesh.ranks->rank);
  CIRANDA_ASSERT(addresses.size() == size);
  for (std::size_t peer = 0; peer < size; ++peer) {
    if (peer == self) continue;
    if (addresses[peer].size() != size * kAddressBytes) {
      return Error{.code = ErrorCode::kMalformed,
                   .text = "rank " + std::to_string(peer) +
                           " sent no Gloo addresses; build ciranda with the same Gloo on all hosts",
                   .rank = static_cast<int>(peer)};
    }
    CIRANDA_TRY(mesh.run([&] {
      const auto* to_self =
          reinterpret_cast<const char*>(addresses[peer].data()) + self * kAddressBytes;
      std::vector<char> bytes(to_self, to_self + kAddressBytes);
      bytes.resize(mesh.pairs->getPair(static_cast<int>(peer))->address().bytes().size());
      mesh.connect_pair(static_cast<int>(peer), bytes);
    }));
  }
  return {};
}

Status GlooGroup::allreduce(DType dtype, ReduceOp op, const std::byte* in, std::byte* out,
                            std::uint64_t bytes) {
  CIRANDA_ASSERT(bytes % dtype_bytes(dtype) == 0 && op != ReduceOp::kAdasum);
  return mesh_->run([&] {
    gloo::AllreduceOptions options(mesh_->ranks);
    Algorithm algorithm = Algorithm::RING;
    with_type_of(dtype, [&]<typename T>(T) {
      const std::size_t count = bytes / sizeof(T);
      const bool halves = mesh_->ranks->size == 2 && count > 1;
      if (halves && bytes <= kCubeBytesMax) algorithm = Algorithm::BCUBE;
      if (in != out) options.setInput(reinterpret_cast<T*>(writable(in)), count);
      options.setOutput(reinterpret_cast<T*>(out), count);
    });
    options.setAlgorithm(algorithm);
    options.setMaxSegmentSize(kSegmentBytes);
    options.setTag(mesh_->next_tag++);
    options.setReduceFunction([=](void* to, const void* one, const void* other, std::size_t count) {
      const std::byte* inputs[] = {static_cast<const std::byte*>(one),
                                   static_cast<const std::byte*>(other)};
      std::byte* const output = static_cast<std::byte*>(to);
      kernels::reduce({.dtype = dtype, .op = op}, inputs, {&output, 1}, count);
    });
    gloo::allreduce(options);
  });
}

Status GlooGroup::broadcast(Rank root, const std::byte* in, std::byte* out, std::uint64_t bytes) {
  CIRANDA_ASSERT(root >= 0 && root < mesh_->ranks->size);
  return mesh_->run([&] {
    gloo::BroadcastOptions options(mesh_->ranks);
    if (mesh_->ranks->rank == root && in != out) {
      options.setInput(chars(writable(in)), bytes);
    }
    options.setOutput(chars(out), bytes);
    options.setRoot(root);
    options.setTag(mesh_->next_tag++);
    gloo::broadcast(options);
  });
}

Status GlooGroup::allgather(const std::byte* in, std::byte* out,
                            const std::vector<std::uint64_t>& counts) {
  CIRANDA_ASSERT(counts.size() == static_cast<std::size_t>(mesh_->ranks->size));
  return mesh_->run([&] {
    gloo::AllgathervOptions options(mesh_->ranks);
    options.setInput(chars(writable(in)), counts[static_cast<std::size_t>(mesh_->ranks->rank)]);
    options.setOutput(chars(out), std::vector<std::size_t>(counts.begin(), counts.end()));
    options.setTag(mesh_->next_tag++);
    gloo::allgatherv(options);
  });
}

Status GlooGroup::alltoall(const std::byte* in, const std::vector<std::uint64_t>& in_counts,
                           std::byte* out, const std::vector<std::uint64_t>& out_counts) {
  const auto size = static_cast<std::size_t>(mesh_->ranks->size);
  CIRANDA_ASSERT(in_counts.size() == size && out_counts.size() == size);
  return mesh_->run([&] {
    gloo::AlltoallvOptions options(mesh_->ranks);
    options.setInput(chars(writable(in)),
                     std::vector<std::int64_t>(in_counts.begin(), in_counts.end()));
    options.setOutput(chars(out), std::vector<std::int64_t>(out_counts.begin(), out_counts.end()));
    options.setTag(mesh_->next_tag++);
    gloo::alltoallv(options);
  });
}

void GlooGroup::cancel() {
  mesh_->room.close();
  const MutexLock lock(mesh_->connecting_mutex);
  if (mesh_->connecting != nullptr) mesh_->connecting->close();
}

std::string GlooGroup::version() {
  return std::to_string(GLOO_VERSION_MAJOR) + "." + std::to_string(GLOO_VERSION_MINOR) + "." +
         std::to_string(GLOO_VERSION_PATCH);
}

std::string GlooGroup::path() {
  Dl_info library = {};
  const auto function = reinterpret_cast<const void*>(&gloo::transport::tcp::CreateDevice);
  if (::dladdr(function, &library) == 0 || library.dli_fname == nullptr) return {};
  return library.dli_fname;
}

}  // namespace ciranda
