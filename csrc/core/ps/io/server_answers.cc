// The part of Server that sends answers and reports.
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstdio>
#include <iterator>
#include <utility>

#include "core/base/assert.h"
#include "core/ps/io/server.h"

namespace ciranda::ps {
namespace {

// How long a refused caller has to read the reason.
constexpr std::uint64_t kFarewellNs = 5'000'000'000;

}  // namespace

// Sends the answers of this turn. A server that persists its state first makes all changes of the
// turn, together, as safe as promised.
Status Server::carry_out() {
  CIRANDA_TRY(failed_);
  if (files_ && !(answers_.empty() && held_.empty())) {
    CIRANDA_TRY(files_->settle());
    hold_answers();
  }
  send_answers();
  return {};
}

// Holds answers back until the first snapshot is made. Welcome, Stats and refusals need not wait:
// they do not say that the server has the parameters. Answers to one caller keep their order, so
// all answers behind a held one are held too.
void Server::hold_answers() {
  CIRANDA_ASSERT(files_);
  answers_.insert(answers_.begin(), std::make_move_iterator(held_.begin()),
                  std::make_move_iterator(held_.end()));
  held_.clear();
  if (!files_->lacks_snapshot()) return;
  const auto waits = [this](const ServerProtocol::Answer& answer) {
    return !(std::holds_alternative<Welcome>(answer.message) ||
             std::holds_alternative<Stats>(answer.message) || answer.hangs_up) ||
           std::ranges::count(held_, answer.to, &ServerProtocol::Answer::to) != 0;
  };
  ServerProtocol::Answers sent;
  for (ServerProtocol::Answer& answer : answers_) {
    ServerProtocol::Answers& to = waits(answer) ? held_ : sent;
    to.push_back(std::move(answer));
  }
  answers_ = std::move(sent);
}

void Server::answer_at_once() {
  if (!files_) send_answers();
}

void Server::report_losses() {
  const std::uint64_t lost = protocol_.lost();
  if (lost == std::exchange(lost_, lost)) return;
  std::fprintf(stderr, "ciranda-ps: server %d has lost %llu pushes that it had answered\n",
               options_.protocol.server, static_cast<unsigned long long>(lost));
}

void Server::report_waits() {
  const auto whom = protocol_.awaited();
  if (!whom) return awaits_ns_.reset();
  if (!awaits_ns_) awaits_ns_ = turn_ns_;
  if (turn_ns_ < notice_.due_ns(*awaits_ns_)) return;
  notice_.say(*awaits_ns_, turn_ns_,
              "worker " + std::to_string(*whom) + ", whose parameters the servers begin with");
}

void Server::send_answers() {
  for (ServerProtocol::Answer& answer : answers_) {
    if (auto* stats = std::get_if<Stats>(&answer.message)) add_times(*stats);
    send(answer);
  }
  answers_.clear();
}

// Never blocks. If the worker does not read its answers, its socket is shut down, and receive()
// finds that.
void Server::send(ServerProtocol::Answer& answer) {
  CIRANDA_ASSERT(!files_ || !files_->lacks_snapshot() || answer.hangs_up ||
                 std::holds_alternative<Welcome>(answer.message) ||
                 std::holds_alternative<Stats>(answer.message));  // I28: by hold_answers()
  const auto found = connections_.find(answer.to);
  if (found == connections_.end()) return;
  Connection& connection = found->second;
  const int socket = connection.link->watched().socket;
  if (!connection.link->send(answer.message)) ::shutdown(socket, SHUT_RDWR);
  watch_room(answer.to, connection);
  if (!answer.hangs_up) return;
  connection.ends_ns = turn_ns_ + kFarewellNs;
  connection.link->end();
}

void Server::watch_room(ServerProtocol::Caller caller, Connection& connection) {
  const Watched watched = connection.link->watched();
  if (std::exchange(connection.waits_for_room, watched.writable) == watched.writable) return;
  epoll_event event{.events = EPOLLIN | (watched.writable ? static_cast<unsigned>(EPOLLOUT) : 0u),
                    .data = {.u64 = static_cast<std::uint64_t>(caller)}};
  (void)::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, watched.socket, &event);
}

void Server::end_farewells() {
  for (auto next = connections_.begin(); next != connections_.end();) {
    const auto [caller, over] = std::pair(next->first, next->second.ends_ns <= turn_ns_);
    ++next;
    if (over) connections_.erase(caller);
  }
}

Stats Server::stats() const {
  Stats stats = protocol_.stats();
  add_times(stats);
  return stats;
}

void Server::add_times(Stats& stats) const {
  stats.busy_ns = busy_ns_;
  stats.oldest_ns = oldest_ns_;
}

}  // namespace ciranda::ps
