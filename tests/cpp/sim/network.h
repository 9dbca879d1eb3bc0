#pragma once

#include <cstddef>
#include <cstdint>
#include <queue>
#include <span>
#include <string>
#include <vector>

#include "core/wire/types.h"

namespace ciranda {

// Numbers that look random and depend on the seed only (splitmix64). Not for keys.
class SimRandom {
 public:
  explicit SimRandom(std::uint64_t seed) : state_(seed) {}

  std::uint64_t next() {
    std::uint64_t value = (state_ += 0x9e3779b97f4a7c15ull);
    value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ull;
    value = (value ^ (value >> 27)) * 0x94d049bb133111ebull;
    return value ^ (value >> 31);
  }
  // 0 … bound - 1.
  std::uint64_t below(std::uint64_t bound) { return next() % bound; }
  bool one_in(std::uint64_t count) { return below(count) == 0; }

 private:
  std::uint64_t state_;
};

struct SimOptions {
  int size = 2;  // ranks, each on a node of its own
  std::uint64_t seed = 0;
  std::uint64_t delay_ticks_max = 16;     // of one piece on one link
  std::size_t piece_bytes_max = 1 << 20;  // a stream arrives in pieces; 1 = byte by byte
};

// What reaches a rank.
struct SimDelivery {
  enum class Kind : std::uint8_t {
    kFrame,  // the next frame of the one order; `from` sent it
    kLost,   // `from` crashed or was cut off
  };
  Kind kind = Kind::kFrame;
  Rank to = kNoRank;
  Rank from = kNoRank;
  std::vector<std::byte> frame = {};
};

// A network of byte streams in one thread and virtual time; the seed decides everything. Each rank
// has one link to a sequencer on node 0, which puts all frames in one order and sends them to
// every rank. A link keeps the order of its bytes, delays and cuts them at will, and may end at
// any byte; both ends put frames together again.
class SimNetwork {
 public:
  explicit SimNetwork(const SimOptions& options);

  // `from` has a frame for the one order.
  void send(Rank from, std::span<const std::byte> frame);
  // `from` sends nothing more: its end of stream is no failure. It still receives.
  void finish(Rank from);

  // The node stops for good. What it had sent arrives up to some byte. Node 0 takes the
  // sequencer with it.
  void crash(Rank rank);
  // The link between `rank` and node 0 breaks in both directions, at some byte. Not for rank 0.
  void cut(Rank rank);
  // The node handles nothing until resume(); its links keep what arrives.
  void pause(Rank rank);
  void resume(Rank rank);

  // Advances to the next arrival and appends what it completes, if anything.
  // False when nothing is on its way to a running node.
  bool step(std::vector<SimDelivery>& out);

  std::uint64_t now() const { return now_; }
  bool running(Rank rank) const { return !node(rank).crashed; }
  bool paused(Rank rank) const { return node(rank).paused; }
  bool idle() const { return arrivals_.empty(); }

 private:
  // One direction between a rank and the sequencer.
  struct Link {
    Rank receiver = kNoRank;  // whose node takes the bytes
    std::string stream;       // everything ever written
    std::size_t arrived = 0;  // bytes of it that the receiver has
    std::size_t parsed = 0;   // bytes of it that the receiver has used
    std::uint64_t last_tick = 0;
    bool closed = false;    // the writer writes no more
    bool finished = false;  // the receiver saw the good-bye
    bool ended = false;     // the receiver saw the end
  };
  struct Arrival {
    std::uint64_t tick;
    std::uint64_t order;  // of sending: equal ticks keep it
    std::size_t link;
    std::size_t bytes;  // 0 = the end of the stream
    bool operator>(const Arrival& other) const {
      return tick != other.tick ? tick > other.tick : order > other.order;
    }
  };

  struct Node {
    bool crashed = false;
    bool paused = false;
    std::vector<Arrival> held;  // came while it was paused
  };

  Node& node(Rank rank) { return nodes_[static_cast<std::size_t>(rank)]; }
  const Node& node(Rank rank) const { return nodes_[static_cast<std::size_t>(rank)]; }
  std::size_t up(Rank rank) const { return static_cast<std::size_t>(rank); }
  std::size_t down(Rank rank) const { return nodes_.size() + static_cast<std::size_t>(rank); }

  void write(std::size_t link, std::string_view record);
  void schedule(std::size_t link, std::size_t bytes);
  void close(std::size_t link);
  void break_off(std::size_t link);  // at some byte that has not arrived

  void receive(std::size_t link, std::vector<SimDelivery>& out);
  void receive_end(std::size_t link, std::vector<SimDelivery>& out);
  bool next_record(Link& link, std::string_view& record);
  void broadcast(SimDelivery::Kind kind, Rank from, std::string_view frame);

  const SimOptions options_;
  SimRandom random_;
  std::uint64_t now_ = 0;
  std::uint64_t sent_count_ = 0;
  std::vector<Node> nodes_;
  std::vector<Link> links_;  // up(rank) to the sequencer, down(rank) from it
  std::priority_queue<Arrival, std::vector<Arrival>, std::greater<>> arrivals_;
};

}  // namespace ciranda
