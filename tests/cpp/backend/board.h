#pragma once

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/backend/registry.h"

namespace ciranda::testing {

// The Exchanges between backends that one thread drives: one is done when all ranks have said
// something under its name.
class Board {
 public:
  explicit Board(int size) : size_(size) {}

  BackendContext context(Rank rank) {
    BackendContext context{.rank = rank, .size = size_};
    context.exchange = [this, rank](const std::string& name, std::vector<std::byte> mine) {
      ByRank& said = said_[name];
      EXPECT_TRUE(said.emplace(rank, std::move(mine)).second) << name << " twice";
      return std::make_unique<Said>(said, static_cast<std::size_t>(size_));
    };
    return context;
  }

 private:
  using ByRank = std::map<Rank, std::vector<std::byte>>;
  class Said final : public Exchange {
   public:
    Said(const ByRank& said, std::size_t size) : said_(said), size_(size) {}
    bool done() const override { return said_.size() == size_; }
    Result<std::vector<std::vector<std::byte>>> result() const override {
      std::vector<std::vector<std::byte>> parts;
      for (const auto& [rank, part] : said_) parts.push_back(part);
      return parts;
    }

   private:
    const ByRank& said_;
    const std::size_t size_;
  };

  const int size_;
  std::map<std::string, ByRank> said_;
};

}  // namespace ciranda::testing
