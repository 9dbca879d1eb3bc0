// What could break: a spec that comes back as another one, or takes more bytes than were counted.
// messages_test has random ones within frames.
#include "core/wire/spec_codec.h"

#include <gtest/gtest.h>

#include <span>
#include <vector>

#include "core/wire/pair.h"

namespace ciranda {
namespace {

const RequestSpec kSpecs[] = {
    {.name = "x", .tensors = {{.shape = {3, 4}}, {.dtype = DType::kInt8, .shape = {}}}},
    {.name = "pairs",
     .tensors = {{.shape = {3, 2}, .user_dtype = UserDType::kComplex64},
                 {.dtype = DType::kInt32, .shape = {3}, .user_dtype = UserDType::kInt16}}},
    {.name = "rows", .kind = OpKind::kAllgather, .group = 7, .tensors = {{.shape = {kAnyRows, 2}}}},
    {.name = "",
     .kind = OpKind::kSend,
     .group = pair_id({.from = 5, .to = 1}),
     .root = 5,
     .tensors = {{.shape = {1}}}},
    {.name = "bucket",
     .in_arena = true,
     .arena_bytes = 64,
     .streams = 3,
     .rule = "SGD lr=0.1",
     .tensors = {{.shape = {9}}}},
    {.kind = OpKind::kAddGroup, .members = {0, 1, 9, 4000}},
    {.kind = OpKind::kRemoveGroup, .removes = 12},
};

TEST(SpecCodec, GivesBackWhatWasWrittenInAsManyBytesAsCounted) {
  for (const RequestSpec& spec : kSpecs) {
    std::vector<std::byte> bytes;
    Writer out(bytes);
    write_spec(out, spec);
    EXPECT_EQ(bytes.size(), spec_bytes(spec)) << spec.name;
    Reader in(bytes);
    RequestSpec read;
    read_spec(in, read);
    EXPECT_TRUE(in.ok()) << in.error().text;
    EXPECT_EQ(read, spec);
    EXPECT_EQ(in.remaining(), 0u);
  }
}

TEST(SpecCodec, RefusesWhatIsCutOff) {
  for (const RequestSpec& spec : kSpecs) {
    std::vector<std::byte> bytes;
    Writer out(bytes);
    write_spec(out, spec);
    for (std::size_t size = 0; size < bytes.size(); ++size) {
      Reader in(std::span<const std::byte>(bytes).first(size));
      RequestSpec read;
      read_spec(in, read);
      EXPECT_FALSE(in.ok()) << spec.name << " cut to " << size;
    }
  }
}

}  // namespace
}  // namespace ciranda
