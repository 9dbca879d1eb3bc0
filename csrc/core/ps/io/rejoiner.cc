#include "core/ps/io/rejoiner.h"

#include <poll.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <string>
#include <utility>
#include <variant>

#include "core/base/assert.h"
#include "core/base/clock.h"
#include "core/ps/io/connect.h"
#include "core/transport/dial/job_key.h"

namespace ciranda::ps {
namespace {

// Timeout of one attempt. Beats to the other servers are sent between attempts.
constexpr std::uint64_t kTryNs = 1'000'000'000;
constexpr int kRetryMs = 10;

std::string seconds(std::uint64_t ms) {
  std::array<char, 32> text;
  std::snprintf(text.data(), text.size(), "%g s", static_cast<double>(ms) / 1'000);
  return text.data();
}

}  // namespace

bool Asked::enters() const {
  return question && std::holds_alternative<Enter>(*question);
}

const char* Asked::to_do_what() const {
  if (!question || std::holds_alternative<TakeTask>(*question) ||
      std::holds_alternative<AskTask>(*question)) {
    return nullptr;
  }
  if (enters()) return "let it in";
  if (std::holds_alternative<Declare>(*question)) return "have the first parameters";
  return "answer";
}

Rejoiner::Rejoiner(const ClientOptions& options, const WorkerMemory& memory,
                   const Progress& progress, ServerLinks& links)
    : options_(options),
      process_(random_number()),
      memory_(memory),
      progress_(progress),
      links_(links) {}

Enter Rejoiner::entry(int server) const {
  return {.job_id = options_.job_id,
          .worker = options_.address.worker,
          .life = options_.address.life,
          .process = process_,
          .workers = options_.workers,
          .servers = options_.servers(),
          .server = server,
          .origin = options_.origin};
}

// Returns the reconnect timeout; 0: do not reconnect. A client without a Welcome may reconnect to
// any server, because it has nothing yet that a new server would lack.
std::uint64_t Rejoiner::patience_ms(const Asked& asked) const {
  if (asked.enters()) return options_.address.timeout_ms;
  return asked.keeps_state ? options_.patience_ms : 0;
}

bool Rejoiner::may_come_back(const Error& error, const Asked& asked) const {
  return error.code == ErrorCode::kRankLost && error.rank >= 0 && patience_ms(asked) > 0 &&
         !links_.refuses(error.rank);
}

Status Rejoiner::rejoin(const Error& lost, const Asked& asked) {
  if (!may_come_back(lost, asked)) return lost;
  const int server = lost.rank;
  const std::uint64_t deadline_ns = monotonic_ns() + patience_ms(asked) * kMsInNs;
  const std::string patience = seconds(patience_ms(asked));
  std::fprintf(stderr, "ciranda: %s waits up to %s for a lost server to come back: %s\n",
               options_.who().c_str(), patience.c_str(), lost.text.c_str());
  for (;;) {
    const Status back = call_again(server, asked, deadline_ns);
    if (back) return {};
    const Error& why = back.error();
    if (!may_come_back(why, asked) && why.code != ErrorCode::kTimeout) return why;
    if (monotonic_ns() >= deadline_ns) {
      return Error{.code = ErrorCode::kRankLost,
                   .text = lost.text + ", and did not come back within " + patience,
                   .rank = server};
    }
    links_.beat_if_due();
    ::poll(nullptr, 0, kRetryMs);
  }
}

Status Rejoiner::call_again(int server, const Asked& asked, std::uint64_t deadline_ns) {
  auto link = connect_to_server(options_.address, server, memory_,
                                std::min(deadline_ns, monotonic_ns() + kTryNs));
  if (!link) return link.error();
  links_.replace(server, std::move(link).value());
  if (!asked.enters()) {
    CIRANDA_TRY(links_.send(server, entry(server)));
    const auto welcome = links_.next(server, "let it in");
    if (!welcome) return welcome.error();
    const auto* known = std::get_if<Welcome>(&welcome.value());
    if (server == 0 && known != nullptr) {
      for (const Schedule& each : progress_.tasks.scheduled_after(known->scheduled)) {
        CIRANDA_TRY(links_.send(server, each));
      }
    }
  }
  if (const auto declare = progress_.pushes.declare_again(server, memory_.model_blob_bytes)) {
    CIRANDA_TRY(links_.send(server, *declare));
    const auto ready = links_.next(server, "give it the parameters");
    if (!ready) return ready.error();
    if (memory_.gradients.fd.valid()) CIRANDA_TRY(links_.send(server, MoveGradients{}));
    if (const auto mark = progress_.pushes.mark()) CIRANDA_TRY(links_.send(server, *mark));
  }
  return asked.question ? links_.send(server, *asked.question) : Status();
}

}  // namespace ciranda::ps
