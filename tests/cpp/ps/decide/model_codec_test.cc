// What could break: a model that comes back otherwise, or bytes of a stranger that are believed.
#include "core/ps/decide/model_codec.h"

#include <gtest/gtest.h>

#include <span>
#include <vector>

#include "ps/decide/models.h"

namespace ciranda::ps {
namespace {

using testing::model_of;

std::vector<std::byte> bytes_of(const Model& model) {
  std::vector<std::byte> bytes;
  encode(model, bytes);
  return bytes;
}

TEST(ModelCodec, AModelComesBackAndIsChecked) {
  Model model = model_of({{3, 0, 5}, {1 << 20}}, {.kind = ModeKind::kSync, .backup_workers = 2});
  model.tables[1].dtype = DType::kBFloat16;
  model.tables[0].slots[0].shape = {};
  model.row_tables = {{.name = "words",
                       .rows = std::uint64_t{1} << 33,
                       .columns = 64,
                       .rule = {.kind = kernels::RuleKind::kAdagrad},
                       .deviation = 0.25,
                       .seed = 1ull << 60}};
  model.tables[0].rule = {.kind = kernels::RuleKind::kRmsprop, .momentum = 0.5, .centered = true};
  std::vector<std::byte> bytes = bytes_of(model);
  const auto decoded = decode_model(bytes);
  ASSERT_TRUE(decoded.ok()) << decoded.error().text;
  EXPECT_EQ(decoded.value(), model);
  for (std::size_t cut = 0; cut < bytes.size(); ++cut) {
    EXPECT_FALSE(decode_model(std::span(bytes).first(cut)).ok()) << cut;
  }
  model.tables[0].slots[1].name = model.tables[0].slots[0].name;
  const auto refused = decode_model(bytes_of(model));
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace ciranda::ps
