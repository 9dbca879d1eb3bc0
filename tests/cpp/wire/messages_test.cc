// What could break: a frame that arrives as another one, or bytes that take a rank down.
#include "core/wire/messages.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "core/wire/pair.h"
#include "core/wire/request_check.h"
#include "sanitizers.h"

namespace ciranda {
namespace {

std::vector<std::byte> encoded(const Frame& frame) {
  std::vector<std::byte> out;
  encode(frame, out);
  return out;
}

// Random, but within the rules.
class Maker {
 public:
  explicit Maker(std::uint64_t seed) : engine_(seed) {}

  std::uint64_t below(std::uint64_t bound) { return engine_() % bound; }

  Frame frame() {
    Frame frame;
    if (below(20) == 0) return {.kind = FrameKind::kLeave};
    if (below(4) == 0) return ready();
    for (std::uint64_t n = below(6); n > 0; --n) frame.requests.push_back(request());
    return frame;
  }

  Frame ready() {
    Frame frame{.kind = FrameKind::kReady, .host = static_cast<int>(below(100)) - 1};
    for (std::uint64_t n = below(6); n > 0; --n) {
      ReadyOp& op = frame.ready.emplace_back();
      op.op = {1 + static_cast<CacheId>(wide() % 0xffffffffu), static_cast<std::uint32_t>(wide())};
      for (std::uint64_t m = below(5); m > 0; --m) {
        op.contributions.push_back({.token = static_cast<std::uint32_t>(wide()),
                                    .arena = {static_cast<std::uint32_t>(wide()), wide()}});
      }
      if (below(2) == 0) continue;
      for (std::size_t m = 0; m < op.contributions.size(); ++m)
        op.local_ranks.push_back(static_cast<int>(m * 50 + below(50)));
    }
    return frame;
  }

  Request request() {
    Request request;
    if (below(2) == 0) {
      request.cache_id = 1 + static_cast<CacheId>(wide() % 0xffffffffu);
    } else {
      request.spec = spec();
    }
    if (below(3) == 0) request.occurrence = static_cast<std::uint32_t>(wide());
    request.contribution.token = static_cast<std::uint32_t>(wide());
    if (below(3) == 0) request.contribution.arena = {static_cast<std::uint32_t>(wide()), wide()};
    if (below(3) == 0)
      for (std::uint64_t n = below(9); n > 0; --n)
        request.contribution.rows.push_back(static_cast<std::int64_t>(wide() % kTensorBytesMax));
    if (!request.contribution.rows.empty() && below(2) == 0)
      request.contribution.digest.emplace().fill(static_cast<std::byte>(wide()));
    for (std::uint64_t n = below(2) == 0 ? below(kInlineBytesMax + 1) : 0; n > 0; --n)
      request.contribution.inline_data.push_back(static_cast<std::byte>(wide()));
    return request;
  }

  RequestSpec spec() {
    RequestSpec spec{.kind = static_cast<OpKind>(below(kOpKindCount))};
    if (spec.kind == OpKind::kAddGroup)
      for (Rank rank = -1; (rank += 1 + static_cast<Rank>(below(99))) < kRanksMax;)
        spec.members.push_back(rank);
    if (spec.kind == OpKind::kRemoveGroup)
      spec.removes = 1 + static_cast<GroupId>(wide() % 0xffffffffu);
    if (is_membership(spec.kind)) return spec;
    spec.name.assign(below(kNameBytesMax + 1), static_cast<char>('a' + below(26)));
    if (below(3) == 0) spec.group = static_cast<GroupId>(wide());
    if (reduces(spec.kind)) {
      spec.op = static_cast<ReduceOp>(below(kElementwiseOpCount));
      spec.prescale = static_cast<double>(below(7)) - 3;
      spec.postscale = 1.0 / static_cast<double>(1 + below(7));
    }
    if (facts_of(spec.kind).has_root) spec.root = static_cast<Rank>(below(kRanksMax));
    if (spec.kind == OpKind::kSend)
      spec.group = pair_id({.from = spec.root, .to = static_cast<Rank>(below(kRanksMax))});
    spec.in_arena = spec.kind == OpKind::kAllreduce && below(2) == 0;
    if (spec.in_arena && below(2) == 0) spec.rule = std::string(below(kRuleBytesMax + 1), 'r');
    if (spec.kind == OpKind::kBarrier) return spec;
    spec.backend = static_cast<BackendId>(below(spec.in_arena ? 2 : kBackendCount));
    const bool is_one = facts_of(spec.kind).tensors == TensorCount::kOne;
    const std::uint64_t tensors = is_one ? 1 : 1 + below(4);
    for (std::uint64_t i = 0; i < tensors; ++i) {
      TensorSpec tensor{.dtype = static_cast<DType>(below(kDTypeCount))};
      if (reduces(spec.kind) && is_float8(tensor.dtype)) tensor.dtype = DType::kInt8;
      if (spec.in_arena && i > 0) tensor.dtype = spec.tensors.front().dtype;
      if (below(3) == 0) tensor.user_dtype = static_cast<UserDType>(below(kUserDTypeCount));
      if (takes_rows(spec.kind)) tensor.shape.push_back(kAnyRows);
      for (std::uint64_t n = below(5); n > 0; --n)
        tensor.shape.push_back(static_cast<std::int64_t>(below(200)));
      if (spec.kind == OpKind::kReducescatter && tensor.shape.empty()) tensor.shape.push_back(1);
      if (travels_in_pairs(tensor.user_dtype, tensor.dtype)) tensor.shape.push_back(2);
      if (spec.in_arena) spec.arena_bytes += tensor_bytes(tensor) + 8 * below(3);
      spec.tensors.push_back(std::move(tensor));
    }
    const bool is_float32 = std::ranges::all_of(
        spec.tensors, [](const TensorSpec& tensor) { return tensor.dtype == DType::kFloat32; });
    const bool adds = spec.op == ReduceOp::kSum || spec.op == ReduceOp::kAverage;
    const bool is_native = spec.backend == BackendId::kNative;
    if (spec.kind == OpKind::kAllreduce && adds && is_float32 && is_native && below(2) == 0)
      spec.wire_dtype = below(2) == 0 ? DType::kFloat16 : DType::kBFloat16;
    if (spec.kind == OpKind::kAllreduce && is_native && below(2) == 0)
      spec.streams = static_cast<std::uint8_t>(below(kPairStreamsMax + 1));
    return spec;
  }

 private:
  // Of every length, not mostly long ones.
  std::uint64_t wide() { return engine_() >> below(64); }

  std::mt19937_64 engine_;
};

TEST(Frame, ComesBackAsItWasSent) {
  Maker maker(1);
  Frame used;  // decoded into again and again
  for (int i = 0; i < 20'000; ++i) {
    const Frame frame = maker.frame();
    const auto bytes = encoded(frame);
    const Result<Frame> fresh = decode_frame(bytes);
    ASSERT_TRUE(fresh.ok()) << fresh.error().text;
    ASSERT_EQ(fresh.value(), frame) << "frame " << i;
    ASSERT_TRUE(decode_frame(bytes, used).ok());
    ASSERT_EQ(used, frame) << "frame " << i;
  }
}

TEST(Frame, TakesTheBytesThatItsRequestsPromise) {
  Maker maker(2);
  for (int i = 0; i < 5'000; ++i) {
    const Frame frame = maker.frame();
    if (frame.kind == FrameKind::kLeave) continue;
    // Kind, and a number of requests below 128; the host, of which there are fewer too.
    std::size_t sum = frame.kind == FrameKind::kReady ? 3 : 2;
    for (const Request& request : frame.requests) sum += encoded_bytes(request);
    for (const ReadyOp& ready : frame.ready) sum += encoded_bytes(ready);
    ASSERT_EQ(encoded(frame).size(), sum);
  }
}

TEST(Frame, IsMalformedWhereverItIsCutOff) {
  Maker maker(3);
  for (int i = 0; i < 300; ++i) {
    const auto bytes = encoded(maker.frame());
    for (std::size_t length = 0; length < bytes.size(); ++length) {
      const auto result = decode_frame(std::span(bytes).first(length));
      ASSERT_FALSE(result.ok()) << "frame " << i << " cut at " << length;
      ASSERT_EQ(result.error().code, ErrorCode::kMalformed);
      ASSERT_NE(result.error().text.find(" at byte "), std::string::npos);
    }
  }
}

// Whatever is accepted is exactly what an encoder would have sent: no two byte strings mean the
// same, and nothing that check_limits refuses gets in.
TEST(Frame, AcceptsOnlyWhatAnEncoderSends) {
  Maker maker(4);
  int accepted = 0;
  for (std::uint32_t i = 0; i < testing::tries(200'000); ++i) {
    auto bytes = encoded(maker.frame());
    for (std::uint64_t n = 1 + maker.below(3); n > 0; --n) {
      const std::size_t at = maker.below(bytes.size());
      switch (maker.below(4)) {
        case 0:
          bytes[at] = static_cast<std::byte>(maker.below(256));
          break;
        case 1:
          bytes[at] ^= static_cast<std::byte>(1u << maker.below(8));
          break;
        case 2:
          bytes.insert(bytes.begin() + static_cast<std::ptrdiff_t>(at), std::byte{0x80});
          break;
        default:
          if (bytes.size() > 1) bytes.erase(bytes.begin() + static_cast<std::ptrdiff_t>(at));
      }
    }
    const auto result = decode_frame(bytes);
    if (!result.ok()) continue;
    ++accepted;
    ASSERT_EQ(encoded(result.value()), bytes) << "mutation " << i;
    for (const Request& request : result.value().requests) {
      if (!request.spec) continue;
      ASSERT_TRUE(check_limits(*request.spec, request.contribution).ok());
    }
  }
  EXPECT_GT(accepted, 1'000);  // else it proves nothing
}

TEST(Frame, SurvivesRandomBytes) {
  Maker maker(5);
  std::vector<std::byte> bytes;
  for (int i = 0; i < 200'000; ++i) {
    bytes.resize(maker.below(64));
    for (std::byte& byte : bytes)
      byte = static_cast<std::byte>(maker.below(maker.below(2) ? 256 : 4));
    const auto result = decode_frame(bytes);
    if (!result.ok()) continue;
    ASSERT_EQ(encoded(result.value()), bytes);
  }
}

TEST(Frame, NamesFieldAndOffsetOfAFault) {
  auto bytes = encoded({.requests = {{.cache_id = 7, .contribution = {.arena = {1, 300}}}}});
  bytes.pop_back();
  EXPECT_EQ(decode_frame(bytes).error().text, "request.offset at byte 6 is cut off");
  bytes = encoded({.kind = FrameKind::kLeave});
  bytes.push_back(std::byte{0});
  EXPECT_EQ(decode_frame(bytes).error().text, "frame at byte 1 goes on after its end");
}

TEST(Frame, AboveTheLimitIsRefusedUnread) {
  const std::vector<std::byte> bytes(kFrameBytesMax + 1);
  EXPECT_FALSE(decode_frame(bytes).ok());
}

TEST(Frame, LooksLikeTheExampleInTheDocs) {
  const int expected[] = {0x00, 0x01, 0x00, 0x07, 0xac, 0x02};  // docs/protocol.md
  const auto bytes = encoded({.requests = {{.cache_id = 7, .contribution = {.token = 300}}}});
  ASSERT_EQ(bytes.size(), std::size(expected));
  for (std::size_t i = 0; i < bytes.size(); ++i) EXPECT_EQ(static_cast<int>(bytes[i]), expected[i]);
}

TEST(Frame, OfAKnownRequestTakesFiveBytes) {
  EXPECT_EQ(encoded({.requests = {{.cache_id = 100, .contribution = {.token = 100}}}}).size(), 5u);
}

TEST(TensorSpec, PrintsDtypeAndSizes) {
  EXPECT_EQ(to_string({.dtype = DType::kFloat32, .shape = {3, 4}}), "float32 [3, 4]");
  EXPECT_EQ(to_string({.dtype = DType::kBFloat16, .shape = {kAnyRows, 4}}), "bfloat16 [*, 4]");
  EXPECT_EQ(to_string({.dtype = DType::kInt64}), "int64 []");
}

TEST(TensorSpec, PrintsWhatItsUserHas) {
  const auto printed = [](DType dtype, UserDType user, Shape shape) {
    return to_string({.dtype = dtype, .shape = std::move(shape), .user_dtype = user});
  };
  EXPECT_EQ(printed(DType::kInt32, UserDType::kInt16, {3, 2}), "int16 [3, 2]");
  EXPECT_EQ(printed(DType::kFloat32, UserDType::kComplex64, {3, 2}), "complex64 [3]");
  EXPECT_EQ(printed(DType::kFloat16, UserDType::kComplex32, {2}), "complex32 []");
  // Their bytes, moved: a complex128 takes two numbers of 8 bytes, the others one.
  EXPECT_EQ(printed(DType::kInt64, UserDType::kComplex128, {3, 2}), "complex128 [3]");
  EXPECT_EQ(printed(DType::kInt64, UserDType::kComplex64, {3, 2}), "complex64 [3, 2]");
}

TEST(ElementCount, OfEveryKindOfShape) {
  EXPECT_EQ(element_count({}), 1);
  EXPECT_EQ(element_count({3, 4}), 12);
  EXPECT_EQ(element_count({3, 0, 4}), 0);
  EXPECT_EQ(element_count({std::int64_t{1} << 40, std::int64_t{1} << 40, 0}), 0);
  EXPECT_EQ(element_count({kAnyRows, 4}), 4);
}

TEST(Frame, OfAKnownRequestCostsNothingForItsGroup) {
  Request request{.spec = RequestSpec{.name = "w", .tensors = {{.shape = {3, 4}}}},
                  .contribution = {.token = 100}};
  const std::size_t of_world = encoded_bytes(request);
  request.spec->group = 300;
  EXPECT_EQ(encoded_bytes(request), of_world + 1);
  request = {.cache_id = 100, .contribution = {.token = 100}};
  EXPECT_EQ(encoded_bytes(request), 3u);
}

TEST(Frame, RefusesMembersBeyondTheLastRank) {
  RequestSpec add{.kind = OpKind::kAddGroup, .members = {0, kRanksMax - 1}};
  auto bytes = encoded({.requests = {{.spec = add, .contribution = {.token = 1}}}});
  ASSERT_TRUE(decode_frame(bytes).ok());
  // The gap before the last member, two bytes before the token.
  ASSERT_EQ(bytes[bytes.size() - 3], std::byte{0xfe});
  bytes[bytes.size() - 3] = std::byte{0xff};
  EXPECT_NE(decode_frame(bytes).error().text.find("spec.members"), std::string::npos);
}

TEST(FrameDeathTest, OfARequestWithNeitherNumberNorSpecIsNotEncoded) {
  const Frame frame{.requests = {{}}};
  std::vector<std::byte> out;
  EXPECT_DEATH(encode(frame, out), "broken invariant");
}

}  // namespace
}  // namespace ciranda
