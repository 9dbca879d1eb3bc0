#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>

namespace ciranda {

// For sentences about who is in the way. Blocking; both read files of the system.

// "user 1000 (ada)", without the name where there is none.
std::string name_of_user(uid_t user);

// Whose program listens on that TCP port of this machine; nothing where nobody does.
std::optional<uid_t> who_listens_on(std::uint16_t port);

}  // namespace ciranda
