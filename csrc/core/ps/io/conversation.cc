#include "core/ps/io/conversation.h"

#include <algorithm>
#include <utility>

#include "core/base/clock.h"
#include "core/ps/io/connect.h"

namespace ciranda::ps {

Conversation::Conversation(const ClientOptions& options, const WorkerMemory& memory,
                           Timeline* timeline)
    : options_(options),
      memory_(memory),
      timeline_(timeline),
      notice_("ciranda: " + options.who()),
      progress_{.pushes = PushProgress(options.servers())},
      rejoiner_(options, memory, progress_, links_),
      asked_(static_cast<std::size_t>(options.servers())) {}

Status Conversation::enter() {
  auto links = connect_to_servers(options_.address, memory_, notice_);
  if (!links) return links.error();
  links_ = ServerLinks(std::move(links).value(), options_.pace, &notice_);
  for (int server = 0; server < servers(); ++server) {
    CIRANDA_TRY(ask(server, rejoiner_.entry(server)));
  }
  for (int server = 0; server < servers(); ++server) {
    const auto welcome = hear<Welcome>(server);
    if (!welcome) return welcome.error();
    progress_.pushes.enter(welcome.value());
    asked_[at(server)].keeps_state = welcome.value().keeps_state;
  }
  return {};
}

void Conversation::leave() {
  if (failure_) return;
  // A server that is restarting would miss Leave and wait for this worker for ever. An answer shows
  // that it is back.
  const bool may_be_away =
      std::any_of(asked_.begin(), asked_.end(), [](const Asked& each) { return each.keeps_state; });
  const PushProgress& pushes = progress_.pushes;
  if (!may_be_away || pushes.unanswered() || ask_stats()) links_.leave(pushes.announced());
  failure_ = Error{.code = ErrorCode::kShutdown, .text = "this worker has left its servers"};
}

Status Conversation::check() const {
  return failure_ ? Status(*failure_) : Status();
}

// Keeps the first error, which every later call returns.
Status Conversation::rejoin(int server, const Error& lost) {
  Status back = rejoiner_.rejoin(lost, asked_[at(server)]);
  if (back) return back;
  if (!failure_) {
    failure_ = back.error();
    if (failure_->code == ErrorCode::kRankLost) lost_server_ = failure_->rank;
  }
  return *failure_;
}

Status Conversation::ask(int server, const Message& question) {
  asked_[at(server)].question = question;
  const Status sent = links_.send(server, question);
  return sent ? sent : rejoin(server, sent.error());
}

Status Conversation::ask_all(const Message& question) {
  CIRANDA_TRY(check());
  for (int server = 0; server < servers(); ++server) CIRANDA_TRY(ask(server, question));
  return {};
}

Status Conversation::tell(int server, const Message& message) {
  const Status sent = links_.send(server, message);
  return sent ? sent : rejoin(server, sent.error());
}

Status Conversation::tell_all(const Message& message) {
  for (int server = 0; server < servers(); ++server) CIRANDA_TRY(tell(server, message));
  return {};
}

Status Conversation::settle() {
  CIRANDA_TRY(check());
  PushProgress& pushes = progress_.pushes;
  if (!pushes.unanswered()) return {};
  const std::uint64_t begin_ns = monotonic_ns();
  for (int server = 0; server < servers(); ++server) {
    const auto ack = hear<Ack>(server);
    if (!ack) return ack.error();
    pushes.hear(server, ack.value());
  }
  const std::uint64_t end_ns = monotonic_ns();
  pushes.answered(begin_ns, end_ns);
  if (timeline_ != nullptr) timeline_->record("PUSH", "parameters", pushes.sent_ns(), end_ns);
  return mark();
}

Status Conversation::mark() {
  const std::optional<Mark> mark = progress_.pushes.take_mark();
  return mark ? tell_all(*mark) : Status();
}

Result<std::vector<Stats>> Conversation::ask_stats() {
  CIRANDA_TRY(ask_all(AskStats{}));
  std::vector<Stats> all;
  for (int server = 0; server < servers(); ++server) {
    auto stats = hear<Stats>(server);
    if (!stats) return stats.error();
    all.push_back(std::move(stats).value());
  }
  return all;
}

Attention Conversation::attend() {
  if (failure_) return {};
  links_.beat_if_due();
  Attention attention{.deadline_ns = links_.next_beat_ns()};
  if (!links_.has_queued()) return attention;
  links_.advance(ServerLinks::kNobody);
  attention.sockets = links_.news_of(ServerLinks::kNobody);
  return attention;
}

}  // namespace ciranda::ps
