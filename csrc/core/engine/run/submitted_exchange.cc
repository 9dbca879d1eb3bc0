#include "core/engine/run/submitted_exchange.h"

#include <memory>
#include <utility>

#include "core/base/assert.h"

namespace ciranda {

SubmittedExchange::SubmittedExchange(std::vector<std::byte> mine)
    : memory_(std::make_shared<Memory>(Memory{.mine = std::move(mine), .all = {}})),
      handle_(std::make_shared<Operation>()) {}

void SubmittedExchange::submit(const std::string& name, GroupId group, SubmissionQueue& queue) {
  Submission submission;
  submission.spec = std::make_shared<const RequestSpec>(
      RequestSpec{.name = name,
                  .kind = OpKind::kAllgather,
                  .group = group,
                  .tensors = {{.dtype = DType::kUInt8, .shape = {kAnyRows}}}});
  submission.rows = {static_cast<std::int64_t>(memory_->mine.size())};
  submission.inputs = {memory_->mine.data()};
  submission.allocate = [memory = memory_](std::size_t, std::int64_t rows) -> Result<std::byte*> {
    memory->all.resize(static_cast<std::size_t>(rows));
    return memory->all.data();
  };
  submission.handle = handle_;
  refused_ = queue.push(std::move(submission));
}

bool SubmittedExchange::done() const {
  return !refused_.ok() || handle_->done();
}

Result<std::vector<std::vector<std::byte>>> SubmittedExchange::result() const {
  CIRANDA_ASSERT(done());
  CIRANDA_TRY(refused_);
  CIRANDA_TRY(handle_->status());
  std::vector<std::vector<std::byte>> parts;
  auto from = memory_->all.begin();
  for (const std::int64_t rows : handle_->rows()) {
    parts.emplace_back(from, from + rows);
    from += rows;
  }
  CIRANDA_ASSERT(from == memory_->all.end());  // the engine asked for as many rows as it tells
  return parts;
}

}  // namespace ciranda
