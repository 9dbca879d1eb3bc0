#include "plan/network.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <random>
#include <tuple>

#include "core/base/assert.h"
#include "core/kernels/reduce.h"

namespace ciranda {
namespace {

constexpr std::byte kUntouched{0xEE};

struct Memory {
  Bytes host_sum;  // where chunks come from
  Bytes input;
  Bytes output;
  bool in_place = false;
};

// One participant's side of one channel.
struct Channel {
  std::uint32_t sends = 0, receives = 0, chunks = 0;  // done
  std::uint64_t sent_bytes = 0;                       // of the current send
  std::uint64_t received_bytes = 0;                   // of the current receive
  Bytes arrived;
  Bytes rounded;  // of the current send
  Bytes scratch;
};

class Network {
 public:
  Network(const std::vector<Schedule>& schedules, std::vector<Memory>& memory,
          Arithmetic arithmetic, const NetworkOptions& options)
      : schedules_(schedules),
        memory_(memory),
        arithmetic_(arithmetic),
        capacity_(options.connection_bytes),
        random_(options.seed) {
    for (std::size_t p = 0; p < schedules.size(); ++p) {
      for (int c = 0; c < schedules[p].channels(); ++c) {
        channels_[{p, c}].scratch.assign(schedules[p].scratch_bytes(), kUntouched);
        for (int action = 0; action < 3; ++action) actors_.push_back({p, c, action});
      }
    }
  }

  bool run() {
    while (!finished()) {
      std::shuffle(actors_.begin(), actors_.end(), random_);
      bool progress = false;
      for (const Actor& actor : actors_) {
        if (random_() % 4 != 0) progress |= act(actor);  // the others are late
      }
      if (progress) continue;
      for (const Actor& actor : actors_) progress |= act(actor);
      if (!progress) return false;
    }
    return std::all_of(connections_.begin(), connections_.end(),
                       [](const auto& connection) { return connection.second.empty(); });
  }

 private:
  struct Actor {
    std::size_t participant;
    int channel;
    int action;
  };

  bool finished() const {
    return std::all_of(channels_.begin(), channels_.end(), [&](const auto& entry) {
      const std::uint32_t steps = schedules_[entry.first.first].steps();
      return entry.second.sends == steps && entry.second.receives == steps;
    });
  }

  bool act(const Actor& actor) {
    const auto& [p, c, action] = actor;
    Channel& channel = channels_[{p, c}];
    if (action == 0) return make_chunk(p, c, channel);
    return action == 1 ? send(p, c, channel) : receive(p, c, channel);
  }

  bool make_chunk(std::size_t p, int c, Channel& channel) {
    if (channel.chunks == schedules_[p].chunks()) return false;
    const Piece piece = schedules_[p].chunk(c, channel.chunks++);
    EXPECT_EQ(piece.space, Space::kInput);
    const std::byte* sum = memory_[p].host_sum.data() + piece.begin;
    std::copy(sum, sum + piece.bytes, at(p, channel, piece));
    return true;
  }

  bool send(std::size_t p, int c, Channel& channel) {
    if (channel.sends == schedules_[p].steps()) return false;
    const Send send = schedules_[p].step(c, channel.sends).send;
    const bool message = send.piece.bytes > 0 && send.to != static_cast<int>(p);
    if (message) {
      if (!may(channel, send)) return false;
      std::deque<std::byte>& connection = connections_[{p, static_cast<std::size_t>(send.to), c}];
      const std::uint64_t whole = schedules_[p].message_bytes(send.piece);
      const std::uint64_t bytes =
          some(std::min(whole - channel.sent_bytes, capacity_ - connection.size()));
      const std::byte* from = at(p, channel, send.piece);
      if (arithmetic_.wire_dtype) {
        if (channel.sent_bytes == 0) {
          channel.rounded.resize(whole);
          kernels::cast(DType::kFloat32, from, *arithmetic_.wire_dtype, channel.rounded.data(),
                        send.piece.bytes / sizeof(float));
        }
        from = channel.rounded.data();
      }
      from += channel.sent_bytes;
      connection.insert(connection.end(), from, from + bytes);
      channel.sent_bytes += bytes;
      if (channel.sent_bytes < whole) return bytes > 0;
    }
    channel.sent_bytes = 0;
    ++channel.sends;
    return true;
  }

  bool receive(std::size_t p, int c, Channel& channel) {
    if (channel.receives == schedules_[p].steps()) return false;
    const auto [send, receive] = schedules_[p].step(c, channel.receives);
    const bool to_self = receive.from == static_cast<int>(p);
    if (to_self && !may(channel, send)) return false;
    bool progress = false;
    if (to_self) {
      EXPECT_EQ(send.to, receive.from);
      EXPECT_EQ(send.piece.bytes, receive.piece.bytes);
      std::byte* from = at(p, channel, send.piece);
      channel.arrived.assign(from, from + send.piece.bytes);
      std::copy(channel.arrived.begin(), channel.arrived.end(), at(p, channel, receive.piece));
    } else if (receive.piece.bytes > 0) {
      std::deque<std::byte>& connection =
          connections_[{static_cast<std::size_t>(receive.from), p, c}];
      const std::uint64_t whole = schedules_[p].message_bytes(receive.piece);
      const std::uint64_t bytes = some(std::min(whole - channel.received_bytes, connection.size()));
      const auto end = connection.begin() + static_cast<std::ptrdiff_t>(bytes);
      channel.arrived.resize(whole);
      // What is only copied need not stop on the way: it may overwrite its place byte by byte.
      const bool stays = receive.apply == Apply::kCopy && !arithmetic_.wire_dtype;
      std::byte* to = stays ? at(p, channel, receive.piece) : channel.arrived.data();
      std::copy(connection.begin(), end, to + channel.received_bytes);
      connection.erase(connection.begin(), end);
      channel.received_bytes += bytes;
      progress = bytes > 0;
      if (channel.received_bytes < whole) return progress;
      if (channel.sends < receive.after_sends || channel.chunks < receive.after_chunks) {
        EXPECT_NE(receive.apply, Apply::kCopy) << "a copy waits for nothing";
        return progress;
      }
    }
    apply(p, channel, {send, receive});
    channel.received_bytes = 0;
    ++channel.receives;
    return true;
  }

  void apply(std::size_t p, Channel& channel, const Step& step) {
    const Receive& receive = step.receive;
    const auto scale = receive.completes ? arithmetic_.postscale : 1.0;
    const std::size_t count = receive.piece.bytes / dtype_bytes(arithmetic_.dtype);
    if (count == 0) return;
    std::byte* to = at(p, channel, receive.piece);
    if (arithmetic_.wire_dtype && receive.from != static_cast<int>(p)) {
      return apply_rounded(p, channel, step, count);
    }
    if (receive.apply == Apply::kCopy) {
      if (scale != 1.0) kernels::scale(arithmetic_.dtype, to, count, scale);
      return;
    }
    EXPECT_EQ(receive.own.bytes, receive.piece.bytes);
    const std::byte* first = at(p, channel, receive.own);
    const std::byte* second = channel.arrived.data();
    if (receive.apply == Apply::kReduceReceivedFirst) std::swap(first, second);
    const std::byte* operands[] = {first, second};
    kernels::reduce({.dtype = arithmetic_.dtype, .op = arithmetic_.op, .postscale = scale},
                    operands, {&to, 1}, count);
  }

  void apply_rounded(std::size_t p, Channel& channel, const Step& step, std::size_t count) {
    const Receive& receive = step.receive;
    std::byte* to = at(p, channel, receive.piece);
    if (receive.apply == Apply::kCopy) {
      kernels::cast(*arithmetic_.wire_dtype, channel.arrived.data(), DType::kFloat32, to, count);
      return;
    }
    kernels::add_arrived({.wire_dtype = *arithmetic_.wire_dtype,
                          .own_rounded = exchanges(step),
                          .result_rounded = receive.completes,
                          .postscale = receive.completes ? arithmetic_.postscale : 1.0},
                         at(p, channel, receive.own), channel.arrived.data(), {&to, 1}, count);
  }

  static bool may(const Channel& channel, const Send& send) {
    return channel.receives >= send.after_receives && channel.chunks >= send.after_chunks;
  }

  std::uint64_t some(std::uint64_t bytes) {
    return bytes == 0 || random_() % 2 == 0 ? bytes : 1 + random_() % bytes;
  }

  std::byte* at(std::size_t p, Channel& channel, const Piece& piece) {
    Bytes& input = memory_[p].in_place ? memory_[p].output : memory_[p].input;
    Bytes* places[] = {&input, &memory_[p].output, &channel.scratch};
    Bytes& place = *places[static_cast<std::size_t>(piece.space)];
    CIRANDA_ASSERT(piece.begin + piece.bytes <= place.size());
    EXPECT_EQ(piece.bytes > 1 ? piece.begin % dtype_bytes(arithmetic_.dtype) : 0, 0u);
    return place.data() + piece.begin;
  }

  const std::vector<Schedule>& schedules_;
  std::vector<Memory>& memory_;
  const Arithmetic arithmetic_;
  const std::size_t capacity_;
  std::mt19937 random_;
  std::map<std::pair<std::size_t, int>, Channel> channels_;
  std::map<std::tuple<std::size_t, std::size_t, int>, std::deque<std::byte>> connections_;
  std::vector<Actor> actors_;
};

template <typename T>
void fill_whole_numbers(Bytes& bytes, std::mt19937& random) {
  for (std::size_t at = 0; at + sizeof(T) <= bytes.size(); at += sizeof(T)) {
    const T value = static_cast<T>(random() % 4);
    std::memcpy(bytes.data() + at, &value, sizeof(T));
  }
}

}  // namespace

std::vector<Bytes> execute(const std::vector<Schedule>& schedules, const std::vector<Bytes>& inputs,
                           const std::vector<std::size_t>& output_bytes, Arithmetic arithmetic,
                           const NetworkOptions& options) {
  std::vector<Memory> memory(schedules.size());
  for (std::size_t p = 0; p < schedules.size(); ++p) {
    const bool chunked = schedules[p].chunks() > 0;
    memory[p].in_place = options.in_place;
    memory[p].host_sum = inputs[p];
    memory[p].input = chunked ? Bytes(inputs[p].size(), kUntouched) : inputs[p];
    memory[p].output.assign(output_bytes[p], kUntouched);
    if (options.in_place && !chunked) memory[p].output = inputs[p];
  }
  EXPECT_TRUE(Network(schedules, memory, arithmetic, options).run()) << "stuck, or bytes left over";
  std::vector<Bytes> outputs;
  for (Memory& each : memory) outputs.push_back(std::move(each.output));
  return outputs;
}

void expect_matched(const std::vector<Schedule>& schedules) {
  using Sizes = std::map<std::tuple<int, int, int>, std::vector<std::uint64_t>>;
  Sizes sent, received;
  for (const Schedule& schedule : schedules) {
    const int self = schedule.layout().self;
    ASSERT_EQ(schedule.channels(), schedules.front().channels());
    ASSERT_EQ(schedule.steps(), schedules.front().steps());
    for (int channel = 0; channel < schedule.channels(); ++channel) {
      for (std::uint32_t i = 0; i < schedule.steps(); ++i) {
        const auto [send, receive] = schedule.step(channel, i);
        if (send.piece.bytes > 0) sent[{send.to, self, channel}].push_back(send.piece.bytes);
        if (receive.piece.bytes > 0) {
          received[{self, receive.from, channel}].push_back(receive.piece.bytes);
        }
      }
    }
  }
  EXPECT_EQ(sent, received);
}

std::vector<Schedule> schedules_of(const Collective& collective, Algorithm algorithm, Grain grain) {
  std::vector<Schedule> schedules;
  for (int p = 0; p < collective.participants; ++p) {
    schedules.emplace_back(collective, p, algorithm, grain);
  }
  return schedules;
}

Bytes whole_numbers(DType dtype, std::size_t bytes, std::uint32_t seed) {
  std::mt19937 random(seed);
  Bytes numbers(bytes);
  switch (dtype) {
    case DType::kFloat16:
    case DType::kFloat32: {
      Bytes floats(bytes / dtype_bytes(dtype) * sizeof(float));
      fill_whole_numbers<float>(floats, random);
      if (dtype == DType::kFloat32) return floats;
      kernels::cast(DType::kFloat32, floats.data(), dtype, numbers.data(), bytes / 2);
      break;
    }
    case DType::kFloat64:
      fill_whole_numbers<double>(numbers, random);
      break;
    case DType::kInt64:
      fill_whole_numbers<std::int64_t>(numbers, random);
      break;
    case DType::kInt32:
      fill_whole_numbers<std::int32_t>(numbers, random);
      break;
    default:
      fill_whole_numbers<std::uint8_t>(numbers, random);
  }
  return numbers;
}

std::vector<std::uint64_t> unequal_offsets(const Collective& collective, std::size_t element_bytes,
                                           std::size_t elements_max, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<std::uint64_t> offsets;
  const int rows = collective.kind == OpKind::kAlltoall ? collective.participants : 1;
  for (int row = 0; row < rows; ++row) {
    std::uint64_t at = 0;
    for (int p = 0; p < collective.participants; ++p) {
      offsets.push_back(at);
      if (random() % 4 != 0) at += random() % (elements_max + 1) * element_bytes;
    }
    offsets.push_back(at);
  }
  return offsets;
}

std::vector<std::size_t> input_bytes(const Collective& collective) {
  const auto n = static_cast<std::size_t>(collective.participants);
  std::vector<std::size_t> sizes(n, collective.payload_bytes);
  for (std::size_t p = 0; p < n; ++p) {
    if (collective.kind == OpKind::kReducescatter) sizes[p] = collective.offsets.back();
    if (collective.kind == OpKind::kAllgather) {
      sizes[p] = collective.offsets[p + 1] - collective.offsets[p];
    }
    if (collective.kind == OpKind::kAlltoall) sizes[p] = collective.offsets[p * (n + 1) + n];
  }
  return sizes;
}

std::vector<std::size_t> output_bytes(const Collective& collective) {
  const auto n = static_cast<std::size_t>(collective.participants);
  std::vector<std::size_t> sizes(n, collective.payload_bytes);
  for (std::size_t p = 0; p < n; ++p) {
    if (collective.kind == OpKind::kAllgather) sizes[p] = collective.offsets.back();
    if (collective.kind == OpKind::kReducescatter) {
      sizes[p] = collective.offsets[p + 1] - collective.offsets[p];
    }
    for (std::size_t from = 0; collective.kind == OpKind::kAlltoall && from < n; ++from) {
      const std::size_t part = from * (n + 1) + p;
      sizes[p] += collective.offsets[part + 1] - collective.offsets[part];
    }
  }
  return sizes;
}

std::vector<Bytes> expected_outputs(const Collective& collective, const std::vector<Bytes>& inputs,
                                    Arithmetic arithmetic) {
  const auto n = static_cast<std::size_t>(collective.participants);
  const auto part = [&](const Bytes& bytes, std::size_t index) {
    const auto at = [&](std::size_t i) {
      return bytes.begin() + static_cast<std::ptrdiff_t>(collective.offsets[i]);
    };
    return Bytes(at(index), at(index + 1));
  };
  Bytes sum(inputs[0].size());
  if (collective.kind == OpKind::kAllreduce || collective.kind == OpKind::kReducescatter) {
    std::vector<const std::byte*> operands;
    for (const Bytes& input : inputs) operands.push_back(input.data());
    std::byte* to = sum.data();
    kernels::reduce(
        {.dtype = arithmetic.dtype, .op = arithmetic.op, .postscale = arithmetic.postscale},
        operands, {&to, 1}, sum.size() / dtype_bytes(arithmetic.dtype));
  }
  std::vector<Bytes> outputs(n);
  for (std::size_t p = 0; p < n; ++p) {
    switch (collective.kind) {
      case OpKind::kAllreduce:
        outputs[p] = sum;
        break;
      case OpKind::kReducescatter:
        outputs[p] = part(sum, p);
        break;
      case OpKind::kBroadcast:
        outputs[p] = inputs[static_cast<std::size_t>(collective.root)];
        break;
      case OpKind::kAllgather:
      case OpKind::kAlltoall:
        for (std::size_t from = 0; from < n; ++from) {
          const bool gather = collective.kind == OpKind::kAllgather;
          const Bytes piece = gather ? inputs[from] : part(inputs[from], from * (n + 1) + p);
          outputs[p].insert(outputs[p].end(), piece.begin(), piece.end());
        }
        break;
      default:
        break;  // no data
    }
  }
  return outputs;
}

void expect_correct(const Collective& collective, Algorithm algorithm, Grain grain,
                    Arithmetic arithmetic, const NetworkOptions& options) {
  std::vector<Bytes> inputs;
  for (const std::size_t bytes : input_bytes(collective)) {
    const auto seed = options.seed + static_cast<std::uint32_t>(inputs.size());
    inputs.push_back(whole_numbers(arithmetic.dtype, bytes, seed));
  }
  const std::vector<Schedule> schedules = schedules_of(collective, algorithm, grain);
  expect_matched(schedules);
  const std::vector<Bytes> outputs =
      execute(schedules, inputs, output_bytes(collective), arithmetic, options);
  const std::vector<Bytes> expected = expected_outputs(collective, inputs, arithmetic);
  for (std::size_t p = 0; p < outputs.size(); ++p) {
    EXPECT_TRUE(outputs[p] == expected[p])
        << op_kind_name(collective.kind) << ", participant " << p << " of " << outputs.size()
        << ", " << expected[p].size() << " bytes of " << dtype_name(arithmetic.dtype) << ", seed "
        << options.seed;
  }
}

}  // namespace ciranda
