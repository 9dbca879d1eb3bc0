#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/result.h"
#include "core/wire/types.h"

namespace ciranda {

// What takes part in decisions that every rank makes by itself, and all must make alike. Each rank
// tells its own when the ranks meet, in one order.
struct Setting {
  std::string name;  // of the environment variable, or of init()'s argument
  std::string value;
};

// One line "NAME=value" each. At most kSettingsBytesMax bytes, asserted.
inline constexpr std::size_t kSettingsBytesMax = 512;
std::string to_text(const std::vector<Setting>& settings);

// kInvalidArgument names the first setting of `rank` that rank 0 has not, or has otherwise, and
// both values; both as to_text() gives them.
Status check_settings(Rank rank, std::string_view settings, std::string_view of_rank_0);

}  // namespace ciranda
