#include "core/transport/tcp/users.h"

#include <pwd.h>

#include <array>
#include <cstdio>

namespace ciranda {
namespace {

constexpr unsigned kListens = 0x0A;  // TCP_LISTEN, as /proc/net/tcp writes states

std::optional<uid_t> who_listens_on(std::uint16_t port, const char* table) {
  std::FILE* file = std::fopen(table, "re");
  if (file == nullptr) return std::nullopt;
  std::optional<uid_t> found;
  char line[512];
  while (!found && std::fgets(line, sizeof line, file) != nullptr) {
    // "  0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000 ...":
    // number, both ends, state, queues, timer, retransmits, user.
    unsigned own = 0;
    unsigned state = 0;
    unsigned user = 0;
    const int read = std::sscanf(line, " %*d: %*[0-9A-F]:%x %*[0-9A-F]:%*x %x %*s %*s %*s %u", &own,
                                 &state, &user);
    if (read == 3 && own == port && state == kListens) found = user;
  }
  std::fclose(file);
  return found;
}

}  // namespace

std::string name_of_user(uid_t user) {
  passwd entry{};
  passwd* found = nullptr;
  std::array<char, 4096> text;
  const bool known = ::getpwuid_r(user, &entry, text.data(), text.size(), &found) == 0 && found;
  return "user " + std::to_string(user) + (known ? " (" + std::string(entry.pw_name) + ")" : "");
}

std::optional<uid_t> who_listens_on(std::uint16_t port) {
  const auto user = who_listens_on(port, "/proc/net/tcp");
  return user ? user : who_listens_on(port, "/proc/net/tcp6");
}

}  // namespace ciranda
