// What could break: an unnamed operation that is taken for a named one, an error that does not say
// which operation it is about.
#include "core/wire/operation_name.h"

#include <gtest/gtest.h>

namespace ciranda {
namespace {

TEST(OperationName, TheNameOfUnnamedOperationsIsKnownForTheirKindAlone) {
  EXPECT_EQ(unnamed(OpKind::kAllgather), "allgather.noname");
  const std::string name = unnamed(OpKind::kAllgather);
  EXPECT_TRUE(is_unnamed({.name = name, .kind = OpKind::kAllgather}));
  EXPECT_FALSE(is_unnamed({.name = name, .kind = OpKind::kAllreduce}));
  EXPECT_FALSE(is_unnamed({.name = name + ".noname", .kind = OpKind::kAllgather}));
}

TEST(OperationName, AJoinHasNone) {
  EXPECT_TRUE(is_unnamed({.kind = OpKind::kJoin}));
}

TEST(OperationName, AnErrorNamesTheOperationAndItsTensor) {
  const Error why{.code = ErrorCode::kMismatch, .text = "shapes differ"};
  const Error error = about(why, {.name = "grad", .kind = OpKind::kAllreduce});
  EXPECT_EQ(error.text, "allreduce 'grad': shapes differ");
  EXPECT_EQ(error.tensor, "grad");
  EXPECT_EQ(error.code, ErrorCode::kMismatch);
}

TEST(OperationName, WithoutANameTheKindIsNamedAlone) {
  EXPECT_EQ(describe({.name = "", .kind = OpKind::kBarrier}), "barrier");
}

}  // namespace
}  // namespace ciranda
