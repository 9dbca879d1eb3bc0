#include "core/engine/run/execution.h"

#include <numeric>
#include <string>

#include "core/base/assert.h"

namespace ciranda {
namespace {

// Returns the bytes of one row: all dimensions but the first.
std::uint64_t row_bytes(const TensorSpec& tensor) {
  std::uint64_t bytes = dtype_bytes(tensor.dtype);
  for (std::size_t d = 1; d < tensor.shape.size(); ++d) {
    bytes *= static_cast<std::uint64_t>(tensor.shape[d]);
  }
  return bytes;
}

// Returns running sums of rows * bytes_per_row, starting with 0. Returns kLimit if they exceed 63
// bits: the rows come from other ranks.
Result<std::vector<std::uint64_t>> byte_offsets(const std::vector<std::int64_t>& rows,
                                                std::uint64_t bytes_per_row) {
  std::vector<std::uint64_t> offsets = {0};
  for (const std::int64_t count : rows) {
    std::uint64_t bytes = 0;
    std::uint64_t end = 0;
    if (__builtin_mul_overflow(static_cast<std::uint64_t>(count), bytes_per_row, &bytes) ||
        __builtin_add_overflow(offsets.back(), bytes, &end) || end > INT64_MAX) {
      return Error{.code = ErrorCode::kLimit, .text = "the ranks' rows add up to over 2^63 bytes"};
    }
    offsets.push_back(end);
  }
  return offsets;
}

// Only for kinds with rows: every rank contributes to those.
const std::vector<std::int64_t>& rows_of(const Response& response, Rank rank) {
  return response.contributions[static_cast<std::size_t>(rank)].contribution.rows;
}

Status allocate_output(Submission& submission, std::size_t index, std::int64_t rows,
                       Buffer& buffer) {
  auto output = submission.allocate(index, rows);
  if (!output) return output.error();
  buffer.out = output.value();
  return {};
}

Status add_allgather(const Response& response, std::size_t index, Rank self, Submission& submission,
                     Execution& execution) {
  std::vector<std::int64_t> rows;
  std::vector<std::optional<Digest>> digests;
  rows.reserve(response.contributions.size());
  for (Rank rank = 0; rank < static_cast<Rank>(response.contributions.size()); ++rank) {
    CIRANDA_ASSERT(index < rows_of(response, rank).size());  // else the ranks have not agreed
    rows.push_back(rows_of(response, rank)[index]);
    digests.push_back(response.contributions[static_cast<std::size_t>(rank)].contribution.digest);
  }
  auto offsets = byte_offsets(rows, row_bytes(response.spec->tensors[index]));
  if (!offsets) return offsets.error();
  const auto own = static_cast<std::size_t>(self);
  CIRANDA_ASSERT(own < response.contributions.size());  // every member contributes
  Buffer buffer{.in = submission.inputs[index],
                .in_bytes = offsets.value()[own + 1] - offsets.value()[own],
                .out_bytes = offsets.value().back()};
  CIRANDA_TRY(allocate_output(submission, index,
                              std::accumulate(rows.begin(), rows.end(), std::int64_t{0}), buffer));
  submission.handle->set_rows(std::move(rows));
  submission.handle->set_digests(std::move(digests));
  execution.offsets = std::move(offsets).value();
  execution.buffers.push_back(buffer);
  return {};
}

Status add_alltoall(const Response& response, Rank self, Submission& submission,
                    Execution& execution) {
  const std::uint64_t bytes_per_row = row_bytes(response.spec->tensors[0]);
  std::vector<std::int64_t> received;
  std::uint64_t sent_bytes = 0;
  for (Rank sender = 0; sender < static_cast<Rank>(response.contributions.size()); ++sender) {
    CIRANDA_ASSERT(rows_of(response, sender).size() == response.contributions.size());  // agreed
    auto offsets = byte_offsets(rows_of(response, sender), bytes_per_row);
    if (!offsets) return offsets.error();
    if (sender == self) sent_bytes = offsets.value().back();
    execution.offsets.insert(execution.offsets.end(), offsets.value().begin(),
                             offsets.value().end());
    received.push_back(rows_of(response, sender)[static_cast<std::size_t>(self)]);
  }
  auto totals = byte_offsets(received, bytes_per_row);
  if (!totals) return totals.error();
  Buffer buffer{
      .in = submission.inputs[0], .in_bytes = sent_bytes, .out_bytes = totals.value().back()};
  CIRANDA_TRY(allocate_output(
      submission, 0, std::accumulate(received.begin(), received.end(), std::int64_t{0}), buffer));
  submission.handle->set_rows(std::move(received));
  execution.buffers.push_back(buffer);
  return {};
}

Status add_reducescatter(const Response& response, std::size_t index, Rank self, int ranks,
                         Submission& submission, Execution& execution) {
  const TensorSpec& tensor = response.spec->tensors[index];
  std::vector<std::int64_t> rows;
  rows.reserve(static_cast<std::size_t>(ranks));
  for (int rank = 0; rank < ranks; ++rank) {
    rows.push_back(tensor.shape[0] / ranks + (rank < tensor.shape[0] % ranks ? 1 : 0));
  }
  auto offsets = byte_offsets(rows, row_bytes(tensor));
  if (!offsets) return offsets.error();
  const auto own = static_cast<std::size_t>(self);
  CIRANDA_ASSERT(own + 1 < offsets.value().size());
  Buffer buffer{.in = submission.inputs[index],
                .in_bytes = offsets.value().back(),
                .out_bytes = offsets.value()[own + 1] - offsets.value()[own]};
  CIRANDA_TRY(allocate_output(submission, index, rows[own], buffer));
  execution.offsets = std::move(offsets).value();
  execution.buffers.push_back(buffer);
  return {};
}

// A reduce runs as a reducescatter that gives the root the whole tensor.
Status add_reduce(const Response& response, std::size_t index, Rank self, int ranks,
                  Submission& submission, Execution& execution) {
  const std::uint64_t bytes = tensor_bytes(response.spec->tensors[index]);
  const Rank root = execution.op.root;
  CIRANDA_ASSERT(root >= 0 && root < ranks);  // agreed: the root is a member
  for (Rank rank = 0; rank <= ranks; ++rank) {
    execution.offsets.push_back(rank <= root ? 0 : bytes);
  }
  execution.buffers.push_back({.in = submission.inputs[index],
                               .out = submission.outputs[index],
                               .in_bytes = bytes,
                               .out_bytes = self == root ? bytes : 0});
  return {};
}

}  // namespace

Status add_member_memory(const Response& response, std::size_t index, Rank self, int ranks,
                         Submission& submission, Execution& execution) {
  CIRANDA_ASSERT(self >= 0 && self < ranks && index < response.spec->tensors.size());
  switch (runs_as(response.spec->kind)) {
    case OpKind::kAllgather:
      return add_allgather(response, index, self, submission, execution);
    case OpKind::kAlltoall:
      return add_alltoall(response, self, submission, execution);
    case OpKind::kReducescatter:
      if (response.spec->kind == OpKind::kReduce) {
        return add_reduce(response, index, self, ranks, submission, execution);
      }
      return add_reducescatter(response, index, self, ranks, submission, execution);
    default:
      break;
  }
  const std::uint64_t bytes = tensor_bytes(response.spec->tensors[index]);
  execution.buffers.push_back({.in = submission.inputs[index],
                               .out = submission.outputs[index],
                               .in_bytes = bytes,
                               .out_bytes = bytes});
  return {};
}

std::uint64_t payload_bytes(const Submission& submission) {
  if (submission.spec->in_arena) return submission.spec->arena_bytes;
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; i < submission.spec->tensors.size(); ++i) {
    std::uint64_t tensor = row_bytes(submission.spec->tensors[i]);
    if (!submission.spec->tensors[i].shape.empty()) {
      const std::int64_t rows = submission.spec->tensors[i].shape[0];
      tensor *= static_cast<std::uint64_t>(
          rows != kAnyRows ? rows
          : submission.spec->kind == OpKind::kAllgather
              ? submission.rows[i]
              : std::accumulate(submission.rows.begin(), submission.rows.end(), std::int64_t{0}));
    }
    bytes += tensor;
  }
  return bytes;
}

}  // namespace ciranda
