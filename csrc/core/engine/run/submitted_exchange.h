#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "core/backend/registry.h"
#include "core/engine/submission_queue.h"

namespace ciranda {

// An Exchange that runs as an allgather like a user's.
class SubmittedExchange final : public Exchange {
 public:
  explicit SubmittedExchange(std::vector<std::byte> mine);
  // Call once. Does not block.
  void submit(const std::string& name, GroupId group, SubmissionQueue& queue);

  bool done() const override;
  Result<std::vector<std::vector<std::byte>>> result() const override;

 private:
  // Shared with the submission, which may outlive this object.
  struct Memory {
    std::vector<std::byte> mine, all;
  };
  std::shared_ptr<Memory> memory_;
  Handle handle_;
  Status refused_;
};

}  // namespace ciranda
