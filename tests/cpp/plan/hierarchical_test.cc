// What could break: a rank that nobody sends to, a host with more ranks than lanes, an average
// divided twice, a host that sends more because it has more ranks.
#include "core/plan/hierarchical.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <random>
#include <tuple>

#include "core/kernels/reduce.h"
#include "plan/network.h"

namespace ciranda {
namespace {

constexpr Grain kFine = {.channels = 2, .stripe_bytes_min = 128, .segment_bytes = 256};
// Quick to answer and slow to move: even small payloads make a ring.
constexpr LinkSpeed kRingLink = {.latency_ns = 1, .bytes_per_us = 1, .reduced_bytes_per_us = 1};

Hosts hosts_of(const std::vector<int>& sizes, bool round_robin = false) {
  Hosts hosts(sizes.size());
  Rank next = 0;
  const int ranks = std::accumulate(sizes.begin(), sizes.end(), 0);
  for (std::size_t h = 0; next < ranks; h = round_robin ? (h + 1) % sizes.size() : h + 1) {
    const auto room = static_cast<std::size_t>(sizes[h]) - hosts[h].size();
    for (std::size_t i = 0; i < (round_robin ? std::min<std::size_t>(1, room) : room); ++i) {
      hosts[h].push_back(next++);
    }
  }
  return hosts;
}

int rank_count(const Hosts& hosts) {
  int count = 0;
  for (const std::vector<Rank>& ranks : hosts) count += static_cast<int>(ranks.size());
  return count;
}

// One participant's schedule each; a host's is the one of any of its ranks.
std::vector<Schedule> schedules_between(const Collective& collective, const Hosts& hosts,
                                        const LinkSpeed& link) {
  std::map<int, Schedule> by_participant;
  for (Rank rank = 0; rank < rank_count(hosts); ++rank) {
    const HierarchicalPlan plan(collective, hosts, rank, link, kFine);
    by_participant.emplace(plan.schedule().layout().self, plan.schedule());
  }
  std::vector<Schedule> schedules;
  for (auto& [participant, schedule] : by_participant) schedules.push_back(std::move(schedule));
  return schedules;
}

// What a host makes of its ranks' inputs before the schedule.
Bytes inside_before(const Collective& collective, const std::vector<Rank>& ranks,
                    const std::vector<Bytes>& inputs, DType dtype, double prescale) {
  const auto input = [&](Rank rank) -> const Bytes& {
    return inputs[static_cast<std::size_t>(rank)];
  };
  Bytes made = input(ranks.front());
  if (collective.kind == OpKind::kAllgather) {
    made.clear();
    for (const Rank rank : ranks) {
      made.insert(made.end(), input(rank).begin(), input(rank).end());
    }
  }
  if (collective.kind == OpKind::kBroadcast) {
    if (std::count(ranks.begin(), ranks.end(), collective.root) == 1) made = input(collective.root);
  }
  if (collective.kind == OpKind::kAllreduce || collective.kind == OpKind::kReducescatter) {
    std::vector<const std::byte*> operands;
    for (const Rank rank : ranks) operands.push_back(input(rank).data());
    std::byte* to = made.data();
    kernels::reduce({.dtype = dtype, .op = ReduceOp::kSum, .prescale = prescale}, operands,
                    {&to, 1}, made.size() / dtype_bytes(dtype));
  }
  return made;
}

// A whole job: inside the hosts, between them, and what each rank then finds.
void expect_correct_job(const Collective& collective, const Hosts& hosts, const LinkSpeed& link,
                        DType dtype, std::uint32_t seed) {
  const int size = rank_count(hosts);
  const double prescale = 2.0;
  std::vector<Bytes> inputs;
  for (const std::size_t bytes : input_bytes(collective)) {
    inputs.push_back(whole_numbers(dtype, bytes, seed + static_cast<std::uint32_t>(inputs.size())));
  }
  const Arithmetic average = {dtype, ReduceOp::kAverage, 1.0 / size};
  const std::vector<Schedule> schedules = schedules_between(collective, hosts, link);
  expect_matched(schedules);
  const bool flat = HierarchicalPlan(collective, hosts, 0, link, kFine).flat();
  const Hosts participants = flat ? flat_hosts(size) : hosts;
  const Collective& between = schedules.front().layout().collective;
  ASSERT_EQ(schedules.size(), participants.size());
  std::vector<Bytes> host_inputs;
  for (const std::vector<Rank>& ranks : participants) {
    host_inputs.push_back(inside_before(collective, ranks, inputs, dtype, prescale));
  }
  const std::vector<Bytes> host_outputs = execute(schedules, host_inputs, output_bytes(between),
                                                  average, {.connection_bytes = 200, .seed = seed});
  const std::vector<Bytes> expected =
      expected_outputs(collective, inputs, {dtype, ReduceOp::kAverage, prescale / size});
  for (std::size_t h = 0; h < participants.size(); ++h) {
    std::size_t begin = 0;  // reducescatter: the host's parts lie in a row
    for (const Rank rank : participants[h]) {
      const Bytes& wanted = expected[static_cast<std::size_t>(rank)];
      const bool scatters = collective.kind == OpKind::kReducescatter;
      ASSERT_LE(begin + wanted.size(), host_outputs[h].size());
      EXPECT_TRUE(std::equal(wanted.begin(), wanted.end(),
                             host_outputs[h].begin() + static_cast<std::ptrdiff_t>(begin)))
          << op_kind_name(collective.kind) << ", rank " << rank << " of " << size << ", seed "
          << seed;
      if (scatters) begin += wanted.size();
    }
  }
}

TEST(HierarchicalPlan, AnyHostsGetWhatADirectComputationGives) {
  std::mt19937 random(5);
  for (std::uint32_t seed = 1; seed <= 60; ++seed) {
    std::vector<int> sizes(1 + random() % (seed % 10 == 0 ? 16 : 5));
    for (int& size : sizes) size = 1 + static_cast<int>(random() % 4);
    const Hosts hosts = hosts_of(sizes, seed % 3 == 0);
    const DType dtype = seed % 2 == 0 ? DType::kFloat32 : DType::kInt64;
    const LinkSpeed link = seed % 4 == 0 ? LinkSpeed{} : kRingLink;
    for (const OpKind kind : {OpKind::kAllreduce, OpKind::kReducescatter, OpKind::kBroadcast,
                              OpKind::kAllgather, OpKind::kAlltoall}) {
      Collective collective = {.kind = kind, .participants = rank_count(hosts)};
      if (kind == OpKind::kBroadcast) {
        collective.root = static_cast<Rank>(random() % static_cast<unsigned>(rank_count(hosts)));
      }
      if (kind == OpKind::kAllreduce || kind == OpKind::kBroadcast) {
        collective.payload_bytes = random() % 2500 * dtype_bytes(dtype);
      } else {
        collective.offsets = unequal_offsets(collective, dtype_bytes(dtype), 300, seed);
      }
      expect_correct_job(collective, hosts, link, dtype, seed);
    }
  }
}

TEST(HierarchicalPlan, EachLaneSendsItsShareAndAHostNoMoreForMoreRanks) {
  const Hosts hosts = hosts_of({4, 6, 4});
  const std::uint64_t payload = 64 * 8 * 3 * 10;
  const Collective allreduce = {.participants = 14, .payload_bytes = payload};
  std::map<Rank, std::uint64_t> sent;
  for (Rank rank = 0; rank < 14; ++rank) {
    const HierarchicalPlan plan(allreduce, hosts, rank, kRingLink, kFine);
    EXPECT_EQ(plan.lanes(), 4);
    ASSERT_EQ(plan.schedule().channels(), 8);
    for (int channel = 0; channel < 8; ++channel) {
      if (!plan.drives(channel)) continue;
      for (std::uint32_t i = 0; i < plan.schedule().steps(); ++i) {
        sent[rank] += plan.schedule().step(channel, i).send.piece.bytes;
      }
    }
  }
  const std::uint64_t host = 2 * (payload - payload / 3);
  const auto bytes_of = [&](Rank rank) { return sent.count(rank) == 1 ? sent[rank] : 0; };
  for (const Rank rank : {0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12, 13}) {
    EXPECT_EQ(bytes_of(rank), host / 4) << rank;
  }
  for (const Rank without_lane : {8, 9}) EXPECT_EQ(bytes_of(without_lane), 0u);
}

// On each directed pair of ranks and each stream, sends and receives fit one another.
TEST(HierarchicalPlan, RanksTalkToTheirOwnLane) {
  const Hosts hosts = hosts_of({3, 2, 5}, /*round_robin=*/true);
  const Collective allreduce = {.participants = 10, .payload_bytes = 5000};
  std::map<std::tuple<Rank, Rank, int>, std::vector<std::uint64_t>> sent, received;
  for (Rank rank = 0; rank < 10; ++rank) {
    const HierarchicalPlan plan(allreduce, hosts, rank, kRingLink, kFine);
    for (int channel = 0; channel < plan.schedule().channels(); ++channel) {
      if (!plan.drives(channel)) continue;
      for (std::uint32_t i = 0; i < plan.schedule().steps(); ++i) {
        const auto [send, receive] = plan.schedule().step(channel, i);
        const int stream = plan.stream(channel);
        if (send.piece.bytes > 0) {
          sent[{rank, plan.rank(send.to, channel), stream}].push_back(send.piece.bytes);
        }
        if (receive.piece.bytes > 0) {
          const Rank from = plan.rank(receive.from, channel);
          received[{from, rank, stream}].push_back(receive.piece.bytes);
        }
      }
    }
  }
  EXPECT_EQ(sent, received);
  EXPECT_EQ(sent.size(), 3u * 2u * 2u) << "hosts, lanes, streams";
}

TEST(HierarchicalPlan, AFlatRingPaysLatencyForEveryRank) {
  const Collective allreduce = {.participants = 12, .payload_bytes = 12'000};
  const Hosts hosts = hosts_of({4, 4, 4}), alone = flat_hosts(12);
  const HierarchicalPlan lanes(allreduce, hosts, 0, kRingLink);
  const HierarchicalPlan ring(allreduce, alone, 0, kRingLink);
  EXPECT_EQ(lanes.schedule().steps(), 4u);
  EXPECT_EQ(ring.schedule().steps(), 22u);
}

TEST(HierarchicalPlan, PartsThatDoNotLieInARowGoFlat) {
  const Hosts in_a_row = hosts_of({2, 2}), mixed = hosts_of({2, 2}, /*round_robin=*/true);
  const auto flat = [&](OpKind kind, const Hosts& hosts) {
    Collective collective = {.kind = kind, .participants = 4};
    collective.offsets = unequal_offsets(collective, 4, 10, 1);
    if (kind == OpKind::kAllreduce) collective.offsets.clear();
    return HierarchicalPlan(collective, hosts, 0, {}).flat();
  };
  EXPECT_FALSE(flat(OpKind::kAllgather, in_a_row));
  EXPECT_TRUE(flat(OpKind::kAllgather, mixed));
  EXPECT_TRUE(flat(OpKind::kReducescatter, mixed));
  EXPECT_FALSE(flat(OpKind::kAllreduce, mixed));
  EXPECT_TRUE(flat(OpKind::kAlltoall, in_a_row));
}

TEST(HierarchicalPlan, PrintsItsLanes) {
  const Hosts hosts = hosts_of({2, 3});
  const HierarchicalPlan plan({.participants = 5, .payload_bytes = 256}, hosts, 3, {},
                              {.channels = 1, .stripe_bytes_min = 64});
  EXPECT_EQ(to_string(plan), R"(2 lanes
channel 0: lane 0, stream 0, ranks 0 2
channel 1: lane 1, stream 0, ranks 1 3
allreduce, short, participant 1 of 2
0.0 | in[0,128) to 0, chunks>=1 | out[0,128) = from 0 + in[0,128), complete, sends>=1, chunks>=1
1.0 | in[128,256) to 0, chunks>=1 | out[128,256) = from 0 + in[128,256), complete, sends>=1, chunks>=1
)");
}

}  // namespace
}  // namespace ciranda
