#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/base/result.h"
#include "core/ps/decide/shard.h"

namespace ciranda::ps {

inline constexpr std::size_t kWorksMax = std::size_t{1} << 24;  // of a job

// What ServerProtocol::save() has written.
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
  std::optional<Member> coordinator;  // none: the job has none
  std::vector<std::byte> tasks;       // see Ledger::save()
  std::vector<VectorsWorked> works;
  std::uint64_t lost = 0;
  Model model;
  std::vector<std::byte> shard;  // see Shard::save()
};

// Of anything. kMismatch: of another version of ciranda; kMalformed names field and offset.
Result<SavedProtocol> decode_saved_protocol(std::span<const std::byte> saved);

// The shard that it was, but for its arrays(). kSystem: there is no memory for it.
Result<std::unique_ptr<Shard>> make_shard(const SavedProtocol& saved);

}  // namespace ciranda::ps
