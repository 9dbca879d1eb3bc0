#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/negotiate/negotiator.h"
#include "core/wire/messages.h"

namespace ciranda {

inline RequestSpec allreduce(std::string name, Shape shape = {3, 4}) {
  return {.name = std::move(name), .tensors = {{.shape = std::move(shape)}}};
}

inline std::shared_ptr<const Group> world_of(int size) {
  return GroupTable(size, {}).world();
}

// A negotiator and the frames of its ranks, one Request a frame. Tokens count up from 1.
class Room {
 public:
  explicit Room(int size, std::size_t cache_entries = 16)
      : negotiator({.size = size, .cache_entries = cache_entries}) {}

  // What the Request decides.
  std::vector<Response> submit(Rank rank, const RequestSpec& spec, std::uint32_t occurrence = 0,
                               std::vector<std::int64_t> rows = {}) {
    return handle(rank,
                  {.requests = {{.spec = spec,
                                 .occurrence = occurrence,
                                 .contribution = {.token = ++token, .rows = std::move(rows)}}}});
  }
  std::vector<Response> submit_known(Rank rank, CacheId id) {
    return handle(rank, {.requests = {{.cache_id = id, .contribution = {.token = ++token}}}});
  }
  std::vector<Response> join(Rank rank) { return submit(rank, {.kind = OpKind::kJoin}); }
  // All ranks submit it; the group that is then there.
  std::shared_ptr<const Group> add_group(std::vector<Rank> members) {
    const int size = negotiator.groups().world()->size();
    return submit_all(size, {.kind = OpKind::kAddGroup, .members = std::move(members)})
        .at(0)
        .changed;
  }
  std::vector<Response> leave(Rank rank) { return handle(rank, {.kind = FrameKind::kLeave}); }

  // All ranks submit; the responses of the last.
  std::vector<Response> submit_all(int size, const RequestSpec& spec) {
    for (Rank rank = 0; rank < size - 1; ++rank) submit(rank, spec);
    return submit(size - 1, spec);
  }

  std::vector<Response> handle(Rank rank, const Frame& frame) {
    std::vector<std::byte> bytes;
    encode(frame, bytes);
    std::vector<Response> responses;
    last = negotiator.handle_frame(rank, bytes, tick, responses);
    return responses;
  }

  Negotiator negotiator;
  Status last;
  std::uint64_t tick = 0;
  std::uint32_t token = 0;
};

}  // namespace ciranda
