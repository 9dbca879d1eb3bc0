#include "core/backend/ring/ring_backend.h"

#include <sys/uio.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "core/base/assert.h"
#include "core/kernels/reduce.h"

namespace ciranda {
namespace {

std::string to_text(const DataHeader& header) {
  return std::to_string(header.bytes) + " bytes as step " + std::to_string(header.step) +
         " of operation " + std::to_string(header.operation);
}

// A header and a payload, of which `done` bytes are through already.
struct Pieces {
  Pieces(std::byte* header, std::byte* payload, std::size_t payload_bytes, std::size_t done) {
    const std::size_t of_header = std::min(done, kDataHeaderBytes);
    const std::size_t of_payload = done - of_header;
    parts[0] = {.iov_base = header + of_header, .iov_len = kDataHeaderBytes - of_header};
    parts[1] = {.iov_base = payload + of_payload, .iov_len = payload_bytes - of_payload};
  }
  iovec parts[2];
};

Collective collective_of(const Execution& execution, std::uint64_t payload_bytes, int ranks) {
  const FusedOp& op = execution.op;
  Collective what{.kind = op.kind, .participants = ranks, .offsets = execution.offsets};
  if (what.offsets.empty()) what.payload_bytes = payload_bytes;
  if (op.kind == OpKind::kBroadcast) what.root = op.root;
  if (op.wire_dtype) what.narrowing = dtype_bytes(op.dtype) / dtype_bytes(*op.wire_dtype);
  return what;
}

std::uint64_t bytes_of(const std::vector<Buffer>& buffers) {
  std::uint64_t bytes = 0;
  for (const Buffer& buffer : buffers) bytes += buffer.in_bytes;
  return bytes;
}

// Bytes [begin, begin + bytes) of all buffers side by side.
std::vector<Buffer> part_of(const std::vector<Buffer>& buffers, std::uint64_t begin,
                            std::uint64_t bytes) {
  std::vector<Buffer> parts;
  std::uint64_t at = 0;
  for (const Buffer& buffer : buffers) {
    const std::uint64_t from = std::clamp(begin, at, at + buffer.in_bytes) - at;
    const std::uint64_t to = std::clamp(begin + bytes, at, at + buffer.in_bytes) - at;
    at += buffer.in_bytes;
    if (from < to) parts.push_back({buffer.in + from, buffer.out + from, to - from, to - from});
  }
  return parts;
}

void copy_in(const std::vector<Buffer>& buffers, std::byte* to) {
  for (const Buffer& buffer : buffers) {
    kernels::copy(to, buffer.in, buffer.in_bytes);
    to += buffer.in_bytes;
  }
}

void copy_out(const std::byte* from, const std::vector<Buffer>& buffers) {
  for (const Buffer& buffer : buffers) {
    kernels::copy(buffer.out, from, buffer.out_bytes);
    from += buffer.out_bytes;
  }
}

}  // namespace

RingBackend::RingBackend(RemoteMesh& mesh, ControlBlock control, PeerBells bells, int local_rank,
                         HostMemory memory, RingOptions options)
    : mesh_(mesh),
      control_(control),
      bells_(std::move(bells)),
      local_rank_(local_rank),
      memory_(std::move(memory)),
      options_(options),
      flat_(flat_hosts(mesh.size())) {}

void RingBackend::start(Execution execution) {
  const bool has_copies =
      execution.op.kind == OpKind::kAllreduce || execution.op.kind == OpKind::kBroadcast;
  const bool staged = has_copies && !execution.op.in_arena && mesh_.hosts.size() < flat_.size();
  if (!staged) return add(std::move(execution), /*staged=*/false);
  const std::uint64_t payload_bytes = bytes_of(execution.buffers);
  for (std::uint64_t begin = 0;; begin += options_.stage_bytes_max) {
    const std::uint64_t bytes = std::min(options_.stage_bytes_max, payload_bytes - begin);
    const bool last = begin + bytes == payload_bytes;
    Execution round{.op = execution.op, .buffers = part_of(execution.buffers, begin, bytes)};
    round.done = last ? std::move(execution.done) : [](const Status&, const auto&) {};
    add(std::move(round), /*staged=*/true);
    if (last) return;
  }
}

void RingBackend::add(Execution execution, bool staged) {
  const bool in_arena = execution.op.in_arena;
  const std::uint64_t payload_bytes =
      in_arena ? execution.arena_bytes : bytes_of(execution.buffers);
  HierarchicalPlan plan(collective_of(execution, payload_bytes, mesh_.size()),
                        in_arena || staged ? mesh_.hosts : flat_, mesh_.self, options_.link,
                        options_.grain);
  Operation& op = operations_.emplace_back(std::move(execution), std::move(plan));
  op.number = ++started_;
  op.staged = staged;
  for (int channel = 0; channel < op.plan.schedule().channels(); ++channel) {
    if (!op.plan.drives(channel)) continue;
    Channel& own = op.channels.emplace_back();
    own.index = channel;
    own.scratch.resize(op.plan.schedule().scratch_bytes());
    own.arrived.resize(op.plan.schedule().layout().segment_bytes);
    if (op.execution.op.wire_dtype) own.rounded.resize(own.arrived.size());
  }
  call_peers(op);
  if (in_arena) {
    op.copies = op.execution.arena;
    op.output = op.copies[static_cast<std::size_t>(local_rank_)];
    op.input = op.output;
  } else if (!staged) {
    gather(op);
  }
}

// Members side by side, or a copy that may be scaled.
void RingBackend::gather(Operation& op) {
  const std::vector<Buffer>& buffers = op.execution.buffers;
  op.input = buffers.front().in;
  op.output = buffers.front().out;
  if (buffers.size() == 1 && op.execution.op.prescale == 1.0) return;
  op.gathered.resize(bytes_of(buffers));
  copy_in(buffers, op.gathered.data());
  const DType dtype = op.execution.op.dtype;
  if (op.execution.op.prescale != 1.0) {
    kernels::scale(dtype, op.gathered.data(), op.gathered.size() / dtype_bytes(dtype),
                   op.execution.op.prescale);
  }
  op.input = op.gathered.data();
  if (buffers.size() > 1) op.output = op.gathered.data();
}

bool RingBackend::advance() {
  bool moved = take_links();
  while (!operations_.empty() && !broken_) {
    Operation& op = operations_.front();
    if (waits_for_stages(op)) moved |= advance_stage(op);
    if (waits_for_stages(op) || broken_) break;
    moved |= advance_operation(op);
    if (!op.crossed || broken_ || !all_crossed(op)) break;
    finish_front();
    moved = true;
  }
  return moved;
}

bool RingBackend::advance_stage(Operation& op) {
  const bool moved = fill_stage(op);
  std::vector<std::byte*> copies;
  for (Rank local = 0; local < static_cast<Rank>(locals()) && !broken_; ++local) {
    const RankFlags& flags = control_.flags(local);
    if (flags.staged.load(std::memory_order_acquire) < op.number) return moved;
    const ArenaRef ref{.segment = flags.stage_segment.load(std::memory_order_relaxed),
                       .offset = flags.stage_offset.load(std::memory_order_relaxed)};
    auto stage = memory_.resolve(local, ref, bytes_of(op.execution.buffers));
    if (!stage) {
      broken_ = stage.error();
      return true;
    }
    if (stage.value() == nullptr) return moved;
    copies.push_back(stage.value());
  }
  if (broken_) return true;
  op.copies = std::move(copies);
  op.output = op.copies[static_cast<std::size_t>(local_rank_)];
  op.input = op.output;
  for (std::size_t local = 0; local < locals(); ++local) {
    if (mesh_.local_ranks()[local] == op.execution.op.root) op.input = op.copies[local];
  }
  return true;
}

// The stage is free: the operation before is through on all local ranks.
bool RingBackend::fill_stage(const Operation& op) {
  RankFlags& own = control_.flags(local_rank_);
  if (own.staged.load(std::memory_order_relaxed) == op.number) return false;
  const std::vector<Buffer>& buffers = op.execution.buffers;
  if (stage_.data == nullptr || stage_.bytes < bytes_of(buffers)) {
    auto stage = memory_.allocate(std::bit_ceil(bytes_of(buffers)));
    if (!stage) {
      broken_ = stage.error();
      return true;
    }
    stage_ = std::move(stage).value();
  }
  const FusedOp& what = op.execution.op;
  if (what.kind != OpKind::kBroadcast || what.root == mesh_.self) copy_in(buffers, stage_.data);
  own.stage_segment.store(stage_.ref.segment, std::memory_order_relaxed);
  own.stage_offset.store(stage_.ref.offset, std::memory_order_relaxed);
  own.staged.store(op.number, std::memory_order_release);
  bells_.ring_all();
  return true;
}

bool RingBackend::advance_operation(Operation& op) {
  if (op.crossed) return false;
  const std::uint32_t steps = op.plan.schedule().steps();
  bool moved = false;
  bool through = true;
  for (Channel& channel : op.channels) {
    for (bool more = true; more && !broken_; moved |= more) {
      more = send(op, channel);
      if (!broken_) more = receive(op, channel) || more;
    }
    through = through && channel.sends == steps && channel.receives == steps;
  }
  if (!through || broken_) return moved;
  op.crossed = true;
  control_.flags(local_rank_).crossed.store(op.number, std::memory_order_release);
  bells_.ring_all();
  return true;
}

// The other ranks of the host read this rank's memory and write to it until their lanes are
// through.
bool RingBackend::all_crossed(const Operation& op) const {
  if (op.copies.empty()) return true;
  for (Rank local = 0; local < static_cast<Rank>(locals()); ++local) {
    if (control_.flags(local).crossed.load(std::memory_order_acquire) < op.number) return false;
  }
  return true;
}

void RingBackend::finish_front() {
  Operation& op = operations_.front();
  const std::vector<Buffer>& buffers = op.execution.buffers;
  if (op.staged || buffers.size() > 1) copy_out(op.output, buffers);
  const auto done = std::move(op.execution.done);
  operations_.pop_front();
  done({}, nullptr);
}

void RingBackend::blocked_on(std::vector<Rank>& out) const {
  if (operations_.empty()) return;
  const Operation& op = operations_.front();
  if (!waits_for_stages(op) && !op.crossed) return;
  for (Rank local = 0; local < static_cast<Rank>(locals()); ++local) {
    const RankFlags& flags = control_.flags(local);
    const auto& counter = op.crossed ? flags.crossed : flags.staged;
    const bool behind = counter.load(std::memory_order_acquire) < op.number;
    if (local != local_rank_ && behind) out.push_back(local);
  }
}

void RingBackend::abort(const Error& why) {
  for (Operation& op : std::exchange(operations_, {})) op.execution.done(why, nullptr);
}

// Only what the front operation waits for: a peer may be ahead, and its bytes stay where they are.
void RingBackend::watched(std::vector<Watched>& out) const {
  if (operations_.empty()) return;
  mesh_.links.watched(out);
  const Operation& op = operations_.front();
  if (waits_for_stages(op) || op.crossed) return;
  const Schedule& schedule = op.plan.schedule();
  for (const Channel& channel : op.channels) {
    if (channel.receives < schedule.steps()) {
      const Receive receive = schedule.step(channel.index, channel.receives).receive;
      if (receive.piece.bytes > 0 && receive.from != schedule.layout().self) {
        const DataLink* const peer = link(op, channel, receive.from);
        if (peer != nullptr) out.push_back({.socket = peer->stream.fd(), .readable = true});
      }
    }
    if (channel.wants_room) {
      const Send send = schedule.step(channel.index, channel.sends).send;
      out.push_back({.socket = link(op, channel, send.to)->stream.fd(), .writable = true});
    }
  }
}

// -------------------------------------------------------------------------------------------
// A channel

bool RingBackend::may_send(Operation& op, Channel& channel, const Send& send) {
  if (channel.receives < send.after_receives) return false;
  make_chunks(op, channel, send.after_chunks);
  return true;
}

bool RingBackend::send(Operation& op, Channel& channel) {
  const Schedule& schedule = op.plan.schedule();
  bool moved = false;
  for (; channel.sends < schedule.steps(); ++channel.sends, moved = true) {
    const Send send = schedule.step(channel.index, channel.sends).send;
    if (send.piece.bytes == 0 || send.to == schedule.layout().self) continue;
    if (!may_send(op, channel, send)) break;
    DataLink* const found = link(op, channel, send.to);
    if (found == nullptr) break;  // in the making
    DataLink& peer = *found;
    const std::uint64_t bytes = schedule.message_bytes(send.piece);
    const std::optional<DType> wire_dtype = op.execution.op.wire_dtype;
    std::byte* payload = place(op, channel, send.piece);
    const bool begins = channel.sent_bytes == 0 && !std::exchange(channel.wants_room, false);
    if (wire_dtype) {
      const DType dtype = op.execution.op.dtype;
      if (begins) {
        kernels::cast(dtype, payload, *wire_dtype, channel.rounded.data(),
                      send.piece.bytes / dtype_bytes(dtype));
      }
      payload = channel.rounded.data();
    }
    if (begins) {
      channel.header_out = peer.sealer.seal({.bytes = static_cast<std::uint32_t>(bytes),
                                             .step = channel.sends,
                                             .operation = op.number},
                                            {payload, options_.authenticates ? bytes : 0});
    }
    Pieces pieces(channel.header_out.data(), payload, bytes, channel.sent_bytes);
    const auto sent = peer.stream.send(pieces.parts);
    if (!sent) {
      break_off(peer, sent.error());
      return true;
    }
    channel.sent_bytes += sent.value();
    moved = moved || sent.value() > 0;
    channel.wants_room = channel.sent_bytes < kDataHeaderBytes + bytes;
    if (channel.wants_room) break;
    channel.sent_bytes = 0;
  }
  return moved;
}

bool RingBackend::receive(Operation& op, Channel& channel) {
  const Schedule& schedule = op.plan.schedule();
  bool moved = false;
  for (; channel.receives < schedule.steps(); ++channel.receives, moved = true) {
    const Step step = schedule.step(channel.index, channel.receives);
    const Receive& receive = step.receive;
    if (receive.piece.bytes == 0) continue;
    if (receive.from == schedule.layout().self) {
      if (!may_send(op, channel, step.send)) break;
      CIRANDA_ASSERT(!op.execution.op.wire_dtype);  // it has a peer
      apply(op, channel, step, place(op, channel, step.send.piece));
      continue;
    }
    bool complete = false;
    moved |= read_message(op, channel, receive, complete);
    if (!complete || broken_ || channel.sends < receive.after_sends) break;
    make_chunks(op, channel, receive.after_chunks);
    apply(op, channel, step, landing(op, channel, receive));
    channel.received_bytes = 0;
  }
  return moved;
}

bool RingBackend::read_message(Operation& op, Channel& channel, const Receive& receive,
                               bool& complete) {
  const std::uint64_t bytes = op.plan.schedule().message_bytes(receive.piece);
  const std::uint64_t whole = kDataHeaderBytes + bytes;
  bool moved = false;
  DataLink* const found = link(op, channel, receive.from);
  if (found == nullptr) return false;  // in the making
  DataLink& peer = *found;
  std::byte* const to = landing(op, channel, receive);
  const DataHeader expected = {
      .bytes = static_cast<std::uint32_t>(bytes), .step = channel.receives, .operation = op.number};
  while (channel.received_bytes < whole) {
    Pieces pieces(channel.header_in.data(), to, bytes, channel.received_bytes);
    const auto got = peer.stream.receive(pieces.parts);
    if (!got) {
      break_off(peer, got.error());
      return true;
    }
    if (got.value() == 0) return moved;
    moved = true;
    const bool had_header = channel.received_bytes >= kDataHeaderBytes;
    channel.received_bytes += got.value();
    if (!had_header && channel.received_bytes >= kDataHeaderBytes) {
      const auto header = peer.opener.open(channel.header_in);
      if (!header) {
        break_off(peer, header.error());
        return true;
      }
      if (header.value() != expected) {
        break_off(peer, {.code = ErrorCode::kMalformed,
                         .text = "it sent " + to_text(header.value()) + " where " +
                                 to_text(expected) + " were expected"});
        return true;
      }
    }
  }
  if (moved && options_.authenticates) {
    const Status unchanged = peer.opener.check({to, bytes});
    if (!unchanged) {
      break_off(peer, unchanged.error());
      return true;
    }
  }
  complete = true;
  return moved;
}

// The host's sum, piece by piece, as far as the schedule wants it now.
void RingBackend::make_chunks(Operation& op, Channel& channel, std::uint32_t count) {
  const FusedOp& what = op.execution.op;
  for (; channel.chunks < count; ++channel.chunks) {
    if (op.copies.empty() || (locals() == 1 && what.prescale == 1.0)) continue;
    const Piece piece = op.plan.schedule().chunk(channel.index, channel.chunks);
    std::array<const std::byte*, kLocalRanksMax> inputs;
    for (std::size_t local = 0; local < locals(); ++local) {
      inputs[local] = op.copies[local] + piece.begin;
    }
    std::byte* const sum = op.output + piece.begin;
    kernels::reduce({.dtype = what.dtype, .op = what.op, .prescale = what.prescale},
                    {inputs.data(), locals()}, {&sum, 1}, piece.bytes / dtype_bytes(what.dtype));
  }
}

double RingBackend::postscale(const Operation& op) const {
  const FusedOp& what = op.execution.op;
  const double ranks = what.op == ReduceOp::kAverage ? static_cast<double>(mesh_.size()) : 1.0;
  return what.postscale / ranks;
}

void RingBackend::apply(Operation& op, Channel& channel, const Step& step, const std::byte* from) {
  const FusedOp& what = op.execution.op;
  const Receive& receive = step.receive;
  const std::size_t bytes = receive.piece.bytes;
  std::byte* const own = place(op, channel, receive.piece);
  // Final results go to every rank of the host.
  std::array<std::byte*, kLocalRanksMax> outputs;
  std::size_t count = 0;
  outputs[count++] = own;
  const bool final = receive.completes || receive.apply == Apply::kCopy;
  if (final && receive.piece.space == Space::kOutput) {
    for (std::size_t local = 0; local < op.copies.size(); ++local) {
      if (static_cast<int>(local) == local_rank_) continue;
      outputs[count++] = op.copies[local] + receive.piece.begin;
    }
  }
  if (what.wire_dtype) return widen(op, channel, step, from, {outputs.data(), count});
  const double scale = receive.completes && reduces(what.kind) ? postscale(op) : 1.0;
  if (receive.apply == Apply::kCopy && scale == 1.0) {
    for (std::size_t i = 0; i < count; ++i) {
      if (outputs[i] != from) kernels::copy(outputs[i], from, bytes);
    }
    return;
  }
  const std::byte* operands[2] = {from, nullptr};
  std::size_t operand_count = 1;
  if (receive.apply != Apply::kCopy) {
    operands[operand_count++] = place(op, channel, receive.own);
    if (receive.apply == Apply::kReduceOwnFirst) std::swap(operands[0], operands[1]);
  }
  kernels::reduce({.dtype = what.dtype, .op = what.op, .postscale = scale},
                  {operands, operand_count}, {outputs.data(), count},
                  bytes / dtype_bytes(what.dtype));
}

void RingBackend::widen(Operation& op, Channel& channel, const Step& step, const std::byte* from,
                        std::span<std::byte* const> outputs) {
  const FusedOp& what = op.execution.op;
  const Receive& receive = step.receive;
  const std::size_t elements = receive.piece.bytes / dtype_bytes(what.dtype);
  if (receive.apply != Apply::kCopy) {
    kernels::add_arrived({.wire_dtype = *what.wire_dtype,
                          .own_rounded = exchanges(step),
                          .result_rounded = receive.completes,
                          .postscale = receive.completes ? postscale(op) : 1.0},
                         place(op, channel, receive.own), from, outputs, elements);
    return;
  }
  for (std::byte* const output : outputs) {
    kernels::cast(*what.wire_dtype, from, what.dtype, output, elements);
  }
}

std::byte* RingBackend::landing(Operation& op, Channel& channel, const Receive& receive) const {
  const bool stays = receive.apply == Apply::kCopy && !op.execution.op.wire_dtype;
  return stays ? place(op, channel, receive.piece) : channel.arrived.data();
}

std::byte* RingBackend::place(Operation& op, Channel& channel, const Piece& piece) const {
  switch (piece.space) {
    case Space::kInput:
      return const_cast<std::byte*>(op.input) + piece.begin;  // never written, see Space
    case Space::kOutput:
      return op.output + piece.begin;
    case Space::kScratch:
      return channel.scratch.data() + piece.begin;
  }
  CIRANDA_UNREACHABLE();
}

void RingBackend::call_peers(const Operation& op) {
  const Schedule& schedule = op.plan.schedule();
  for (const Channel& channel : op.channels) {
    for (std::uint32_t i = 0; i < schedule.steps(); ++i) {
      const Step step = schedule.step(channel.index, i);
      for (const auto& [peer, bytes] : {std::pair{step.send.to, step.send.piece.bytes},
                                        std::pair{step.receive.from, step.receive.piece.bytes}}) {
        if (bytes > 0 && peer != schedule.layout().self) (void)link(op, channel, peer);
      }
    }
  }
}

DataLink* RingBackend::link(const Operation& op, const Channel& channel, int participant) const {
  return mesh_.links.find(op.plan.rank(participant, channel.index), op.plan.stream(channel.index));
}

bool RingBackend::take_links() {
  auto taken = mesh_.links.advance();
  if (taken) return taken.value();
  broken_ = taken.error();
  return true;
}

void RingBackend::break_off(const DataLink& link, Error why) {
  why.text = "rank " + std::to_string(link.peer) + " at " + link.address + ": " + why.text;
  why.rank = link.peer;
  if (why.code == ErrorCode::kSystem) why.code = ErrorCode::kRankLost;
  broken_ = std::move(why);
}

}  // namespace ciranda
