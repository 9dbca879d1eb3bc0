#include "core/ps/io/server_links.h"

#include <algorithm>
#include <cerrno>
#include <string>
#include <utility>

#include "core/base/assert.h"
#include "core/base/clock.h"

namespace ciranda::ps {
namespace {

// How long leave() waits for servers.
constexpr std::uint64_t kGoodbyeNs = 5'000'000'000;

std::string server_name(int server) {
  return "server " + std::to_string(server);
}

}  // namespace

ServerLinks::ServerLinks(std::vector<std::unique_ptr<ServerLink>> links, Pace pace,
                         WaitNotice* notice)
    : links_(std::move(links)),
      replaced_(links_.size()),
      refuses_(links_.size()),
      broken_(links_.size()),
      entered_(links_.size()),
      pace_(pace),
      notice_(notice),
      heard_(links_.size()),
      next_beat_ns_(monotonic_ns() + pace.beat_ns) {
  CIRANDA_ASSERT(std::ranges::all_of(links_, [](const auto& link) { return link != nullptr; }));
}

Status ServerLinks::send(int server, const Message& message) {
  entered_[at(server)] = true;
  const Status sent = links_[at(server)]->send(message);
  return sent ? sent : Status(lost(server));
}

bool ServerLinks::has_queued() const {
  for (int each = 0; each < count(); ++each) {
    if (!broken_[at(each)] && links_[at(each)]->has_queued()) return true;
  }
  return false;
}

Result<Message> ServerLinks::next(int server, const char* to_do_what) {
  auto& heard = heard_[at(server)];
  WaitNotice* const notice = to_do_what != nullptr ? notice_ : nullptr;
  std::uint64_t begun_ns = 0;
  for (;;) {
    advance(server);
    if (!heard.empty()) {
      Message message = std::move(heard.front());
      heard.pop_front();
      if (const auto* refused = std::get_if<Refused>(&message)) return refused_by(server, *refused);
      return message;
    }
    if (broken_[at(server)]) return lost(server);
    if (notice != nullptr && begun_ns == 0) begun_ns = monotonic_ns();
    CIRANDA_TRY(wait(server, notice != nullptr ? notice->due_ns(begun_ns) : kNever));
    if (notice != nullptr && monotonic_ns() >= notice->due_ns(begun_ns)) {
      notice->say(begun_ns, monotonic_ns(), server_name(server) + " to " + to_do_what);
    }
  }
}

void ServerLinks::advance(int server) {
  for (int each = 0; each < count(); ++each) {
    if (each != server && !links_[at(each)]->is_remote()) continue;
    if (!broken_[at(each)]) broken_[at(each)] = !carry(each);
  }
}

Status ServerLinks::carry(int server) {
  ServerLink& link = *links_[at(server)];
  if (link.has_queued()) CIRANDA_TRY(link.flush());
  do {
    auto message = link.receive();
    if (!message) return message.error();
    if (!message.value()) break;
    heard_[at(server)].push_back(std::move(*message.value()));
  } while (link.is_remote());
  return {};
}

std::vector<pollfd> ServerLinks::news_of(int server) const {
  std::vector<pollfd> polled;
  for (int each = 0; each < count(); ++each) {
    const ServerLink& link = *links_[at(each)];
    if (broken_[at(each)] || (each != server && !link.is_remote())) continue;
    polled.push_back(poll_for(link.watched()));
  }
  return polled;
}

Status ServerLinks::wait(int server, std::uint64_t deadline_ns) {
  std::vector<pollfd> polled = news_of(server);
  deadline_ns = std::min(deadline_ns, next_beat_ns_);
  const int ready = ::poll(polled.data(), polled.size(), poll_timeout_ms(deadline_ns));
  if (ready < 0 && errno != EINTR) return Error::from_errno("poll", errno);
  if (ready > 0) return {};
  const Status answers = links_[at(server)]->check_answers(pace_.silence_ms);
  if (!answers) {
    return Error{.code = ErrorCode::kRankLost,
                 .text = server_name(server) + ": " + answers.error().text,
                 .rank = server};
  }
  beat_if_due();
  return {};
}

Error ServerLinks::refused_by(int server, const Refused& refused) {
  refuses_[at(server)] = true;
  return {.code = refused.code, .text = server_name(server) + ": " + refused.text, .rank = server};
}

void ServerLinks::replace(int server, std::unique_ptr<ServerLink> link) {
  CIRANDA_ASSERT(link != nullptr);
  links_[at(server)]->close();
  replaced_[at(server)] = std::exchange(links_[at(server)], std::move(link));
  heard_[at(server)].clear();
  broken_[at(server)] = false;
  entered_[at(server)] = false;
}

// Returns why the server is lost: the reason from a last Refused, if there is one, or kRankLost.
Error ServerLinks::lost(int server) {
  auto& heard = heard_[at(server)];
  for (;;) {
    auto last = links_[at(server)]->receive();
    if (!last || !last.value()) break;
    heard.push_back(std::move(*last.value()));
  }
  for (const Message& each : heard) {
    if (const auto* refused = std::get_if<Refused>(&each)) return refused_by(server, *refused);
  }
  return {.code = ErrorCode::kRankLost, .text = server_name(server) + " is lost", .rank = server};
}

void ServerLinks::beat_if_due() {
  const std::uint64_t now_ns = monotonic_ns();
  if (now_ns < next_beat_ns_) return;
  next_beat_ns_ = now_ns + pace_.beat_ns;
  for (int each = 0; each < count(); ++each) {
    // Queued messages show as well that the worker lives. A Beat before Enter has no meaning.
    ServerLink& link = *links_[at(each)];
    if (entered_[at(each)] && !link.has_queued()) static_cast<void>(link.send(Beat{}));
  }
}

// Reads until servers on other hosts hang up: closing a socket with unread bytes would drop what
// the peer has not read yet.
void ServerLinks::leave(std::uint64_t checkpoint) {
  const std::uint64_t deadline_ns = monotonic_ns() + kGoodbyeNs;
  for (const auto& link : links_) {
    if (!link->send(Leave{.checkpoint = checkpoint}) || !link->is_remote()) continue;
    while (link->has_queued() && link->flush() && monotonic_ns() < deadline_ns) {
      static_cast<void>(wait_for(link->watched(), deadline_ns));
    }
  }
  for (const auto& link : links_) {
    if (!link->is_remote()) continue;
    link->end();
    const Watched readable{.socket = link->watched().socket, .readable = true};
    while (link->receive() && monotonic_ns() < deadline_ns) {
      static_cast<void>(wait_for(readable, deadline_ns));
    }
  }
}

void ServerLinks::close() noexcept {
  for (const auto& link : links_) link->close();
}

}  // namespace ciranda::ps
