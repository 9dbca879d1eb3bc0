// What could break: a number that means two specs, or a cache that grows.
#include "core/negotiate/response_cache.h"

#include <gtest/gtest.h>

#include "negotiate/requests.h"

namespace ciranda {
namespace {

const std::shared_ptr<const Group> kCachesRanks = world_of(3);

class ResponseCacheTest : public ::testing::Test {
 protected:
  CacheId insert(ResponseCache& cache, const RequestSpec& spec) {
    NameEntry& name = names_.acquire(spec.name, spec.kind, kCachesRanks);
    const CacheId id = cache.insert(std::make_shared<const RequestSpec>(spec), name);
    names_.release(name);
    return id;
  }
  NameTable names_;
};

TEST_F(ResponseCacheTest, CountsItsNumbersUpFromOne) {
  ResponseCache cache(4, names_);
  EXPECT_EQ(insert(cache, allreduce("a")), 1u);
  EXPECT_EQ(insert(cache, allreduce("b")), 2u);
  EXPECT_EQ(cache.find(allreduce("a")), 1u);
  EXPECT_EQ(cache.find(allreduce("c")), kNoCacheId);
}

TEST_F(ResponseCacheTest, KeepsTheNumberOfAKnownSpec) {
  ResponseCache cache(4, names_);
  EXPECT_EQ(insert(cache, allreduce("a")), 1u);
  EXPECT_EQ(insert(cache, allreduce("a")), 1u);
  EXPECT_EQ(cache.size(), 1u);
}

TEST_F(ResponseCacheTest, TellsApartWhateverDiffers) {
  ResponseCache cache(32, names_);
  std::vector<RequestSpec> specs(15, allreduce("a"));
  specs[1].name = "b";
  specs[2].kind = OpKind::kReducescatter;
  specs[3].op = ReduceOp::kMax;
  specs[4].prescale = 2;
  specs[5].postscale = 2;
  specs[6].in_arena = true;
  specs[7].tensors[0].dtype = DType::kFloat64;
  specs[8].tensors[0].shape = {4, 3};
  specs[9].tensors.push_back({.shape = {}});
  specs[10].in_arena = true;
  specs[10].rule = "SGD lr=0.1";
  specs[11].wire_dtype = DType::kBFloat16;
  specs[12].backend = BackendId::kGloo;
  specs[13].tensors[0].user_dtype = UserDType::kFloat8E5M2;
  specs[14].streams = 2;
  for (std::size_t i = 0; i < specs.size(); ++i) EXPECT_EQ(insert(cache, specs[i]), i + 1);
  for (std::size_t i = 0; i < specs.size(); ++i) EXPECT_EQ(cache.find(specs[i]), i + 1);
}

TEST_F(ResponseCacheTest, EvictsWhatWasRenewedLongestAgo) {
  ResponseCache cache(3, names_);
  for (const char* name : {"a", "b", "c"}) insert(cache, allreduce(name));
  ASSERT_NE(cache.use(1), nullptr);               // by number
  ASSERT_NE(cache.use(allreduce("b")), nullptr);  // by spec
  insert(cache, allreduce("d"));
  EXPECT_EQ(cache.use(3), nullptr);
  EXPECT_EQ(cache.find(allreduce("c")), kNoCacheId);
  insert(cache, allreduce("a"));  // by running again
  insert(cache, allreduce("e"));
  EXPECT_EQ(cache.find(allreduce("b")), kNoCacheId);
  EXPECT_EQ(cache.find(allreduce("a")), 1u);
}

TEST_F(ResponseCacheTest, IsNotChangedByLookingUp) {
  ResponseCache cache(2, names_);
  insert(cache, allreduce("a"));
  insert(cache, allreduce("b"));
  EXPECT_EQ(cache.find(allreduce("a")), 1u);
  insert(cache, allreduce("c"));
  EXPECT_EQ(cache.find(allreduce("a")), kNoCacheId);
}

TEST_F(ResponseCacheTest, NeverUsesANumberAgain) {
  ResponseCache cache(1, names_);
  for (CacheId id = 1; id < 100; ++id) {
    EXPECT_EQ(insert(cache, allreduce(id % 2 == 0 ? "a" : "b")), id);
    EXPECT_EQ(cache.use(id - 1), nullptr);
    EXPECT_TRUE(cache.handed_out(id));
    EXPECT_FALSE(cache.handed_out(id + 1));
  }
  EXPECT_FALSE(cache.handed_out(kNoCacheId));
}

TEST_F(ResponseCacheTest, OfNoEntriesKnowsNothing) {
  ResponseCache cache(0, names_);
  EXPECT_EQ(insert(cache, allreduce("a")), kNoCacheId);
  EXPECT_EQ(cache.size(), 0u);
  EXPECT_EQ(names_.size(), 0u);
}

TEST_F(ResponseCacheTest, LetsGoOfTheNamesOfWhatItEvicts) {
  {
    ResponseCache cache(2, names_);
    for (int i = 0; i < 10; ++i) insert(cache, allreduce(std::to_string(i)));
    EXPECT_EQ(names_.size(), 2u);
  }
  EXPECT_EQ(names_.size(), 0u);
}

TEST_F(ResponseCacheTest, ForgetsARemovedGroupAndNothingElse) {
  ResponseCache cache(8, names_);
  RequestSpec in_group = allreduce("w");
  in_group.group = 4;
  const CacheId world = insert(cache, allreduce("w"));
  const CacheId group = insert(cache, in_group);
  EXPECT_NE(world, group);
  cache.evict_group(4);
  EXPECT_EQ(cache.find(in_group), kNoCacheId);
  EXPECT_EQ(cache.find(group), nullptr);
  EXPECT_TRUE(cache.handed_out(group));
  EXPECT_EQ(cache.find(allreduce("w")), world);
  EXPECT_GT(insert(cache, in_group), group);
}

}  // namespace
}  // namespace ciranda
