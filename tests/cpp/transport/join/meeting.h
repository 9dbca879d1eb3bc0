#pragma once

#include <gtest/gtest.h>

#include <array>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/transport/join/elastic_join.h"
#include "core/transport/join/remote_mesh.h"

namespace ciranda::testing {

inline Secret test_key(std::byte fill = std::byte{7}) {
  std::array<std::byte, Secret::kBytes> bytes;
  bytes.fill(fill);
  return std::move(Secret::take(bytes)).value();
}

inline std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

// Every rank of several hosts, as if each host were this one: they meet on 127.0.0.1.
inline std::vector<RemoteJoin> joins(const std::vector<int>& ranks_of_hosts, int streams = 1,
                                     std::uint64_t timeout_ms = 20'000, bool tls = false) {
  Fd listener = std::move(listen_tcp("127.0.0.1")).value();
  const Endpoint rendezvous = local_address(listener.get()).value().endpoint();
  int size = 0;
  for (const int ranks : ranks_of_hosts) size += ranks;
  std::vector<RemoteJoin> all;
  for (std::size_t host = 0; host < ranks_of_hosts.size(); ++host) {
    for (int local = 0; local < ranks_of_hosts[host]; ++local) {
      all.push_back({.self = {.rank = static_cast<Rank>(all.size()),
                              .size = size,
                              .host = static_cast<std::int32_t>(host),
                              .hosts = static_cast<std::int32_t>(ranks_of_hosts.size()),
                              .local_rank = local,
                              .local_size = ranks_of_hosts[host]},
                     .job_id = "test",
                     .rendezvous = rendezvous,
                     .addresses = {"127.0.0.1"},
                     .streams = streams,
                     .tls = tls,
                     .timeout_ms = timeout_ms});
    }
  }
  all[0].listener = std::move(listener);
  return all;
}

// What connects the ranks of each of these hosts; by rank.
inline std::vector<LocalMesh> inside(const std::vector<int>& ranks_of_hosts) {
  std::vector<LocalMesh> locals;
  for (const int ranks : ranks_of_hosts) {
    auto host = make_loopback(ranks);
    EXPECT_TRUE(host.ok());
    for (LocalMesh& mesh : host.value()) locals.push_back(std::move(mesh));
  }
  return locals;
}

// Each in a thread of its own; by rank.
inline std::vector<Result<RemoteMesh>> meet(std::vector<RemoteJoin> joins,
                                            const std::vector<LocalMesh>& locals,
                                            const ElasticJoin& elastic = {}) {
  std::vector<Result<RemoteMesh>> results;
  for (std::size_t i = 0; i < joins.size(); ++i) results.emplace_back(Error{});
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < joins.size(); ++i) {
    threads.emplace_back([&results, &locals, i, elastic, join = std::move(joins[i])]() mutable {
      results[i] = join_remote_unless(elastic, std::move(join), locals[i], test_key());
    });
  }
  for (std::thread& thread : threads) thread.join();
  return results;
}

struct Met {
  std::vector<LocalMesh> locals;
  std::vector<RemoteMesh> remotes;
};
inline Met met(const std::vector<int>& ranks_of_hosts, int streams = 1,
               std::uint64_t timeout_ms = 20'000, bool tls = false) {
  Met met{.locals = inside(ranks_of_hosts), .remotes = {}};
  for (auto& result : meet(joins(ranks_of_hosts, streams, timeout_ms, tls), met.locals)) {
    EXPECT_TRUE(result.ok()) << result.error().text;
    met.remotes.push_back(std::move(result).value());
  }
  return met;
}

}  // namespace ciranda::testing
