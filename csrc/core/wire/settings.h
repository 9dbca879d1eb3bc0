#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/result.h"
#include "core/wire/types.h"

namespace ciranda {

// An input to decisions that every rank makes alone and that must agree on all ranks (I17). Each
// rank sends its settings when the ranks meet, all ranks in the same order.
struct Setting {
  std::string name;  // the environment variable, or init()'s argument
  std::string value;
};

// Returns one line "NAME=value" for each setting. Asserts at most kSettingsBytesMax bytes.
inline constexpr std::size_t kSettingsBytesMax = 512;
std::string to_text(const std::vector<Setting>& settings);

// Compares two texts of to_text(). Returns kInvalidArgument with the first setting in which `rank`
// differs from rank 0, and both values.
Status check_settings(Rank rank, std::string_view settings, std::string_view of_rank_0);

}  // namespace ciranda
