// What could break: a model that servers cannot hold is taken, or a difference has no words.
#include "core/ps/decide/model.h"

#include <gtest/gtest.h>

#include "ps/decide/models.h"

namespace ciranda::ps {
namespace {

using testing::model_of;

std::string refusal(const Model& model) {
  const Status status = check(model);
  return status.ok() ? "" : status.error().text;
}

TEST(Model, WhatServersCannotHoldIsRefusedByName) {
  EXPECT_EQ(refusal(model_of({{3, 0}, {5}})), "");
  EXPECT_NE(refusal({}), "");
  EXPECT_EQ(refusal(model_of({{0}})), "the parameters have no elements");

  Model model = model_of({{3, 4}});
  model.tables[0].slots[1].name = "p0";
  EXPECT_EQ(refusal(model), "parameter 'p0' is listed twice");

  model = model_of({{3}});
  model.tables[0].dtype = DType::kInt64;
  EXPECT_EQ(refusal(model), "servers cannot update parameters of int64");

  for (const Shape& shape : {Shape{-1}, Shape{kElementsMax + 1}, Shape{1ll << 40, 1ll << 40, 0, 3},
                             Shape{1ll << 30, 1ll << 30}, Shape(kDimsMax + 1, 1)}) {
    model = model_of({{3}});
    model.tables[0].slots[0].shape = shape;
    const bool empty = shape.size() == 4;
    EXPECT_EQ(refusal(model), empty ? "the parameters have no elements"
                                    : "parameter 'p0' is too large for servers");
  }
  model = model_of({{kElementsMax, 1}});
  EXPECT_EQ(refusal(model), "parameter 'p1' is too large for servers");

  model = model_of(std::vector<std::vector<std::int64_t>>(kTablesMax + 1, {1}));
  EXPECT_NE(refusal(model), "");
}

TEST(Model, DifferencesAreSaidInWords) {
  const Model ours = model_of({{3, 4}});
  const auto differs = [&](auto change) {
    Model other = ours;
    change(other);
    return difference(ours, other);
  };
  EXPECT_EQ(differs([](Model&) {}), "");
  EXPECT_EQ(differs([](Model& other) { other.tables[0].rule.lr = 0.5; }), "");
  EXPECT_EQ(differs([](Model& other) { other.mode = {.kind = ModeKind::kSsp, .staleness = 3}; }),
            "the mode is SSP(3) instead of Async(policy=apply)");
  EXPECT_EQ(differs([](Model& other) {
              other.mode = {.policy = StalePolicy::kDrop, .max_staleness = 4};
            }),
            "the mode is Async(policy=drop, max_staleness=4) instead of Async(policy=apply)");
  EXPECT_EQ(
      differs([](Model& other) { other.mode = {.kind = ModeKind::kSync, .backup_workers = 1}; }),
      "the mode is Sync(backup_workers=1) instead of Async(policy=apply)");
  EXPECT_EQ(differs([](Model& other) { other.tables.push_back(other.tables[0]); }),
            "parameters of 2 combinations of dtype and update rule instead of 1");
  EXPECT_EQ(differs([](Model& other) { other.tables[0].dtype = DType::kFloat64; }),
            "parameters of float64 instead of float32");
  EXPECT_EQ(differs([](Model& other) { other.tables[0].rule.momentum = 0.5; }),
            "");  // which a worker may begin at any time
  EXPECT_EQ(differs([](Model& other) { other.tables[0].rule.kind = kernels::RuleKind::kAdam; }),
            "the optimizer is Adam with exp_avg and exp_avg_sq instead of SGD");
  EXPECT_EQ(differs([](Model& other) { other.tables[0].slots.pop_back(); }),
            "1 parameters instead of 2");
  EXPECT_EQ(differs([](Model& other) { other.tables[0].slots[1].name = "q"; }),
            "parameter 'q' instead of 'p1'");
  EXPECT_EQ(differs([](Model& other) {
              other.tables[0].slots[1].shape = {2, 2};
            }),
            "parameter 'p1' is [2, 2] instead of [4]");
}

TEST(Model, RulesOfOneKindMayNeedOtherState) {
  const kernels::UpdateRule adam{.kind = kernels::RuleKind::kAdam};
  kernels::UpdateRule other = adam;
  other.lr = 5.0;
  EXPECT_TRUE(has_state_for(other, adam));
  other.amsgrad = true;
  EXPECT_FALSE(has_state_for(other, adam));
  EXPECT_TRUE(has_state_for(adam, other));
  other = {.kind = kernels::RuleKind::kAdamW};
  EXPECT_FALSE(has_state_for(other, adam));
  const kernels::UpdateRule plain{.kind = kernels::RuleKind::kSgd};
  EXPECT_TRUE(has_state_for({.kind = plain.kind, .momentum = 0.9}, plain));
}

TEST(PsModel, ATableOfRowsMustNotKeepTime) {
  const auto with = [](auto change) {
    Model model = testing::model_of({{3}});
    model.row_tables = {{.name = "words", .rows = 10, .columns = 2, .rule = testing::exact_rule()}};
    change(model.row_tables[0]);
    return model;
  };
  const Model good = with([](RowTable&) {});
  EXPECT_TRUE(check(good).ok());
  for (const Model& bad :
       {with([](RowTable& table) { table.rows = 0; }),
        with([](RowTable& table) { table.rows = kRowsMax + 1; }),
        with([](RowTable& table) { table.columns = 0; }),
        with([](RowTable& table) { table.name = "p0"; }),
        with([](RowTable& table) { table.rule.kind = kernels::RuleKind::kAdam; }),
        with([](RowTable& table) { table.rule.momentum = 0.5; }),
        with([](RowTable& table) { table.rule.weight_decay = 0.1; })}) {
    EXPECT_EQ(check(bad).error().code, ErrorCode::kInvalidArgument);
  }
  EXPECT_EQ(difference(good, with([](RowTable& table) { table.rule.lr = 9.0; })), "");
  EXPECT_EQ(difference(good, with([](RowTable& table) { table.seed = 9; })),
            "the table 'words' differs from the table 'words'");
  EXPECT_EQ(difference(good, testing::model_of({{3}})), "0 tables of rows instead of 1");
}

}  // namespace
}  // namespace ciranda::ps
