#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "core/ps/decide/journal.h"
#include "core/ps/decide/server_protocol.h"

namespace ciranda::ps::testing {

// What a server keeps, should it be killed: as it was, and its changes since.
class Kept final : public Journal {
 public:
  explicit Kept(ServerProtocol& protocol) {
    protocol.save(saved_);
    for (const auto& array : protocol.arrays()) arrays_.emplace_back(array.begin(), array.end());
    protocol.keep_journal(this);
  }
  void write(const Change& change, const Data& data) override {
    std::vector<std::byte> all;
    for (const auto& piece : data) all.insert(all.end(), piece.begin(), piece.end());
    changes_.emplace_back(change, std::move(all));
  }
  // `protocol` is new.
  Status make_again(ServerProtocol& protocol, std::uint64_t now, bool with_changes = true) const {
    CIRANDA_TRY(protocol.restore(saved_, now));
    const Shard::Arrays arrays = protocol.arrays();
    for (std::size_t i = 0; i < arrays.size(); ++i) {
      std::copy(arrays_[i].begin(), arrays_[i].end(), arrays[i].begin());
    }
    if (!with_changes) return {};
    for (const auto& [change, data] : changes_) CIRANDA_TRY(protocol.repeat(change, data));
    return {};
  }
  const std::vector<std::byte>& saved() const { return saved_; }

 private:
  std::vector<std::byte> saved_;
  std::vector<std::vector<std::byte>> arrays_;
  std::vector<std::pair<Change, std::vector<std::byte>>> changes_;
};

}  // namespace ciranda::ps::testing
