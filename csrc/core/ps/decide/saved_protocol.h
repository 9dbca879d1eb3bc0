#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/base/result.h"
#include "core/ps/decide/server_protocol_options.h"
#include "core/ps/decide/shard.h"

namespace ciranda::ps {

// The state of a ServerProtocol, except the contents of its arrays().
struct SavedProtocol {
  std::string job_id;
  int server = 0;
  int servers = 1;
  struct Member {
    Life life = 0;
    std::uint64_t process = 0;
    bool left = false;
    std::uint64_t pushes = 0;
    std::uint64_t held_ns = 0;
  };
  std::vector<Member> members;
  std::optional<Member> coordinator;  // nullopt: the job has none
  std::vector<std::byte> tasks;       // see Ledger::save()
  std::vector<VectorsWorked> works;
  std::uint64_t lost = 0;
  Model model;
  std::vector<std::byte> shard;  // see Shard::save()
};

// Appends the bytes of `saved` to `out`.
void encode(const SavedProtocol& saved, std::vector<std::byte>& out);
// Accepts arbitrary bytes. kMismatch: another version of ciranda has written them. kMalformed names
// the field and its offset.
Result<SavedProtocol> decode_saved_protocol(std::span<const std::byte> saved);

// Returns kMismatch unless a server with these options can continue from `saved`.
Status check(const SavedProtocol& saved, const ServerProtocolOptions& options);
// Makes the shard that was saved, except the contents of its arrays(). kSystem: not enough memory.
Result<std::unique_ptr<Shard>> make_shard(const SavedProtocol& saved);

}  // namespace ciranda::ps
