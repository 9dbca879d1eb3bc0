// Every environment and every choice of interfaces is understood or refused with a sentence.
#include <map>
#include <string>

#include "core/settings/config.h"
#include "core/transport/tcp/interfaces.h"
#include "fuzz/input.h"

namespace ciranda::fuzz {
namespace {

std::string_view text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// Lines NAME=VALUE.
std::map<std::string, std::string> variables_of(std::string_view text) {
  std::map<std::string, std::string> variables;
  while (!text.empty()) {
    const std::string line(text.substr(0, text.find('\n')));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    const std::size_t equals = std::min(line.find('='), line.size());
    variables[line.substr(0, equals)] = line.substr(std::min(equals + 1, line.size()));
  }
  return variables;
}

void read_environment(std::string_view text) {
  const auto variables = variables_of(text);
  const auto getenv = [&](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  };
  const auto config = read_config(getenv, 2);
  CIRANDA_ASSERT(config.ok() || !config.error().text.empty());
  if (!config.ok()) return;
  const RankInfo& rank_info = config.value().rank_info;
  CIRANDA_ASSERT(0 <= rank_info.rank && rank_info.rank < rank_info.size);
  CIRANDA_ASSERT(0 <= rank_info.local_rank && rank_info.local_rank < rank_info.local_size);
}

void choose_interfaces(std::string_view wanted) {
  const std::vector<HostAddress> all = {
      {.interface = "lo", .address = "127.0.0.1", .bytes = {std::byte{127}, {}, {}, std::byte{1}}},
      {.interface = "eth0", .address = "10.0.0.1", .bytes = {std::byte{10}, {}, {}, std::byte{1}}},
      {.interface = "eth0",
       .address = "2000::",
       .bytes = {std::byte{32}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}}}};
  const auto chosen = choose_addresses(all, wanted);
  CIRANDA_ASSERT(chosen.ok() ? !chosen.value().empty() : !chosen.error().text.empty());
  if (!chosen.ok()) return;
  for (const HostAddress& each : chosen.value()) CIRANDA_ASSERT(each.interface != "lo");
}

}  // namespace
}  // namespace ciranda::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  ciranda::fuzz::Input input(data, size);
  const bool is_environment = input.u8() % 2 == 1;
  const auto text = ciranda::fuzz::text_of(input.rest());
  if (is_environment) {
    ciranda::fuzz::read_environment(text);
  } else {
    ciranda::fuzz::choose_interfaces(text);
  }
  return 0;
}
