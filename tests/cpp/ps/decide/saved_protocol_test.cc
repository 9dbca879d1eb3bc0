// What could break: a state that is read as another one, or by a server that is not meant.
#include "core/ps/decide/saved_protocol.h"

#include <gtest/gtest.h>

#include <span>
#include <vector>

#include "ps/decide/models.h"

namespace ciranda::ps {
namespace {

using Bytes = std::vector<std::byte>;

SavedProtocol example() {
  SavedProtocol saved{
      .job_id = "job",
      .server = 1,
      .servers = 2,
      .members = {{.life = 3, .process = 9, .pushes = 4, .held_ns = 5},
                  {.life = 1, .process = 8, .left = true}},
      .works = {{.work = {.number = 1, .dots = {{.one = 1, .other = 0}}}, .dots = {2.5}}},
      .lost = 6,
      .model = testing::model_of({{40, 3}})};
  saved.coordinator = {.life = 2, .process = 7};
  Shard(saved.model, 2, 1, 2).save(saved.shard);
  return saved;
}

Bytes bytes_of(const SavedProtocol& saved) {
  Bytes bytes;
  encode(saved, bytes);
  return bytes;
}

TEST(SavedProtocol, IsDecodedAsItWasAndMakesItsShard) {
  const Bytes bytes = bytes_of(example());
  const auto decoded = decode_saved_protocol(bytes);
  ASSERT_TRUE(decoded.ok()) << decoded.error().text;
  const SavedProtocol& saved = decoded.value();
  EXPECT_EQ(saved.job_id, "job");
  ASSERT_EQ(saved.members.size(), 2u);
  EXPECT_EQ(saved.members[0].life, 3u);
  EXPECT_EQ(saved.members[0].held_ns, 5u);
  EXPECT_TRUE(saved.members[1].left);
  ASSERT_TRUE(saved.coordinator.has_value());
  EXPECT_EQ(saved.coordinator->process, 7u);
  ASSERT_EQ(saved.works.size(), 1u);
  EXPECT_EQ(saved.works[0].dots, std::vector<double>{2.5});
  EXPECT_EQ(saved.lost, 6u);
  EXPECT_EQ(saved.model, example().model);
  EXPECT_EQ(bytes_of(saved), bytes);
  const auto shard = make_shard(saved);
  ASSERT_TRUE(shard.ok()) << shard.error().text;
  EXPECT_EQ(shard.value()->pushes(0), 4u);
  EXPECT_TRUE(shard.value()->given());
}

TEST(SavedProtocol, WhatIsCutOffMakesNoShard) {
  const Bytes bytes = bytes_of(example());
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    const auto decoded = decode_saved_protocol(std::span(bytes).first(size));
    EXPECT_FALSE(decoded.ok() && make_shard(decoded.value()).ok()) << size;
  }
  Bytes other = bytes;
  other[0] = std::byte{99};
  EXPECT_EQ(decode_saved_protocol(other).error().code, ErrorCode::kMismatch);
}

TEST(SavedProtocol, OnlyTheServerThatWroteItContinues) {
  const SavedProtocol saved = example();
  const ServerProtocolOptions same{
      .job_id = "job", .server = 1, .servers = 2, .workers = 2, .has_coordinator = true};
  EXPECT_TRUE(check(saved, same).ok());
  ServerProtocolOptions options = same;
  options.job_id = "next";
  EXPECT_EQ(check(saved, options).error().text,
            "it belongs to job 'job', and this job is 'next'; give --resume to continue it");
  options.resumes = true;
  EXPECT_TRUE(check(saved, options).ok());
  options = same;
  options.server = 0;
  EXPECT_EQ(check(saved, options).error().text,
            "it belongs to server 1 of 2 with 2 workers, and this server is server 0 of 2 with 2");
  options = same;
  options.has_coordinator = false;
  EXPECT_EQ(check(saved, options).error().text,
            "it belongs to a job with a coordinator, and this job has none");
}

}  // namespace
}  // namespace ciranda::ps
