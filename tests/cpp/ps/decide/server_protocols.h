#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/ps/decide/model_codec.h"
#include "core/ps/decide/server_protocol.h"
#include "ps/decide/models.h"

namespace ciranda::ps::testing {

// A protocol whose callers' connections are calls, and whose time is a number.
class ServerProtocols : public ::testing::Test {
 protected:
  void start(int workers, Mode mode = {}, int servers = 1) {
    model_ = model_of({{3, 40}, {17}}, mode);
    options_ = {.job_id = job_id_, .servers = servers, .workers = workers, .lease_ns = kLeaseNs};
    protocol_ = std::make_unique<ServerProtocol>(options_);
  }

  // A new connection.
  ServerProtocol::Caller call() {
    protocol_->open(++callers_);
    return callers_;
  }
  void say(ServerProtocol::Caller caller, Message message) {
    say(caller, std::move(message), model_);
  }
  void say(ServerProtocol::Caller caller, Message message, const Model& model) {
    std::vector<std::byte> model_blob;
    encode(model, model_blob);
    const bool of_rows =
        std::holds_alternative<PullRows>(message) || std::holds_alternative<PushRows>(message);
    const ServerProtocol::Attached attached{
        .model_blob = [&](std::uint64_t) -> Result<std::vector<std::byte>> { return model_blob; },
        .memory = [&, of_rows](std::uint64_t bytes) -> Result<std::byte*> {
          if (without_memory_) return Error{.code = ErrorCode::kMalformed, .text = "no memory"};
          if (of_rows) {
            rows_.resize(static_cast<std::size_t>(bytes));
            return rows_.data();
          }
          std::vector<std::byte>& memory = memory_[caller];
          memory.resize(static_cast<std::size_t>(bytes));
          return memory.data();
        }};
    ServerProtocol::Answers answers;
    protocol_->take(caller, std::move(message), attached, now_ns_, answers);
    keep(std::move(answers));
  }
  void hang_up(ServerProtocol::Caller caller) {
    ServerProtocol::Answers answers;
    protocol_->close(caller, now_ns_, answers);
    keep(std::move(answers));
  }
  void pass(std::uint64_t ns) {
    now_ns_ += ns;
    ServerProtocol::Answers answers;
    protocol_->end_leases(now_ns_, answers);
    keep(std::move(answers));
  }

  // The next answer, which has to be a T.
  template <typename T>
  T answer(ServerProtocol::Caller caller) {
    std::vector<Message>& own = answers_[caller];
    if (own.empty() || !std::holds_alternative<T>(own.front())) {
      ADD_FAILURE() << "caller " << caller << " has another answer, or none";
      return {};
    }
    Message first = std::move(own.front());
    own.erase(own.begin());
    return std::get<T>(std::move(first));
  }
  bool waits(ServerProtocol::Caller caller) { return answers_[caller].empty(); }
  // What it is refused with; the protocol has hung up.
  std::string refusal(ServerProtocol::Caller caller) { return answer<Refused>(caller).text; }
  bool hung_up_on(ServerProtocol::Caller caller) const { return hung_up_on_.contains(caller); }

  // Of another process each time.
  Enter entry(Worker worker, Life life = 1) {
    return {.job_id = job_id_,
            .worker = worker,
            .life = life,
            .process = ++processes_,
            .workers = options_.workers,
            .servers = options_.servers};
  }
  ServerProtocol::Caller enter(Worker worker, Life life = 1) {
    const ServerProtocol::Caller caller = call();
    say(caller, entry(worker, life));
    answer<Welcome>(caller);
    return caller;
  }
  // Its parameters are all `first`. `answered`: it returns.
  void declare(ServerProtocol::Caller caller, float first, std::uint64_t decided = 0,
               std::optional<std::uint64_t> answered = {}) {
    memory_[caller].resize(Layout(model_, options_.servers).memory_bytes());
    float* values = reinterpret_cast<float*>(memory_[caller].data());
    std::fill_n(values, memory_[caller].size() / sizeof(float), first);
    say(caller,
        Declare{
            .decided = decided, .returns = answered.has_value(), .answered = answered.value_or(0)});
  }
  ServerProtocol::Caller join(Worker worker, Life life = 1) { return join(entry(worker, life)); }
  void push(ServerProtocol::Caller caller, Worker worker, std::uint64_t seq,
            float gradient = 1.0f) {
    float* values = reinterpret_cast<float*>(memory_[caller].data());
    std::fill_n(values, memory_[caller].size() / 2 / sizeof(float), gradient);
    say(caller, push_of(worker, seq));
  }
  Push push_of(Worker worker, std::uint64_t seq) const {
    Push push{.worker = worker, .seq = seq, .clock = seq};
    for (const Table& table : model_.tables) push.rules.push_back(table.rule);
    push.used.assign(slot_count(model_), true);
    return push;
  }
  // The process that entered so has lost its connection, or its server, and calls again.
  ServerProtocol::Caller come_back(const Enter& entry, std::uint64_t answered) {
    const ServerProtocol::Caller caller = call();
    say(caller, entry);
    answer<Welcome>(caller);
    declare(caller, 0.0f, answered, answered);
    return caller;
  }
  ServerProtocol::Caller join(const Enter& entry) {
    const ServerProtocol::Caller caller = call();
    say(caller, entry);
    answer<Welcome>(caller);
    declare(caller, 0.0f);
    return caller;
  }
  float parameter(ServerProtocol::Caller caller) {
    const std::uint64_t at = protocol_->shard()->layout().parameters_at(0);
    return *reinterpret_cast<const float*>(memory_[caller].data() + at);
  }

  Model model_;
  std::string job_id_ = "job";
  ServerProtocolOptions options_;
  std::unique_ptr<ServerProtocol> protocol_;
  std::uint64_t now_ns_ = 1'000;
  bool without_memory_ = false;
  std::vector<std::byte> rows_;  // that come with a message: numbers, and what is behind them

 private:
  void keep(ServerProtocol::Answers answers) {
    for (ServerProtocol::Answer& each : answers) {
      EXPECT_FALSE(hung_up_on(each.to)) << "an answer to " << each.to << " after the last";
      if (each.hangs_up) hung_up_on_.insert(each.to);
      answers_[each.to].push_back(std::move(each.message));
    }
  }

  ServerProtocol::Caller callers_ = 0;
  std::uint64_t processes_ = 0;
  std::map<ServerProtocol::Caller, std::vector<std::byte>> memory_;
  std::map<ServerProtocol::Caller, std::vector<Message>> answers_;
  std::set<ServerProtocol::Caller> hung_up_on_;
};

}  // namespace ciranda::ps::testing
