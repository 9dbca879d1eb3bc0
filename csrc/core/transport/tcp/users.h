#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>

namespace ciranda {

// Error messages name the user whose program is in the way. Both functions block: they read system
// files.

// Returns "user 1000 (ada)", or "user 1000" if the user has no name.
std::string name_of_user(uid_t user);

// Returns the user whose program listens on that TCP port of this machine, or nullopt.
std::optional<uid_t> who_listens_on(std::uint16_t port);

}  // namespace ciranda
