#include "core/wire/settings.h"

#include "core/base/assert.h"

namespace ciranda {
namespace {

std::string_view next_line(std::string_view& text) {
  const std::string_view line = text.substr(0, text.find('\n'));
  text.remove_prefix(std::min(line.size() + 1, text.size()));
  return line;
}

}  // namespace

std::string to_text(const std::vector<Setting>& settings) {
  std::string text;
  for (const Setting& setting : settings) text += setting.name + "=" + setting.value + "\n";
  CIRANDA_ASSERT(text.size() <= kSettingsBytesMax);
  return text;
}

Status check_settings(Rank rank, std::string_view settings, std::string_view of_rank_0) {
  while (!settings.empty() || !of_rank_0.empty()) {
    const std::string_view line = next_line(settings);
    const std::string_view expected = next_line(of_rank_0);
    if (line == expected) continue;
    const std::size_t name = std::min(line.find('='), line.size());
    const bool same_name = line.substr(0, name + 1) == expected.substr(0, name + 1);
    return Error{.code = ErrorCode::kInvalidArgument,
                 .text = "rank " + std::to_string(rank) + " has " + std::string(line) +
                         ", rank 0 has " +
                         std::string(same_name ? expected.substr(name + 1) : expected) +
                         "; set the same for every rank"};
  }
  return {};
}

}  // namespace ciranda
