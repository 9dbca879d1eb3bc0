#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "core/base/result.h"
#include "core/ps/decide/messages.h"
#include "core/ps/decide/shard.h"

namespace ciranda::ps {

// Gives access to the data that came with a message.
struct Attached {
  std::function<Result<std::vector<std::byte>>(std::uint64_t bytes)> model_blob;  // a copy
  // The memory stays mapped while the connection is open. Memory for Fetched is mapped until the
  // answer, and only written to.
  std::function<Result<std::byte*>(std::uint64_t bytes)> memory;
};

// Answers a request that concerns only what the shard has: its state, its steps and its rows. Only
// for a worker that has the parameters. Returns an error if the message is invalid, or is another
// request.
Result<Message> answer_from(Shard& shard, Worker worker, const Message& message,
                            const Attached& attached);

// Returns the figures of a shard, without those of its workers' connections.
Stats stats_of(const Shard& shard);

}  // namespace ciranda::ps
