#include "sim/ps_job.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "core/ps/decide/model_codec.h"
#include "ps/decide/kept.h"
#include "ps/decide/models.h"
#include "sim/network.h"
#include "sim/ps_oracle.h"
#include "sim/violation.h"

namespace ciranda::sim {
namespace {

using ps::Message;
using ps::ModeKind;
using ps::Outcome;
using ps::ServerProtocol;
using ps::StalePolicy;

constexpr std::uint64_t kLease = 300;  // ticks
constexpr std::uint64_t kBeatEvery = 60;
constexpr std::uint64_t kFairRoundsMax = 2'000;
constexpr double kTolerance = 0.25;    // of float32; a push changes a parameter by more than that
constexpr double kGradientUnit = 840;  // divisible by what a mean or a staleness divides it by

using Memory = std::shared_ptr<std::vector<std::byte>>;

struct Connection {
  ServerProtocol::Caller id = -1;
  std::size_t server = 0;
  ps::Worker worker = -1;
  double first = 0.0;                     // the parameters that it declares
  double gradient = 0.0;                  // what lies in the memory
  std::deque<std::optional<Message>> up;  // nullopt: it hangs up
  std::deque<Message> down;
  Memory memory;              // as long as the server has it mapped
  std::deque<Memory> moves;   // what comes with each MoveGradients that is on its way
  std::vector<Memory> moved;  // what has come
  bool ended = false;
  bool repeats = false;         // a push was said twice, and may be answered twice
  bool returns = false;         // its server came back, and may have decided what it is asked
  bool declares_again = false;  // the next Ready brings no parameters
  std::uint64_t written = 0;    // which version lies in the server's part of the memory
};

// A worker's program, as Client does it.
struct Actor {
  enum class State : std::uint8_t {
    kOff,
    kEntering,
    kDeclaring,
    kReady,
    kPushing,
    kPulling,
    kLeft
  };
  ps::Worker number = 0;
  ps::Life life = 0;
  std::uint64_t process = 0;
  State state = State::kOff;
  bool known = false;  // to all servers, which wait for who has not come
  bool stays_off = false;
  std::uint64_t paused_until = 0;
  std::uint64_t beats_at = 0;
  std::vector<std::size_t> connections;  // of this life, by server
  std::vector<bool> unanswered;          // by server
  enum class Return : std::uint8_t { kNone, kEnters, kDeclares };
  std::vector<Return> returns;                         // by server, which has come back
  std::vector<bool> given;                             // by server: it has had parameters
  std::vector<std::uint64_t> answered;                 // by server: its latest push that was
  std::deque<std::pair<std::size_t, Message>> outbox;  // what goes to which server
  std::vector<std::uint64_t> bases;
  std::vector<std::optional<ps::Push>> sent;  // the latest, by server
  std::uint64_t seq = 0;
  std::uint64_t clock = 0;
  ps::Checkpoint announced = 0;  // that it has heard of
  ps::Checkpoint marked = 0;     // that it has told, or is about to
  Memory memory;
  Memory gradients;  // the same, or where they have moved to
  double first = 0.0;
  double gradient = 0.0;
  std::vector<bool> used;
  int pushes_left = 0;
};

struct Part {  // of a slot, on one server
  std::size_t slot = 0;
  std::uint64_t at = 0;  // bytes in a worker's memory
  std::int64_t elements = 0;
  DType dtype = DType::kFloat32;
};

const char* name_of(const Message& message) {
  constexpr const char* kNames[] = {
      "Enter",      "Declare",  "Push",     "Pull",       "FetchState",    "FetchSteps",
      "Average",    "AskStats", "Beat",     "Leave",      "MoveGradients", "Mark",
      "PullRows",   "PushRows", "TakeTask", "Schedule",   "CloseTasks",    "AskTask",
      "VectorWork", "Welcome",  "Refused",  "Ready",      "Ack",           "Fetched",
      "Averaged",   "Stats",    "Given",    "TaskStatus", "VectorValues",  "RowsRead",
      "RowsPushed"};
  static_assert(std::size(kNames) == std::variant_size_v<Message>);
  return kNames[message.index()];
}

std::string words_of(const PsAnswer& answer) {
  constexpr const char* kAnswers[] = {"Welcome", "Refused", "Ready", "Ack"};
  constexpr const char* kOutcomes[] = {"applied", "duplicate", "stale", "late"};
  std::string text = std::string(kAnswers[static_cast<std::size_t>(answer.kind)]) + " to " +
                     std::to_string(answer.to);
  if (answer.kind == PsAnswer::Kind::kWelcome) text += " after " + std::to_string(answer.number);
  if (answer.kind == PsAnswer::Kind::kAck) {
    text += " of " + std::to_string(answer.number) + " " +
            kOutcomes[static_cast<std::size_t>(answer.outcome)];
  }
  return text + " version " + std::to_string(answer.version) + " clock " +
         std::to_string(answer.clock);
}

// A server's part of the latest checkpoint that it was told of: which pushes are in it.
class CheckpointPart final : public ps::CheckpointKeeper {
 public:
  using Pushes = std::set<std::pair<ps::Worker, std::uint64_t>>;

  CheckpointPart(const ServerProtocol& protocol, const PsOracle& oracle, ps::Checkpoint& announced)
      : protocol_(protocol), oracle_(oracle), announced_(announced) {}
  std::optional<ps::Checkpoint> announce() override { return ++announced_; }
  void begin(ps::Checkpoint checkpoint) override {
    checkpoint_ = checkpoint;
    open_ = true;
    pushes_ = oracle_.applied();
  }
  void add(const ps::Change& change, const ps::Journal::Data&) override {
    for (const ps::Push& push : change.pushes) pushes_.insert({push.worker, push.seq});
    late += change.pushes.size();
  }
  void close() override { open_ = false; }
  void withdraw(ps::Checkpoint) override { checkpoint_ = 0; }

  void hear_mark(ps::Worker worker, ps::Checkpoint checkpoint) {
    belong_.try_emplace({checkpoint, worker}, protocol_.shard()->decided(worker));
  }
  // The latest of the worker's pushes that belong to it; nothing if it has told nothing.
  std::optional<std::uint64_t> last_of(ps::Checkpoint checkpoint, ps::Worker worker) const {
    const auto found = belong_.find({checkpoint, worker});
    return found == belong_.end() ? std::nullopt : std::optional(found->second);
  }
  ps::Checkpoint latest() const { return checkpoint_; }
  bool is_closed(ps::Checkpoint checkpoint) const { return checkpoint == checkpoint_ && !open_; }
  const Pushes& pushes() const { return pushes_; }

  std::uint64_t late = 0;

 private:
  const ServerProtocol& protocol_;
  const PsOracle& oracle_;
  ps::Checkpoint& announced_;
  ps::Checkpoint checkpoint_ = 0;
  bool open_ = false;
  Pushes pushes_;
  std::map<std::pair<ps::Checkpoint, ps::Worker>, std::uint64_t> belong_;
};

class PsJob {
 public:
  PsJob(std::uint64_t seed, PsCoverage& seen, bool traces)
      : random_(seed), seen_(seen), traces_(traces) {
    const std::size_t servers = 1 + random_.below(3);
    const std::size_t workers = 1 + random_.below(5);
    model_ = ps::testing::model_of({{20, 3}, {9}}, draw_mode(workers));
    model_.tables[1].dtype = DType::kFloat64;
    layout_.emplace(model_, static_cast<int>(servers));
    faulty_ = !random_.one_in(8);
    was_faulty_ = faulty_;
    crashes_ = faulty_ && random_.one_in(2);
    pauses_ = faulty_ && random_.one_in(3);
    repeats_ = faulty_ && random_.one_in(2);
    kills_ = faulty_ && random_.one_in(3);
    kept_.resize(servers);
    const std::uint64_t checkpoint_pushes = random_.below(5);  // 0: none
    for (std::size_t server = 0; server < servers; ++server) {
      options_.push_back({.job_id = "job",
                          .server = static_cast<int>(server),
                          .servers = static_cast<int>(servers),
                          .workers = static_cast<int>(workers),
                          .lease_ns = kLease,
                          .checkpoint_pushes = checkpoint_pushes});
      protocols_.push_back(std::make_unique<ServerProtocol>(options_.back()));
      oracles_.emplace_back(PsOracle::Options{.mode = model_.mode,
                                              .workers = workers,
                                              .slots = ps::slot_count(model_),
                                              .lease = kLease});
      parts_.push_back(parts_of(static_cast<int>(server)));
    }
    checkpoint_parts_.resize(servers);
    for (std::size_t server = 0; server < servers; ++server) keep_checkpoints(server);
    for (std::size_t worker = 0; worker < workers; ++worker) {
      actors_.push_back({.number = static_cast<ps::Worker>(worker),
                         .pushes_left = static_cast<int>(2 + random_.below(7))});
    }
    note("job of " + std::to_string(servers) + " servers, " + std::to_string(workers) +
         " workers, mode " + std::to_string(static_cast<int>(model_.mode.kind)) + " policy " +
         std::to_string(static_cast<int>(model_.mode.policy)) + " staleness " +
         std::to_string(model_.mode.staleness) + " backup " +
         std::to_string(model_.mode.backup_workers));
  }

  void run() {
    const std::uint64_t ticks = 150 * actors_.size() + random_.below(400);
    while (now_ < ticks && !all_done()) tick();
    cease();
    for (std::uint64_t rounds = 0; !all_done(); ++rounds) {
      if (rounds == kFairRoundsMax) fail("I27: faults have ceased, and somebody waits on");
      fair_round();
    }
    while (deliver_all()) {
    }
    for (const auto& oracle : oracles_) seen_.silences += oracle.silences();
    check_end();
  }

  std::string trace() const {
    std::string text;
    for (const std::string& line : trace_) text += line + "\n";
    return text;
  }

 private:
  // -----------------------------------------------------------------------------------------
  // The program

  ps::Mode draw_mode(std::size_t workers) {
    switch (random_.below(3)) {
      case 0:
        return {.kind = ModeKind::kAsync,
                .policy = static_cast<StalePolicy>(random_.below(3)),
                .max_staleness = random_.below(4)};
      case 1:
        return {.kind = ModeKind::kSsp, .staleness = random_.below(3)};
      default:
        return {.kind = ModeKind::kSync,
                .backup_workers = static_cast<std::uint32_t>(random_.below(workers))};
    }
  }

  std::vector<Part> parts_of(int server) const {
    std::vector<Part> parts;
    for (const ps::Layout::Piece& piece : layout_->pieces(server)) {
      std::size_t slot = piece.table == 0 ? 0 : model_.tables[0].slots.size();
      const DType dtype = model_.tables[piece.table].dtype;
      for (const ps::Layout::Place& place : layout_->slots(piece.table)) {
        const std::int64_t begin = std::max(place.begin, piece.begin);
        const std::int64_t end = std::min(place.end, piece.end);
        if (begin < end) {
          parts.push_back({.slot = slot,
                           .at = static_cast<std::uint64_t>(begin) * dtype_bytes(dtype) +
                                 layout_->parameters_at(piece.table),
                           .elements = end - begin,
                           .dtype = dtype});
        }
        ++slot;
      }
    }
    return parts;
  }

  void tick() {
    ++now_;
    Actor& actor = actors_[random_.below(actors_.size())];
    if (random_.one_in(3)) {
      act(actor);
    } else if (!connections_.empty()) {
      const std::size_t index = random_open_connection();
      if (random_.one_in(2)) {
        deliver_up(index);
      } else {
        deliver_down(index);
      }
    }
    if (random_.one_in(10)) end_leases(random_.below(protocols_.size()));
    if (faulty_) disturb(actors_[random_.below(actors_.size())]);
    if (faulty_) disturb(random_.below(protocols_.size()));
  }

  std::size_t random_open_connection() {
    for (int tries = 0; tries < 8; ++tries) {
      const std::size_t index = random_.below(connections_.size());
      if (!connections_[index].up.empty() || !connections_[index].down.empty()) return index;
    }
    return random_.below(connections_.size());
  }

  void disturb(Actor& actor) {
    if (crashes_ && random_.one_in(150)) crash(actor, "crashes");
    if (pauses_ && random_.one_in(200)) {
      actor.paused_until = now_ + random_.below(3 * kLease);
      note("worker " + std::to_string(actor.number) + " pauses until " +
           std::to_string(actor.paused_until));
    }
    if (repeats_ && random_.one_in(30)) repeat(actor);
    if (crashes_ && random_.one_in(200)) hurry(actor);
    if (crashes_ && random_.one_in(200)) try_older_life(actor);
  }

  void disturb(std::size_t server) {
    if (kept_[server] == nullptr) return;
    if (kills_ && random_.one_in(100)) kill(server);
    if (kills_ && random_.one_in(200)) keep(server);
  }

  // No faults from here on, and who is off starts again, but for some whom nobody needs.
  void cease() {
    note("faults cease");
    faulty_ = false;
    const bool given = std::all_of(oracles_.begin(), oracles_.end(),
                                   [](const PsOracle& oracle) { return oracle.giver() >= 0; });
    for (Actor& actor : actors_) {
      actor.paused_until = 0;
      actor.stays_off =
          actor.state == Actor::State::kOff && actor.known && given && random_.one_in(2);
    }
  }

  void fair_round() {
    ++now_;
    for (Actor& actor : actors_) act(actor);
    deliver_all();
    for (std::size_t server = 0; server < protocols_.size(); ++server) end_leases(server);
  }

  // In an order of its own each time.
  bool deliver_all() {
    std::vector<std::size_t> order(connections_.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
    for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random_.below(i)]);
    bool any = false;
    for (const std::size_t index : order) {
      any |= deliver_up(index);
      any |= deliver_down(index);
    }
    return any;
  }

  bool all_done() const {
    return std::all_of(actors_.begin(), actors_.end(), [](const Actor& actor) {
      return actor.outbox.empty() && (actor.state == Actor::State::kLeft || actor.stays_off);
    });
  }

  // -----------------------------------------------------------------------------------------
  // Workers

  static bool all_know(const Actor& actor) {
    return actor.state == Actor::State::kReady || actor.state == Actor::State::kPushing ||
           actor.state == Actor::State::kPulling;
  }

  void act(Actor& actor) {
    if (now_ < actor.paused_until || actor.stays_off) return;
    const bool here = actor.state != Actor::State::kOff && actor.state != Actor::State::kLeft;
    if (here && now_ >= actor.beats_at) {
      actor.beats_at = now_ + kBeatEvery;
      for (const std::size_t index : actor.connections) say(index, ps::Beat{});
    }
    if (!actor.outbox.empty()) return send_next(actor);
    if (actor.state == Actor::State::kOff) return start(actor);
    if (actor.state != Actor::State::kReady) return;
    if (random_.one_in(5)) return ask_all(actor, Actor::State::kPulling, ps::Pull{});
    if (actor.pushes_left > 0) return push(actor);
    leave(actor);
  }

  void leave(Actor& actor) {
    for (std::size_t server = 0; server < protocols_.size(); ++server) {
      actor.outbox.push_back({server, ps::Leave{.checkpoint = actor.announced}});
    }
    actor.state = Actor::State::kLeft;
  }

  void start(Actor& actor) {
    ++actor.life;
    actor.process = ++processes_;
    actor.returns.assign(protocols_.size(), Actor::Return::kNone);
    actor.given.assign(protocols_.size(), false);
    actor.answered.assign(protocols_.size(), 0);
    seen_.restarts += actor.life > 1 ? 1 : 0;
    actor.seq = actor.clock = 0;
    actor.announced = actor.marked = 0;
    actor.connections.clear();
    actor.unanswered.assign(protocols_.size(), false);
    actor.bases.assign(protocols_.size(), 0);
    actor.sent.assign(protocols_.size(), std::nullopt);
    actor.memory = std::make_shared<std::vector<std::byte>>(layout_->memory_bytes());
    actor.first = static_cast<double>(1'000 * (actor.number + 1)) + static_cast<double>(actor.life);
    actor.beats_at = now_ + kBeatEvery;
    actor.gradients = actor.memory;
    for (std::size_t table = 0; table < model_.tables.size(); ++table) {
      fill(*actor.memory, layout_->parameters_at(table), table, 0, layout_->elements(table),
           actor.first);
    }
    note("worker " + std::to_string(actor.number) + " starts life " + std::to_string(actor.life));
    actor.state = Actor::State::kEntering;
    connect(actor);
  }

  std::size_t open(std::size_t server, const Actor& actor) {
    connections_.push_back({.id = static_cast<ServerProtocol::Caller>(connections_.size()),
                            .server = server,
                            .worker = actor.number,
                            .first = actor.first,
                            .memory = actor.memory});
    protocols_[server]->open(connections_.back().id);
    return connections_.size() - 1;
  }

  // To the next server.
  void connect(Actor& actor) {
    const std::size_t server = actor.connections.size();
    actor.connections.push_back(open(server, actor));
    actor.unanswered[server] = true;
    say(actor.connections.back(), entry(actor, actor.life, actor.process, server));
  }

  ps::Enter entry(const Actor& actor, ps::Life life, std::uint64_t process, std::size_t server) {
    return {.job_id = "job",
            .worker = actor.number,
            .life = life,
            .process = process,
            .workers = static_cast<std::int32_t>(actors_.size()),
            .servers = static_cast<std::int32_t>(protocols_.size()),
            .server = static_cast<std::int32_t>(server)};
  }

  void ask_all(Actor& actor, Actor::State state, const Message& message) {
    actor.state = state;
    for (std::size_t server = 0; server < protocols_.size(); ++server) {
      actor.unanswered[server] = true;
      actor.outbox.push_back({server, message});
    }
  }

  void push(Actor& actor) {
    --actor.pushes_left;
    if (random_.one_in(8)) move_gradients(actor);
    actor.gradient = kGradientUnit * static_cast<double>(++gradients_);
    actor.used.clear();
    std::size_t slot = 0;
    for (std::size_t table = 0; table < model_.tables.size(); ++table) {
      for (const ps::Layout::Place& place : layout_->slots(table)) {
        actor.used.push_back(slot++ == 0 || !random_.one_in(4));
        fill(*actor.gradients, layout_->gradients_at(table), table, place.begin, place.end,
             actor.used.back() ? actor.gradient : 0.0);
      }
    }
    ++actor.seq;
    ++actor.clock;
    ask_all(actor, Actor::State::kPushing, push_of(actor, actor.seq));
    for (auto& [server, message] : actor.outbox) {
      if (auto* pushed = std::get_if<ps::Push>(&message)) pushed->base = actor.bases[server];
    }
  }

  // The program has kept the tensors where they lay, and has written to them since.
  void move_gradients(Actor& actor) {
    for (std::size_t table = 0; table < model_.tables.size(); ++table) {
      fill(*actor.gradients, layout_->gradients_at(table), table, 0, layout_->elements(table), -7);
    }
    actor.gradients = std::make_shared<std::vector<std::byte>>(layout_->gradient_bytes());
    ++seen_.moves;
    for (std::size_t server = 0; server < protocols_.size(); ++server) {
      connections_[actor.connections[server]].moves.push_back(actor.gradients);
      actor.outbox.push_back({server, ps::MoveGradients{}});
    }
  }

  ps::Push push_of(const Actor& actor, std::uint64_t seq) const {
    return {.worker = actor.number,
            .seq = seq,
            .clock = actor.clock,
            .rules = {ps::testing::exact_rule(), ps::testing::exact_rule()},
            .used = actor.used};
  }

  void fill(std::vector<std::byte>& memory, std::uint64_t at, std::size_t table, std::int64_t begin,
            std::int64_t end, double value) {
    std::byte* from = memory.data() + at;
    if (model_.tables[table].dtype == DType::kFloat32) {
      std::fill(reinterpret_cast<float*>(from) + begin, reinterpret_cast<float*>(from) + end,
                static_cast<float>(value));
    } else {
      std::fill(reinterpret_cast<double*>(from) + begin, reinterpret_cast<double*>(from) + end,
                value);
    }
  }

  void send_next(Actor& actor) {
    if (actor.returns[actor.outbox.front().first] != Actor::Return::kNone) return;
    auto [server, message] = std::move(actor.outbox.front());
    actor.outbox.pop_front();
    const std::size_t index = actor.connections[server];
    connections_[index].gradient = actor.gradient;
    if (const auto* sent = std::get_if<ps::Push>(&message)) actor.sent[server] = *sent;
    const bool leaves = std::holds_alternative<ps::Leave>(message);
    say(index, std::move(message));
    if (leaves) connections_[index].up.push_back(std::nullopt);
  }

  void say(std::size_t index, Message message) {
    connections_[index].up.push_back(std::move(message));
  }

  void crash(Actor& actor, const std::string& how) {
    if (actor.state == Actor::State::kOff || actor.state == Actor::State::kLeft) return;
    note("worker " + std::to_string(actor.number) + " " + how);
    ++seen_.crashes;
    const bool began = actor.state == Actor::State::kPushing && !actor.outbox.empty() &&
                       actor.outbox.size() < protocols_.size();
    seen_.in_part += began ? 1 : 0;
    for (const std::size_t index : actor.connections) {
      connections_[index].up.push_back(std::nullopt);
      connections_[index].down.clear();
    }
    actor.outbox.clear();
    actor.state = Actor::State::kOff;
  }

  // Says the latest push again, which a socket does not do.
  void repeat(const Actor& actor) {
    if (!all_know(actor)) return;
    const std::size_t server = random_.below(protocols_.size());
    if (!actor.sent[server] || actor.returns[server] != Actor::Return::kNone) return;
    connections_[actor.connections[server]].repeats = true;
    say(actor.connections[server], *actor.sent[server]);
  }

  // Pushes to one server without waiting for the answer, and dies.
  void hurry(Actor& actor) {
    if (actor.state != Actor::State::kPushing || model_.mode.kind == ModeKind::kAsync) return;
    const std::size_t server = random_.below(protocols_.size());
    if (!actor.sent[server] || actor.sent[server]->seq != actor.seq) return;
    if (actor.returns[server] != Actor::Return::kNone) return;
    ps::Push next = *actor.sent[server];
    ++next.seq;
    ++next.clock;
    ++seen_.impatient;
    connections_[actor.connections[server]].repeats = true;
    say(actor.connections[server], next);
    crash(actor, "pushes twice and crashes");
  }

  // A process that should be gone.
  void try_older_life(const Actor& actor) {
    if (!all_know(actor)) return;
    const std::size_t server = random_.below(protocols_.size());
    const std::size_t index = open(server, actor);
    ++seen_.strangers;
    say(index, entry(actor, actor.life - random_.below(actor.life), ++processes_, server));
    say(index, push_of(actor, actor.seq + 1));
    connections_[index].up.push_back(std::nullopt);
  }

  bool deliver_down(std::size_t index) {
    Connection& connection = connections_[index];
    if (connection.down.empty()) return false;
    Actor& actor = actors_[static_cast<std::size_t>(connection.worker)];
    if (now_ < actor.paused_until) return false;
    const Message message = std::move(connection.down.front());
    connection.down.pop_front();
    const std::size_t server = connection.server;
    if (actor.connections.size() <= server || actor.connections[server] != index) return true;
    if (actor.state != Actor::State::kOff) hear(actor, server, message);
    return true;
  }

  void hear(Actor& actor, std::size_t server, const Message& message) {
    if (std::holds_alternative<ps::Refused>(message)) return crash(actor, "was refused");
    if (actor.returns[server] != Actor::Return::kNone) return return_to(actor, server);
    if (const auto* welcome = std::get_if<ps::Welcome>(&message)) {
      actor.unanswered[server] = false;
      actor.seq = std::max(actor.seq, welcome->decided);
      if (server + 1 < protocols_.size()) return connect(actor);
      actor.known = true;
      return ask_all(actor, Actor::State::kDeclaring, ps::Declare{.decided = actor.seq});
    }
    const Connection& connection = connections_[actor.connections[server]];
    if (const auto* ready = std::get_if<ps::Ready>(&message)) {
      check_memory(server, connection, connection.written, "when the answer comes");
      seen_.pulls += actor.state == Actor::State::kPulling ? 1 : 0;
      actor.clock = std::max(actor.clock, ready->clock);
      actor.announced = std::max(actor.announced, ready->checkpoint);
      actor.given[server] = true;
      return answered(actor, server, ready->version);
    }
    const auto* ack = std::get_if<ps::Ack>(&message);
    if (ack == nullptr) fail("a worker hears what it has not asked for");
    const bool expected = actor.state == Actor::State::kPushing && actor.unanswered[server] &&
                          ack->seq == actor.seq && actor.sent[server]->seq == actor.seq;
    if (!expected) {
      if (!connection.repeats) fail("I21: a push is answered twice");
      return;
    }
    const bool duplicate = ack->outcome == Outcome::kDuplicate;
    if (duplicate && !connection.returns) fail("I21: a push was decided before it came");
    const bool applied = oracles_[server].has_applied(actor.number, ack->seq);
    if (!duplicate && applied != (ack->outcome == Outcome::kApplied)) {
      fail("I21: a push is not told as it was");
    }
    if (!connection.repeats && connection.written != ack->version) {
      fail("I22: the parameters are not those of the version that the answer names");
    }
    check_memory(server, connection, connection.written, "when the answer comes");
    const bool all_in = model_.mode.kind == ModeKind::kSync && model_.mode.backup_workers == 0;
    if (all_in && undisturbed() && ack->outcome == Outcome::kLate) {
      fail("I24: a round goes on without a worker that nothing has happened to");
    }
    seen_.stale += ack->outcome == Outcome::kStale ? 1 : 0;
    seen_.late += ack->outcome == Outcome::kLate ? 1 : 0;
    actor.clock = std::max(actor.clock, ack->clock);
    actor.announced = std::max(actor.announced, ack->checkpoint);
    actor.answered[server] = ack->seq;
    answered(actor, server, ack->version);
    if (actor.state == Actor::State::kReady) ++seen_.pushes;
  }

  // Its server came back.
  void call_again(Actor& actor, std::size_t server) {
    const bool was_entering =
        actor.state == Actor::State::kEntering && server + 1 == actor.connections.size();
    actor.returns[server] = was_entering ? Actor::Return::kNone : Actor::Return::kEnters;
    actor.connections[server] = open(server, actor);
    connections_.back().returns = true;
    connections_.back().gradient = actor.gradient;
    std::erase_if(actor.outbox, [&](const auto& each) {  // it is told where they lie now
      return each.first == server && std::holds_alternative<ps::MoveGradients>(each.second);
    });
    say(actor.connections[server], entry(actor, actor.life, actor.process, server));
    ++seen_.returns;
  }

  // It has heard Welcome, or then Ready, and asks what has no answer.
  void return_to(Actor& actor, std::size_t server) {
    const std::size_t index = actor.connections[server];
    if (actor.returns[server] == Actor::Return::kEnters && actor.given[server]) {
      actor.returns[server] = Actor::Return::kDeclares;
      const bool pushes = actor.state == Actor::State::kPushing;
      return say(index, ps::Declare{.decided = pushes ? actor.seq - 1 : actor.seq,
                                    .returns = true,
                                    .answered = actor.answered[server]});
    }
    actor.returns[server] = Actor::Return::kNone;
    if (actor.given[server] && actor.gradients != actor.memory) {
      connections_[index].moves.push_back(actor.gradients);
      say(index, ps::MoveGradients{});
    }
    if (actor.given[server] && actor.marked > 0) say(index, ps::Mark{.checkpoint = actor.marked});
    const bool is_to_be_asked = std::any_of(actor.outbox.begin(), actor.outbox.end(),
                                            [&](const auto& each) { return each.first == server; });
    if (!actor.unanswered[server] || is_to_be_asked) return;
    if (actor.state == Actor::State::kDeclaring) say(index, ps::Declare{.decided = actor.seq});
    if (actor.state == Actor::State::kPushing) say(index, *actor.sent[server]);
    if (actor.state == Actor::State::kPulling) say(index, ps::Pull{});
  }

  bool undisturbed() const {
    return !was_faulty_ && std::all_of(oracles_.begin(), oracles_.end(),
                                       [](const PsOracle& one) { return one.silences() == 0; });
  }

  void answered(Actor& actor, std::size_t server, std::uint64_t version) {
    if (version < actor.bases[server]) fail("I23: an answer takes back what was seen");
    actor.unanswered[server] = false;
    actor.bases[server] = version;
    const auto& waiting = actor.unanswered;
    if (std::find(waiting.begin(), waiting.end(), true) == waiting.end()) {
      actor.state = Actor::State::kReady;
      mark(actor);
    }
  }

  // Between two pushes: those before belong to the checkpoint.
  void mark(Actor& actor) {
    if (actor.marked == actor.announced) return;
    actor.marked = actor.announced;
    for (std::size_t server = 0; server < protocols_.size(); ++server) {
      actor.outbox.push_back({server, ps::Mark{.checkpoint = actor.marked}});
    }
  }

  // -----------------------------------------------------------------------------------------
  // Servers

  void keep_checkpoints(std::size_t server) {
    checkpoint_parts_[server] =
        std::make_unique<CheckpointPart>(*protocols_[server], oracles_[server], announced_);
    protocols_[server]->keep_checkpoints(checkpoint_parts_[server].get(), announced_);
  }

  // Once all have closed their parts of one: each has the pushes that their workers have made
  // before they told it so, of those that it has applied, and no others; so have all the same.
  void check_checkpoint() {
    for (const auto& part : checkpoint_parts_) {
      if (announced_ == checked_ || !part->is_closed(announced_)) return;
    }
    checked_ = announced_;
    ++seen_.checkpoints;
    for (std::size_t server = 0; server < protocols_.size(); ++server) {
      const CheckpointPart& part = *checkpoint_parts_[server];
      for (const auto& push : oracles_[server].applied()) {
        const bool is_in = part.pushes().contains(push);
        const auto last = part.last_of(checked_, push.first);
        if (last && is_in != (push.second <= *last)) fail_part(server, push, is_in);
        const bool of_both = oracles_[0].has_applied(push.first, push.second) && last &&
                             checkpoint_parts_[0]->last_of(checked_, push.first);
        if (of_both && is_in != checkpoint_parts_[0]->pushes().contains(push)) {
          fail_part(server, push, is_in);
        }
      }
    }
  }

  [[noreturn]] void fail_part(std::size_t server, std::pair<ps::Worker, std::uint64_t> push,
                              bool is_in) const {
    fail("I29: push " + std::to_string(push.second) + " of worker " + std::to_string(push.first) +
         (is_in ? " is" : " is not") + " in the part of server " + std::to_string(server) +
         " of checkpoint " + std::to_string(checked_));
  }

  void keep(std::size_t server) {
    kept_[server] = std::make_unique<ps::testing::Kept>(*protocols_[server]);
    oracles_[server].snapshot();
  }

  // Another one takes its place, with what it has kept.
  void kill(std::size_t server) {
    for (const Connection& each : connections_) {
      const bool leaves = std::any_of(each.up.begin(), each.up.end(), [](const auto& message) {
        return message && std::holds_alternative<ps::Leave>(*message);
      });
      // Whose last word it has not heard would be waited for.
      if (each.server == server && leaves) return;
    }
    note("server " + std::to_string(server) + " is killed and comes back");
    ++seen_.server_crashes;
    auto again = std::make_unique<ServerProtocol>(options_[server]);
    const Status made = kept_[server]->make_again(*again, now_);
    if (!made) fail("I28: a server does not come back: " + made.error().text);
    const ps::Shard::Arrays before = protocols_[server]->arrays(), after = again->arrays();
    for (std::size_t i = 0; i < before.size(); ++i) {
      if (!std::ranges::equal(before[i], after[i])) fail("I28: a server comes back otherwise");
    }
    protocols_[server] = std::move(again);
    protocols_[server]->keep_journal(kept_[server].get());
    oracles_[server].restart(now_);
    keep_checkpoints(server);
    for (Connection& each : connections_) {
      if (each.server != server || each.ended) continue;
      each.ended = true;
      each.up.clear();
      each.down.clear();
      each.memory.reset();
    }
    for (Actor& actor : actors_) {
      const bool leaves = actor.state == Actor::State::kLeft &&
                          std::any_of(actor.outbox.begin(), actor.outbox.end(),
                                      [&](const auto& each) { return each.first == server; });
      const bool here = actor.state != Actor::State::kOff && actor.state != Actor::State::kLeft;
      if ((here || leaves) && actor.connections.size() > server) call_again(actor, server);
    }
  }

  bool deliver_up(std::size_t index) {
    Connection& connection = connections_[index];
    if (connection.up.empty()) return false;
    const std::optional<Message> message = std::move(connection.up.front());
    connection.up.pop_front();
    ServerProtocol& protocol = *protocols_[connection.server];
    ServerProtocol::Answers answers;
    PsOracle::Answers expected;
    if (!message) {
      note("server " + std::to_string(connection.server) + " loses " + std::to_string(index));
      protocol.close(connection.id, now_, answers);
      oracles_[connection.server].close(connection.id, /*left=*/false, expected);
      connection.ended = true;
    } else {
      note("server " + std::to_string(connection.server) + " takes " + name_of(*message) +
           number_of(*message) + " of worker " + std::to_string(connection.worker) + " from " +
           std::to_string(index));
      take(connection, *message, answers, expected);
    }
    const bool pushed = message && std::holds_alternative<ps::Push>(*message);
    compare(connection.server, answers, std::move(expected), pushed ? "I26" : "I25");
    if (connection.ended) connection.memory.reset();
    check_checkpoint();
    return true;
  }

  static std::string number_of(const Message& message) {
    const auto* push = std::get_if<ps::Push>(&message);
    if (push == nullptr) return "";
    return " " + std::to_string(push->seq) + " of version " + std::to_string(push->base) +
           " clock " + std::to_string(push->clock);
  }

  void take(Connection& connection, const Message& message, ServerProtocol::Answers& answers,
            PsOracle::Answers& expected) {
    const ServerProtocol::Attached attached{
        .model_blob = [&](std::uint64_t) -> Result<std::vector<std::byte>> {
          std::vector<std::byte> model_blob;
          encode(model_, model_blob);
          return model_blob;
        },
        .memory = [&](std::uint64_t bytes) -> Result<std::byte*> {
          if (std::holds_alternative<ps::MoveGradients>(message)) {
            return take_moved(connection, bytes);
          }
          if (bytes != layout_->memory_bytes()) fail("a server maps another size");
          return connection.memory->data();
        }};
    PsOracle& oracle = oracles_[connection.server];
    const ServerProtocol::Caller id = connection.id;
    if (const auto* enter = std::get_if<ps::Enter>(&message)) {
      oracle.enter(id, *enter, now_, expected);
    } else if (const auto* declare = std::get_if<ps::Declare>(&message)) {
      connection.declares_again = declare->returns;
      oracle.declare(id, connection.first, declare->decided, now_, expected);
    } else if (const auto* push = std::get_if<ps::Push>(&message)) {
      oracle.push(id,
                  {.seq = push->seq,
                   .base = push->base,
                   .clock = push->clock,
                   .gradient = connection.gradient,
                   .used = push->used},
                  now_, expected);
    } else if (std::holds_alternative<ps::Pull>(message)) {
      oracle.pull(id, now_, expected);
    } else if (std::holds_alternative<ps::Leave>(message)) {
      oracle.close(id, /*left=*/true, expected);
    } else {
      oracle.beat(id, now_);
    }
    const bool is_asked = !connection.declares_again || !connection.memory;
    const auto before = is_asked ? std::vector<std::byte>() : *connection.memory;
    protocols_[connection.server]->take(id, message, attached, now_, answers);
    if (const auto* told = std::get_if<ps::Mark>(&message); told != nullptr) {
      checkpoint_parts_[connection.server]->hear_mark(connection.worker, told->checkpoint);
    }
    if (!is_asked && before != *connection.memory) {
      fail("I22: a worker that returns is given what it has not asked for");
    }
  }

  Result<std::byte*> take_moved(Connection& connection, std::uint64_t bytes) const {
    if (bytes != layout_->gradient_bytes()) fail("a server maps another size");
    connection.moved.push_back(std::move(connection.moves.front()));
    connection.moves.pop_front();
    return connection.moved.back()->data();
  }

  void end_leases(std::size_t server) {
    ServerProtocol::Answers answers;
    PsOracle::Answers expected;
    protocols_[server]->end_leases(now_, answers);
    oracles_[server].end_leases(now_, expected);
    compare(server, answers, std::move(expected), "I25");
  }

  static PsAnswer plain(const ServerProtocol::Answer& answer) {
    PsAnswer plain{.to = answer.to};
    if (const auto* welcome = std::get_if<ps::Welcome>(&answer.message)) {
      plain.kind = PsAnswer::Kind::kWelcome;
      plain.number = welcome->decided;
    } else if (const auto* ready = std::get_if<ps::Ready>(&answer.message)) {
      plain.kind = PsAnswer::Kind::kReady;
      plain.version = ready->version;
      plain.clock = ready->clock;
    } else if (const auto* ack = std::get_if<ps::Ack>(&answer.message)) {
      plain.number = ack->seq;
      plain.outcome = ack->outcome;
      plain.version = ack->version;
      plain.clock = ack->clock;
    } else {
      plain.kind = PsAnswer::Kind::kRefused;
    }
    return plain;
  }

  // `broken`: by a refusal that is missing.
  void compare(std::size_t server, const ServerProtocol::Answers& answers,
               PsOracle::Answers expected, const char* broken) {
    const PsOracle& oracle = oracles_[server];
    for (const ServerProtocol::Answer& answer : answers) {
      const PsAnswer given = plain(answer);
      note("  server " + std::to_string(server) + " answers " + words_of(given));
      const auto same = std::find_if(expected.begin(), expected.end(), [&](const PsAnswer& each) {
        return each.to == given.to && each.kind == given.kind;
      });
      if (same == expected.end()) fail_unexpected(answer, given);
      if (given != *same) fail_otherwise(given, *same);
      expected.erase(same);
      Connection& to = connections_[static_cast<std::size_t>(answer.to)];
      if (given.kind == PsAnswer::Kind::kReady || given.kind == PsAnswer::Kind::kAck) {
        const bool writes =
            given.kind == PsAnswer::Kind::kAck || !std::exchange(to.declares_again, false);
        if (writes) to.written = given.version;
        if (writes) check_memory(server, to, given.version, "as it is answered");
        seen_.duplicates += given.outcome == Outcome::kDuplicate ? 1 : 0;
      }
      to.ended = to.ended || answer.hangs_up;
      if (to.ended && !answer.hangs_up) fail("I25: who is gone is answered");
      to.down.push_back(answer.message);
      if (answer.hangs_up) to.memory.reset();
    }
    for (const PsAnswer& missing : expected) {
      const bool is_heard = missing.kind == PsAnswer::Kind::kRefused;
      fail((is_heard ? std::string(broken) + ": is heard: " : "I27: is not answered: ") +
           words_of(missing));
    }
    if (answers.empty()) ++seen_.waits;
    if (kept_[server] == nullptr && oracle.giver() >= 0) keep(server);
    check_stats(server);
  }

  // By which workers that come back go on.
  void check_stats(std::size_t server) const {
    const ps::Stats stats = protocols_[server]->stats();
    const PsOracle& oracle = oracles_[server];
    if (stats.version != oracle.version()) {
      fail("I21: version " + std::to_string(stats.version) + " instead of " +
           std::to_string(oracle.version()));
    }
    for (std::size_t worker = 0; worker < stats.workers.size(); ++worker) {
      if (stats.workers[worker].pushes == oracle.pushes(worker)) continue;
      fail("I21: server " + std::to_string(server) + " tells of " +
           std::to_string(stats.workers[worker].pushes) + " pushes of worker " +
           std::to_string(worker) + ", and has decided " + std::to_string(oracle.pushes(worker)));
    }
  }

  [[noreturn]] void fail_unexpected(const ServerProtocol::Answer& answer, const PsAnswer& given) {
    if (given.kind == PsAnswer::Kind::kRefused) {
      fail("I25: is refused: " + std::get<ps::Refused>(answer.message).text);
    }
    const Connection& to = connections_[static_cast<std::size_t>(answer.to)];
    if (to.ended) fail("I25: who is gone is answered");
    fail("I24: is answered too early: " + words_of(given));
  }

  [[noreturn]] void fail_otherwise(const PsAnswer& given, const PsAnswer& expected) {
    const bool once = given.outcome == Outcome::kDuplicate ||
                      expected.outcome == Outcome::kDuplicate || given.number != expected.number;
    const bool gate = given.outcome != expected.outcome || given.clock != expected.clock;
    const char* broken = once ? "I21: " : gate ? "I24: " : "I22: ";
    fail(broken + words_of(given) + " instead of " + words_of(expected));
  }

  // The server's part of the worker's parameters is that version.
  void check_memory(std::size_t server, const Connection& connection, std::uint64_t version,
                    const char* when) {
    if (!connection.memory) return;
    const PsOracle::Values& values = oracles_[server].history()[version];
    for (const Part& part : parts_[server]) {
      const std::byte* at = connection.memory->data() + part.at;
      for (std::int64_t i = 0; i < part.elements; ++i) {
        const double own = part.dtype == DType::kFloat32
                               ? static_cast<double>(reinterpret_cast<const float*>(at)[i])
                               : reinterpret_cast<const double*>(at)[i];
        if (std::abs(own - values[part.slot]) <= kTolerance) continue;
        fail("I22: worker " + std::to_string(connection.worker) + " has " + std::to_string(own) +
             " instead of " + std::to_string(values[part.slot]) + " in slot " +
             std::to_string(part.slot) + " of server " + std::to_string(server) + " version " +
             std::to_string(version) + " " + when);
      }
    }
  }

  void check_end() {
    const bool all = std::all_of(actors_.begin(), actors_.end(), [](const Actor& actor) {
      return actor.state == Actor::State::kLeft;
    });
    for (std::size_t server = 0; server < protocols_.size(); ++server) {
      if (oracles_[server].giver() != oracles_[0].giver()) {
        fail("I22: two servers have the first parameters of different workers");
      }
      if (protocols_[server]->all_have_left() != all) fail("I27: a server does not know its end");
      if (all) protocols_[server]->end_checkpoints();
    }
    for (const auto& part : checkpoint_parts_) {
      if (all && part->latest() != checkpoint_parts_[0]->latest()) {
        fail("I29: two servers end with different checkpoints");
      }
      seen_.late_pushes += part->late;
    }
  }

  void note(std::string line) {
    if (traces_) trace_.push_back(std::to_string(now_) + " " + std::move(line));
  }
  [[noreturn]] static void fail(const std::string& text) { throw Violation{text}; }

  SimRandom random_;
  std::uint64_t processes_ = 0;
  PsCoverage& seen_;
  const bool traces_;
  ps::Model model_;
  std::optional<ps::Layout> layout_;
  bool faulty_ = false, was_faulty_ = false, crashes_ = false, pauses_ = false, repeats_ = false,
       kills_ = false;
  std::uint64_t now_ = 0;
  std::uint64_t gradients_ = 0;
  std::vector<ps::ServerProtocolOptions> options_;
  std::vector<std::unique_ptr<ServerProtocol>> protocols_;
  std::vector<std::unique_ptr<ps::testing::Kept>> kept_;  // by server, once it has parameters
  std::vector<std::unique_ptr<CheckpointPart>> checkpoint_parts_;  // by server
  ps::Checkpoint announced_ = 0;
  ps::Checkpoint checked_ = 0;
  std::vector<PsOracle> oracles_;
  std::vector<std::vector<Part>> parts_;  // by server
  std::vector<Actor> actors_;
  std::deque<Connection> connections_;  // by number; they stay where they are
  std::vector<std::string> trace_;
};

std::optional<std::string> play(std::uint64_t seed, PsCoverage& coverage, bool traces) {
  PsJob job(seed, coverage, traces);
  try {
    job.run();
  } catch (const Violation& broken) {
    return job.trace() + broken.text;
  }
  return std::nullopt;
}

}  // namespace

std::optional<std::string> run_ps_job(std::uint64_t seed, PsCoverage& coverage) {
  ++coverage.jobs;
  if (!play(seed, coverage, /*traces=*/false)) return std::nullopt;
  PsCoverage again;
  return play(seed, again, /*traces=*/true);
}

}  // namespace ciranda::sim
