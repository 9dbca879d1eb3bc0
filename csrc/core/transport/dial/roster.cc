#include "core/transport/dial/roster.h"

namespace ciranda {

Result<Roster::Admission> Roster::admit(const Hello& client, const std::string& from) {
  const auto [found, is_first] =
      clients_.try_emplace({client.from, client.purpose, client.stream},
                           Client{.incarnation = client.incarnation, .from = from});
  if (is_first) return Admission::kFirst;
  Client& earlier = found->second;
  if (client.incarnation > earlier.incarnation) {
    earlier = {.incarnation = client.incarnation, .from = from};
    return Admission::kReplacesEarlier;
  }
  const std::string who = caller_name(client.purpose, client.from);
  const std::string both = " (" + earlier.from + " and now " + from + ")";
  return Error{.code = ErrorCode::kInvalidArgument,
               .text = client.incarnation == earlier.incarnation
                           ? who + " came twice" + both + "; start every rank once"
                           : who + " was restarted, but its earlier process came again" + both,
               .rank = client.from};
}

void Roster::forget(Rank peer, Purpose purpose, std::uint16_t stream) {
  clients_.erase({peer, purpose, stream});
}

}  // namespace ciranda
