#include "core/backend/ring/ring_operation.h"

#include <algorithm>
#include <array>
#include <utility>

#include "core/base/assert.h"
#include "core/kernels/reduce.h"

namespace ciranda {
namespace {

void copy_in(const Buffers& buffers, std::byte* to) {
  for (const Buffer& buffer : buffers) {
    kernels::copy(to, buffer.in, buffer.in_bytes);
    to += buffer.in_bytes;
  }
}

void copy_out(const std::byte* from, const Buffers& buffers) {
  for (const Buffer& buffer : buffers) {
    kernels::copy(buffer.out, from, buffer.out_bytes);
    from += buffer.out_bytes;
  }
}

}  // namespace

RingMembers::RingMembers(const Group& group, Rank rank, const std::vector<Rank>& local_ranks)
    : ranks(group.ranks), flat(flat_hosts(group.size())), self(group.index_of(rank)) {
  for (const std::vector<Rank>& host : group.hosts) {
    if (host.empty()) continue;
    std::vector<Rank>& indices = hosts.emplace_back();
    for (const Rank member : host) indices.push_back(group.index_of(member));
    if (std::find(indices.begin(), indices.end(), self) != indices.end()) here = indices;
  }
  for (const int index : here) {
    const auto local = std::find(local_ranks.begin(), local_ranks.end(),
                                 group.ranks[static_cast<std::size_t>(index)]);
    locals.push_back(static_cast<int>(local - local_ranks.begin()));
  }
  place = static_cast<int>(std::find(here.begin(), here.end(), self) - here.begin());
  CIRANDA_ASSERT(self >= 0 && static_cast<std::size_t>(place) < here.size());  // a member
  CIRANDA_ASSERT(here.size() <= static_cast<std::size_t>(kLocalRanksMax));
}

RingOperation::RingOperation(Execution execution, HierarchicalPlan plan,
                             std::shared_ptr<const RingMembers> members, std::uint64_t number,
                             bool staged)
    : execution_(std::move(execution)),
      members_(std::move(members)),
      plan_(std::move(plan)),
      number_(number),
      staged_(staged) {
  for (int channel = 0; channel < schedule().channels(); ++channel) {
    if (!plan_.drives(channel)) continue;
    RingChannel& own = channels_.emplace_back();
    own.index = channel;
    own.scratch.resize(schedule().scratch_bytes());
    own.arrived.resize(schedule().layout().segment_bytes);
    if (op().wire_dtype) own.rounded.resize(own.arrived.size());
  }
}

void RingOperation::take_data() {
  if (op().in_arena) {
    copies_ = execution_.arena;
    CIRANDA_ASSERT(copies_.size() == members_->here.size());  // else the data has left the arena
    output_ = copies_[static_cast<std::size_t>(members_->place)];
    input_ = output_;
  } else if (!staged_) {
    gather();
  }
}

void RingOperation::copy_to_stage(std::byte* stage) const {
  copy_in(execution_.buffers, stage);
}

// Puts the members side by side, or makes a copy that may be scaled.
void RingOperation::gather() {
  const Buffers& buffers = execution_.buffers;
  CIRANDA_ASSERT(!buffers.empty());
  input_ = buffers.front().in;
  output_ = buffers.front().out;
  if (buffers.size() == 1 && execution_.op.prescale == 1.0) return;
  gathered_.resize(bytes_of(buffers));
  copy_in(buffers, gathered_.data());
  const DType dtype = execution_.op.dtype;
  if (execution_.op.prescale != 1.0) {
    kernels::scale(dtype, gathered_.data(), gathered_.size() / dtype_bytes(dtype),
                   execution_.op.prescale);
  }
  input_ = gathered_.data();
  if (buffers.size() > 1) output_ = gathered_.data();
}

void RingOperation::take_stages(std::vector<std::byte*> stages, int root) {
  CIRANDA_ASSERT(waits_for_stages() && stages.size() == members_->here.size());
  copies_ = std::move(stages);
  output_ = copies_[static_cast<std::size_t>(members_->place)];
  input_ = root == kNobody ? output_ : copies_[static_cast<std::size_t>(root)];
}

bool RingOperation::is_through() const {
  return std::ranges::all_of(channels_, [steps = schedule().steps()](const RingChannel& channel) {
    return channel.sends == steps && channel.receives == steps;
  });
}

Done RingOperation::finish() {
  CIRANDA_ASSERT(is_through() && !waits_for_stages());
  const Buffers& buffers = execution_.buffers;
  if (staged_ || buffers.size() > 1) copy_out(output_, buffers);
  return std::move(execution_.done);
}

void RingOperation::make_chunks(RingChannel& channel, std::uint32_t count) {
  const auto locals = members_->here.size();
  const FusedOp& what = execution_.op;
  CIRANDA_ASSERT(copies_.empty() || copies_.size() == locals);
  for (; channel.chunks < count; ++channel.chunks) {
    if (copies_.empty() || (locals == 1 && what.prescale == 1.0)) continue;
    const Piece piece = plan_.schedule().chunk(channel.index, channel.chunks);
    std::array<const std::byte*, kLocalRanksMax> inputs;
    for (std::size_t local = 0; local < locals; ++local) {
      inputs[local] = copies_[local] + piece.begin;
    }
    std::byte* const sum = output_ + piece.begin;
    kernels::reduce({.dtype = what.dtype, .op = what.op, .prescale = what.prescale},
                    {inputs.data(), locals}, {&sum, 1}, piece.bytes / dtype_bytes(what.dtype));
  }
}

double RingOperation::postscale() const {
  const FusedOp& what = execution_.op;
  const double ranks = what.op == ReduceOp::kAverage ? static_cast<double>(members_->size()) : 1.0;
  return what.postscale / ranks;
}

std::byte* RingOperation::payload(RingChannel& channel, const Piece& piece, bool begins) {
  std::byte* const from = place(channel, piece);
  const FusedOp& what = execution_.op;
  if (!what.wire_dtype) return from;
  CIRANDA_ASSERT(piece.bytes <= channel.rounded.size());  // at most a segment
  if (begins) {
    kernels::cast(what.dtype, from, *what.wire_dtype, channel.rounded.data(),
                  piece.bytes / dtype_bytes(what.dtype));
  }
  return channel.rounded.data();
}

void RingOperation::apply(RingChannel& channel, const Step& step, const std::byte* from) {
  const FusedOp& what = execution_.op;
  const Receive& receive = step.receive;
  const std::size_t bytes = receive.piece.bytes;
  std::byte* const own = place(channel, receive.piece);
  // Final results go to every rank of the host.
  std::array<std::byte*, kLocalRanksMax> outputs;
  std::size_t count = 0;
  outputs[count++] = own;
  const bool final = receive.completes || receive.apply == Apply::kCopy;
  if (final && receive.piece.space == Space::kOutput) {
    for (std::size_t local = 0; local < copies_.size(); ++local) {
      if (static_cast<int>(local) == members_->place) continue;
      outputs[count++] = copies_[local] + receive.piece.begin;
    }
  }
  if (what.wire_dtype) return widen(channel, step, from, {outputs.data(), count});
  const double scale = receive.completes && reduces(what.kind) ? postscale() : 1.0;
  if (receive.apply == Apply::kCopy && scale == 1.0) {
    for (std::size_t i = 0; i < count; ++i) {
      if (outputs[i] != from) kernels::copy(outputs[i], from, bytes);
    }
    return;
  }
  const std::byte* operands[2] = {from, nullptr};
  std::size_t operand_count = 1;
  if (receive.apply != Apply::kCopy) {
    operands[operand_count++] = place(channel, receive.own);
    if (receive.apply == Apply::kReduceOwnFirst) std::swap(operands[0], operands[1]);
  }
  kernels::reduce({.dtype = what.dtype, .op = what.op, .postscale = scale},
                  {operands, operand_count}, {outputs.data(), count},
                  bytes / dtype_bytes(what.dtype));
}

void RingOperation::widen(RingChannel& channel, const Step& step, const std::byte* from,
                          std::span<std::byte* const> outputs) {
  const FusedOp& what = execution_.op;
  const Receive& receive = step.receive;
  const std::size_t elements = receive.piece.bytes / dtype_bytes(what.dtype);
  if (receive.apply != Apply::kCopy) {
    kernels::add_arrived({.wire_dtype = *what.wire_dtype,
                          .own_rounded = exchanges(step),
                          .result_rounded = receive.completes,
                          .postscale = receive.completes ? postscale() : 1.0},
                         place(channel, receive.own), from, outputs, elements);
    return;
  }
  for (std::byte* const output : outputs) {
    kernels::cast(*what.wire_dtype, from, what.dtype, output, elements);
  }
}

std::byte* RingOperation::landing(RingChannel& channel, const Receive& receive) {
  const bool stays = receive.apply == Apply::kCopy && !execution_.op.wire_dtype;
  CIRANDA_ASSERT(stays || receive.piece.bytes <= channel.arrived.size());  // at most a segment
  return stays ? place(channel, receive.piece) : channel.arrived.data();
}

std::byte* RingOperation::place(RingChannel& channel, const Piece& piece) {
  switch (piece.space) {
    case Space::kInput:
      return const_cast<std::byte*>(input_) + piece.begin;  // never written, see Space
    case Space::kOutput:
      return output_ + piece.begin;
    case Space::kScratch:
      CIRANDA_ASSERT(piece.begin + piece.bytes <= channel.scratch.size());
      return channel.scratch.data() + piece.begin;
  }
  CIRANDA_UNREACHABLE();
}

}  // namespace ciranda
