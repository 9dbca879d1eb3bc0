#include "sim/network.h"

#include <algorithm>
#include <string_view>

#include "core/base/assert.h"

namespace ciranda {
namespace {

// A record on a link is its length in four bytes and that many bytes. Upwards it is a frame, and
// an empty one says good-bye. Downwards it is the kind, the rank in two bytes, and the frame.
constexpr std::size_t kLengthBytes = 4;
constexpr std::size_t kDownHeaderBytes = 3;

void append_length(std::string& to, std::size_t length) {
  for (std::size_t i = 0; i < kLengthBytes; ++i) to.push_back(static_cast<char>(length >> (8 * i)));
}

std::size_t unsigned_at(std::string_view bytes, std::size_t count) {
  std::size_t value = 0;
  for (std::size_t i = 0; i < count; ++i)
    value |= static_cast<std::size_t>(static_cast<unsigned char>(bytes[i])) << (8 * i);
  return value;
}

std::string_view as_text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace

SimNetwork::SimNetwork(const SimOptions& options)
    : options_(options),
      random_(options.seed),
      nodes_(static_cast<std::size_t>(options.size)),
      links_(2 * nodes_.size()) {
  CIRANDA_ASSERT(options.size >= 1 && options.size <= kRanksMax);
  CIRANDA_ASSERT(options.delay_ticks_max >= 1 && options.piece_bytes_max >= 1);
  for (Rank rank = 0; rank < options.size; ++rank) {
    links_[up(rank)].receiver = 0;
    links_[down(rank)].receiver = rank;
  }
}

void SimNetwork::send(Rank from, std::span<const std::byte> frame) {
  CIRANDA_ASSERT(running(from) && !paused(from));
  CIRANDA_ASSERT(!frame.empty() && frame.size() <= kFrameBytesMax);
  write(up(from), as_text(frame));
}

void SimNetwork::finish(Rank from) {
  CIRANDA_ASSERT(running(from) && !paused(from));
  write(up(from), {});
  close(up(from));
}

void SimNetwork::crash(Rank rank) {
  CIRANDA_ASSERT(running(rank));
  node(rank).crashed = true;
  break_off(up(rank));
  break_off(down(rank));
  if (rank != 0) return;
  for (Rank other = 1; other < options_.size; ++other) {
    break_off(up(other));
    break_off(down(other));
  }
}

void SimNetwork::cut(Rank rank) {
  CIRANDA_ASSERT(rank != 0 && running(rank));
  break_off(up(rank));
  break_off(down(rank));
}

void SimNetwork::pause(Rank rank) {
  CIRANDA_ASSERT(running(rank));
  node(rank).paused = true;
}

void SimNetwork::resume(Rank rank) {
  node(rank).paused = false;
  // With their old ticks and order they come before whatever is still on its way.
  for (const Arrival& arrival : node(rank).held) arrivals_.push(arrival);
  node(rank).held.clear();
}

bool SimNetwork::step(std::vector<SimDelivery>& out) {
  while (!arrivals_.empty()) {
    const Arrival arrival = arrivals_.top();
    arrivals_.pop();
    now_ = std::max(now_, arrival.tick);
    Link& link = links_[arrival.link];
    if (node(link.receiver).crashed || link.ended) continue;
    if (node(link.receiver).paused) {
      node(link.receiver).held.push_back(arrival);
      continue;
    }
    if (arrival.bytes == 0) {
      receive_end(arrival.link, out);
    } else {
      link.arrived = std::min(link.arrived + arrival.bytes, link.stream.size());
      receive(arrival.link, out);
    }
    return true;
  }
  return false;
}

void SimNetwork::write(std::size_t index, std::string_view record) {
  Link& link = links_[index];
  if (link.closed) return;  // a broken link takes bytes and loses them
  const std::size_t before = link.stream.size();
  append_length(link.stream, record.size());
  link.stream += record;
  for (std::size_t left = link.stream.size() - before; left > 0;) {
    const std::size_t longest = std::min(left, options_.piece_bytes_max);
    const std::size_t piece = random_.one_in(4) ? 1 + random_.below(longest) : longest;
    schedule(index, piece);
    left -= piece;
  }
}

void SimNetwork::schedule(std::size_t index, std::size_t bytes) {
  Link& link = links_[index];
  link.last_tick = std::max(link.last_tick, now_ + 1 + random_.below(options_.delay_ticks_max));
  arrivals_.push({.tick = link.last_tick, .order = sent_count_++, .link = index, .bytes = bytes});
}

void SimNetwork::close(std::size_t index) {
  if (links_[index].closed) return;
  links_[index].closed = true;
  schedule(index, 0);
}

void SimNetwork::break_off(std::size_t index) {
  Link& link = links_[index];
  link.stream.resize(link.arrived + random_.below(link.stream.size() - link.arrived + 1));
  close(index);
}

void SimNetwork::receive(std::size_t index, std::vector<SimDelivery>& out) {
  Link& link = links_[index];
  const bool at_sequencer = index < nodes_.size();
  std::string_view record;
  while (!link.finished && next_record(link, record)) {
    if (!at_sequencer) {
      SimDelivery& delivery = out.emplace_back();
      delivery.kind = static_cast<SimDelivery::Kind>(record[0]);
      delivery.to = link.receiver;
      delivery.from = static_cast<Rank>(unsigned_at(record.substr(1), 2));
      const auto* first = reinterpret_cast<const std::byte*>(record.data()) + kDownHeaderBytes;
      delivery.frame.assign(first, first + record.size() - kDownHeaderBytes);
    } else if (record.empty()) {
      link.finished = true;
    } else {
      broadcast(SimDelivery::Kind::kFrame, static_cast<Rank>(index), record);
    }
  }
}

void SimNetwork::receive_end(std::size_t index, std::vector<SimDelivery>& out) {
  Link& link = links_[index];
  link.ended = true;  // bytes of an unfinished record are dropped with it
  if (link.finished) return;
  if (index < nodes_.size()) {
    broadcast(SimDelivery::Kind::kLost, static_cast<Rank>(index), {});
  } else {
    out.push_back({.kind = SimDelivery::Kind::kLost, .to = link.receiver, .from = 0});
  }
}

bool SimNetwork::next_record(Link& link, std::string_view& record) {
  const std::string_view bytes =
      std::string_view(link.stream).substr(link.parsed, link.arrived - link.parsed);
  if (bytes.size() < kLengthBytes) return false;
  const std::size_t length = unsigned_at(bytes, kLengthBytes);
  if (bytes.size() - kLengthBytes < length) return false;
  record = bytes.substr(kLengthBytes, length);
  link.parsed += kLengthBytes + length;
  return true;
}

void SimNetwork::broadcast(SimDelivery::Kind kind, Rank from, std::string_view frame) {
  std::string record;
  record.push_back(static_cast<char>(kind));
  record.push_back(static_cast<char>(from & 0xff));
  record.push_back(static_cast<char>(from >> 8));
  record += frame;
  for (Rank rank = 0; rank < options_.size; ++rank) write(down(rank), record);
}

}  // namespace ciranda
