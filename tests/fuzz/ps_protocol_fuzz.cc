// Whatever peers say to a server, in messages that decode and others, it neither crashes nor reads
// beyond their memory, and a worker that keeps to the protocol goes on.
#include <map>
#include <memory>

#include "core/ps/decide/model_codec.h"
#include "core/ps/decide/server_protocol.h"
#include "fuzz/input.h"
#include "ps/decide/models.h"

namespace ciranda::fuzz {
namespace {

using ps::ServerProtocol;

constexpr int kWorkers = 3;
constexpr ServerProtocol::Caller kGood = 0;  // worker 0; the other callers are strangers
constexpr std::uint64_t kLease = 100;

using Bytes = std::vector<std::byte>;

ps::Mode mode_of(std::uint8_t shape) {
  return {.kind = static_cast<ps::ModeKind>(shape % 3),
          .policy = static_cast<ps::StalePolicy>(shape / 3 % 3),
          .max_staleness = shape / 9 % 3u,
          .staleness = shape / 9 % 3u,
          .backup_workers = shape / 9 % 3u};
}

ps::Model model_of(std::uint8_t shape) {
  ps::Model model = ps::testing::model_of({{20, 3}, {9}, {40}, {8}, {5}}, mode_of(shape));
  const kernels::UpdateRule rules[] = {
      {.kind = kernels::RuleKind::kSgd, .momentum = 0.9},
      {.kind = kernels::RuleKind::kAdam, .amsgrad = true},
      {.kind = kernels::RuleKind::kAdamW},
      {.kind = kernels::RuleKind::kAdagrad},
      {.kind = kernels::RuleKind::kRmsprop, .momentum = 0.9, .centered = true}};
  for (std::size_t table = 0; table < model.tables.size(); ++table) {
    model.tables[table].rule = rules[table];
  }
  model.tables[1].dtype = DType::kFloat64;
  model.tables[2].dtype = DType::kBFloat16;
  for (const char* name : {"words", "users"}) {
    model.row_tables.push_back({.name = name,
                                .rows = 10,
                                .columns = 3,
                                .rule = {.kind = kernels::RuleKind::kAdagrad},
                                .given = model.row_tables.size() == 1,
                                .deviation = 1.0});
  }
  return model;
}

std::vector<kernels::UpdateRule> rules_of(const ps::Model& model) {
  std::vector<kernels::UpdateRule> rules;
  for (const ps::Table& table : model.tables) rules.push_back(table.rule);
  return rules;
}

class Play {
 public:
  explicit Play(std::uint8_t shape)
      : model_(model_of(shape)),
        protocol_({.job_id = "job",
                   .workers = kWorkers,
                   .lease_ns = kLease,
                   .has_coordinator = model_.mode.kind == ps::ModeKind::kAsync}) {
    protocol_.open(kGood);
    tell(kGood, enter(0, 1));
    tell(kGood, ps::Declare{});
    CIRANDA_ASSERT(last_ready_.has_value());
  }

  void run(Input& input) {
    while (!input.empty()) {
      const std::uint8_t what = input.u8();
      const ServerProtocol::Caller caller = 1 + what % 4;
      step(caller, what / 4, input);
      if (!waits_) push();
    }
    // Once the strangers are gone, and whoever never came, nobody is waited for.
    for (ServerProtocol::Caller caller = 1; caller <= 4; ++caller) close(caller);
    for (ps::Worker worker = 1; worker < kWorkers; ++worker) {
      protocol_.open(worker);
      tell(worker, enter(worker, UINT64_MAX));
      tell(worker, ps::Leave{});
    }
    CIRANDA_ASSERT(!waits_);
    push();
    CIRANDA_ASSERT(!waits_);
    const auto parameters = *memory_.at(kGood).front();
    const std::uint64_t version = version_;
    tell(kGood, ps::Pull{});
    CIRANDA_ASSERT(*last_ready_ == version && *memory_.at(kGood).front() == parameters);  // I22
  }

 private:
  static ps::Enter enter(ps::Worker worker, ps::Life life) {
    return {.job_id = "job", .worker = worker, .life = life, .workers = kWorkers};
  }

  void step(ServerProtocol::Caller caller, int what, Input& input) {
    now_ += what % 2 == 0 ? 1 : 0;
    switch (what) {
      case 0:
        close(caller);
        return protocol_.open(caller);
      case 1:
        return close(caller);
      case 2: {
        now_ += input.u8();
        ServerProtocol::Answers answers;
        protocol_.end_leases(now_, answers);
        return hear(answers);
      }
      case 3:
        return tell_bytes(caller, input.bytes(input.u16() % 2048u), input);
      default: {
        // What it might say, with bits flipped.
        Bytes bytes;
        encode(likely(what, input), bytes);
        Input(input.bytes(3 * (input.u8() % 8u))).patch(bytes);
        return tell_bytes(caller, bytes, input);
      }
    }
  }

  ps::Message likely(int what, Input& input) const {
    switch (what % 16) {
      case 0:
        return ps::Enter{
            .job_id = "job", .worker = 1 + input.u8() % 3, .life = input.u8(), .workers = kWorkers};
      case 1:
        return declaration(input.u8());
      case 2:
        return ps::FetchState{.table = input.u8() % 6u, .array = input.u8() % 3u};
      case 3:
        return ps::FetchSteps{};
      case 4:
        return ps::MoveGradients{};
      case 5:
        return ps::Average{.name = "loss", .value = 1.0};
      case 6:
        return ps::Mark{.checkpoint = input.u8()};
      case 8:
        return ps::TakeTask{.done = input.u8(), .failed = input.u8() % 2 != 0, .text = "text"};
      case 9:
        return ps::Schedule{.task = input.u8(), .copies = input.u8(), .call = "call"};
      case 10:
        return ps::CloseTasks{.tasks = input.u8()};
      case 11: {
        const std::uint8_t drawn = input.u8();
        return ps::AskTask{.task = input.u8(), .waits = drawn % 2 != 0, .failures = drawn / 2u};
      }
      case 12:
        return ps::VectorWork{
            .number = input.u8(),
            .sums = {{.into = input.u8() % 4u, .terms = {{input.u8() % 4u, 0.5}, {1, 1.0}}}},
            .dots = {{input.u8() % 4u, input.u8() % 4u}}};
      case 14:
        return ps::PullRows{.table = input.u8() % 3u, .count = input.u8() % 4u};
      case 15:
        return ps::PushRows{.seq = input.u8(),
                            .table = input.u8() % 3u,
                            .count = input.u8() % 4u,
                            .begins = input.u8() % 2 != 0,
                            .rule = model_.row_tables[0].rule,
                            .of = {.task = input.u8(), .part = input.u8()}};
      default:
        return ps::Push{.worker = 1 + input.u8() % 2,
                        .seq = input.u8(),
                        .base = input.u8(),
                        .clock = input.u8(),
                        .rules = rules_of(model_),
                        .used = std::vector<bool>(ps::slot_count(model_), input.u8() % 4 != 0),
                        .of = {.task = input.u8(), .part = input.u8(), .settled = input.u8()},
                        .into = input.u8() % 3u};
    }
  }

  static ps::Message declaration(int drawn) {
    return ps::Declare{.model_bytes = 1,
                       .decided = static_cast<unsigned>(drawn) % 4u,
                       .returns = drawn >= 128,
                       .answered = static_cast<unsigned>(drawn) / 4u % 8u};
  }

  // As the server takes a packet.
  void tell_bytes(ServerProtocol::Caller caller, std::span<const std::byte> bytes, Input& input) {
    auto message = ps::decode_message(bytes);
    if (!message) {
      ServerProtocol::Answers answers;
      protocol_.refuse(caller, message.error(), now_, answers);
      return hear(answers);
    }
    const auto* comes = std::get_if<ps::Enter>(&message.value());
    if (comes != nullptr && comes->worker == 0) return;  // the worker itself has been started anew
    const std::uint8_t attached = input.u8();
    Bytes model_blob;
    encode(model_, model_blob);
    if (attached % 4 == 1) Input(input.bytes(input.u8())).patch(model_blob);
    tell(caller, std::move(message).value(), attached % 4 != 2, attached, model_blob);
  }

  void tell(ServerProtocol::Caller caller, ps::Message message) {
    Bytes model_blob;
    encode(model_, model_blob);
    tell(caller, std::move(message), true, 0, model_blob);
  }

  void tell(ServerProtocol::Caller caller, ps::Message message, bool has_memory,
            std::uint8_t filling, const Bytes& model_blob) {
    const Error none{.code = ErrorCode::kMalformed,
                     .text = "a worker's message came without its shared memory"};
    const ServerProtocol::Attached attached{
        .model_blob = [&](std::uint64_t) -> Result<Bytes> { return model_blob; },
        .memory = [&](std::uint64_t bytes) -> Result<std::byte*> {
          if (!has_memory) return none;
          auto& own = memory_[caller];
          own.push_back(std::make_unique<Bytes>(bytes, static_cast<std::byte>(filling)));
          return own.back()->data();
        }};
    ServerProtocol::Answers answers;
    protocol_.take(caller, std::move(message), attached, now_, answers);
    hear(answers);
  }

  void close(ServerProtocol::Caller caller) {
    ServerProtocol::Answers answers;
    protocol_.close(caller, now_, answers);
    memory_.erase(caller);
    hear(answers);
  }

  void hear(const ServerProtocol::Answers& answers) {
    for (const ServerProtocol::Answer& answer : answers) {
      Bytes bytes;
      encode(answer.message, bytes);
      CIRANDA_ASSERT(ps::decode_message(bytes).ok());
      if (answer.hangs_up) memory_.erase(answer.to);
      if (answer.to != kGood) continue;
      CIRANDA_ASSERT(!answer.hangs_up);
      if (const auto* ready = std::get_if<ps::Ready>(&answer.message)) {
        last_ready_ = version_ = ready->version;
        clock_ = std::max(clock_, ready->clock);
      } else if (const auto* ack = std::get_if<ps::Ack>(&answer.message)) {
        CIRANDA_ASSERT(waits_ && ack->seq == seq_);  // I21
        waits_ = false;
        version_ = ack->version;
        clock_ = std::max(clock_, ack->clock);
      }
    }
  }

  void push() {
    waits_ = true;
    ++seq_;
    tell(kGood, ps::Push{.seq = seq_,
                         .base = version_,
                         .clock = ++clock_,
                         .rules = rules_of(model_),
                         .used = std::vector<bool>(ps::slot_count(model_), true)});
  }

  const ps::Model model_;
  ServerProtocol protocol_;
  std::uint64_t now_ = 1;
  // What each caller has attached; what it declared is the first.
  std::map<ServerProtocol::Caller, std::vector<std::unique_ptr<Bytes>>> memory_;
  bool waits_ = false;
  std::uint64_t seq_ = 0;
  std::uint64_t clock_ = 0;
  std::uint64_t version_ = 0;
  std::optional<std::uint64_t> last_ready_;
};

}  // namespace
}  // namespace ciranda::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  ciranda::fuzz::Input input(data, size);
  ciranda::fuzz::Play play(input.u8());
  play.run(input);
  return 0;
}
