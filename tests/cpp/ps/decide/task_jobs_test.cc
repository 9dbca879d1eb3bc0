// What could break: a task's push that counts twice on some server, or on none, because a worker, a
// server or the coordinator was lost in between.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "core/ps/decide/model_codec.h"
#include "core/ps/decide/server_protocol.h"
#include "ps/decide/kept.h"
#include "ps/decide/models.h"
#include "sanitizers.h"

namespace ciranda::ps {
namespace {

using testing::kLeaseNs;

constexpr int kServers = 2;
constexpr Worker kTaskWorkers = 3;
constexpr TaskId kTasks = 12;

// Each task makes as many pushes, each of which takes 1 from every parameter.
std::uint64_t pushes_of(TaskId task) {
  return task % 4;
}

// A job whose network is calls. Whatever happens happens between two messages to one server.
class TaskJob {
 public:
  explicit TaskJob(std::uint32_t seed) : random_(seed), model_(testing::model_of({{3, 40}, {17}})) {
    for (int server = 0; server < kServers; ++server) start(server);
    for (Worker worker = 0; worker < kTaskWorkers; ++worker) enter(worker);
    kept_.resize(kServers);
    for (int server = 0; server < kServers; ++server) keep(server);
    start_coordinator();
  }

  void run(int steps) {
    for (int i = 0; i < steps; ++i) step();
    while (!all_done()) step(/*faults=*/false);
  }
  // By server, what the tasks have taken from its parameters.
  std::vector<float> taken() {
    std::vector<float> taken;
    for (int server = 0; server < kServers; ++server) {
      taken.push_back(-parameter(server));
    }
    return taken;
  }

 private:
  struct Member {
    Life life = 0;
    std::uint64_t process = 0;
    std::uint64_t seq = 0;
    std::uint64_t clock = 0;
    TaskPart part = {};        // of the latest push
    bool waits = false;        // for a task
    int pushed_to = kServers;  // servers that have the latest push
  };
  static constexpr ServerProtocol::Caller kCoordinator =
      kTaskWorkers;  // a caller is the member's number

  ServerProtocolOptions options_of(int server) const {
    return {.job_id = "job",
            .server = server,
            .servers = kServers,
            .workers = kTaskWorkers,
            .lease_ns = kLeaseNs,
            .keeps_state = true,
            .has_coordinator = true};
  }
  void start(int server) {
    if (protocols_.size() < kServers) protocols_.emplace_back();
    protocols_[at(server)] = std::make_unique<ServerProtocol>(options_of(server));
  }
  void keep(int server) { kept_[at(server)].emplace(*protocols_[at(server)]); }

  void say(int server, Worker from, Message message) {
    std::vector<std::byte> model_blob;
    encode(model_, model_blob);
    std::vector<std::byte>& memory = memory_[{server, from}];
    const ServerProtocol::Attached attached{
        .model_blob = [&](std::uint64_t) -> Result<std::vector<std::byte>> { return model_blob; },
        .memory = [&](std::uint64_t bytes) -> Result<std::byte*> {
          memory.resize(static_cast<std::size_t>(bytes));
          return memory.data();
        }};
    ServerProtocol::Answers answers;
    protocols_[at(server)]->take(from, std::move(message), attached, now_ns_, answers);
    hear(server, answers);
  }
  void hear(int server, const ServerProtocol::Answers& answers) {
    for (const ServerProtocol::Answer& answer : answers) {
      const auto* refused = std::get_if<Refused>(&answer.message);
      ASSERT_EQ(refused, nullptr) << "server " << server << " to " << answer.to << ": "
                                  << refused->text;
      if (const auto* given = std::get_if<Given>(&answer.message)) {
        Member& member = members_[at(answer.to)];
        member.waits = false;
        member.part = {.task = given->task, .part = 0, .settled = given->settled};
      } else if (const auto* told = std::get_if<TaskStatus>(&answer.message)) {
        if (told->done) known_done_ = std::max(known_done_, told->task);
      } else if (const auto* welcome = std::get_if<Welcome>(&answer.message)) {
        Member& member = members_[at(answer.to)];
        member.seq = std::max(member.seq, welcome->decided);
        scheduled_ = answer.to == kCoordinator && server == 0 ? welcome->scheduled : scheduled_;
      } else if (const auto* ack = std::get_if<Ack>(&answer.message)) {
        Member& member = members_[at(answer.to)];
        member.clock = std::max(member.clock, ack->clock);
      }
    }
  }

  Enter entry(int server, Worker worker) const {
    return {.job_id = "job",
            .worker = worker,
            .life = members_[at(worker)].life,
            .process = members_[at(worker)].process,
            .workers = kTaskWorkers,
            .servers = kServers,
            .server = server};
  }
  // A new process; what it had is gone.
  void enter(Worker worker) {
    Member& member = members_[at(worker)];
    member = {.life = member.life + 1, .process = ++processes_};
    for (int server = 0; server < kServers; ++server) {
      hang_up(server, worker);
      protocols_[at(server)]->open(worker);
      say(server, worker, entry(server, worker));
    }
    for (int server = 0; server < kServers; ++server) {
      say(server, worker, Declare{.model_bytes = 1, .decided = member.seq});
    }
  }
  void hang_up(int server, Worker worker) {
    ServerProtocol::Answers answers;
    protocols_[at(server)]->close(worker, now_ns_, answers);
    hear(server, answers);
  }
  void start_coordinator() {
    Member& member = members_[at(kCoordinator)];
    member = {.life = member.life + 1, .process = ++processes_};
    for (int server = 0; server < kServers; ++server) {
      hang_up(server, kCoordinator);
      protocols_[at(server)]->open(kCoordinator);
      say(server, kCoordinator, entry(server, kCoordinator));
    }
    next_ = 1;
  }

  // It is killed, and another one goes on with what it kept: who was there calls again.
  void restart(int server) {
    start(server);
    const Status made = kept_[at(server)]->make_again(*protocols_[at(server)], now_ns_);
    ASSERT_TRUE(made.ok()) << made.error().text;
    keep(server);
    for (Worker each = 0; each <= kTaskWorkers; ++each) {
      Member& member = members_[at(each)];
      protocols_[at(server)]->open(each);
      say(server, each, entry(server, each));
      if (each == kCoordinator) {
        if (server == 0) next_ = std::min<TaskId>(next_, scheduled_ + 1);
        continue;
      }
      const bool has_it = server < member.pushed_to;
      const std::uint64_t answered = has_it ? member.seq : member.seq - 1;
      say(server, each,
          Declare{.model_bytes = 1, .decided = answered, .returns = true, .answered = answered});
      if (server == 0 && member.waits) say(0, each, take_of(member));
    }
  }

  static TakeTask take_of(const Member& member) { return {.done = member.part.task, .text = "x"}; }

  void step(bool faults = true) {
    now_ns_ += draw(3);
    const std::uint64_t what = draw(faults ? 40 : 30);
    if (what == 39) return restart(static_cast<int>(draw(kServers)));
    if (what == 38) return start_coordinator();
    if (what >= 36) return enter(static_cast<Worker>(draw(kTaskWorkers)));
    if (what >= 34) return let_leases_end();
    if (what >= 25) return coordinate();
    work(static_cast<Worker>(draw(kTaskWorkers)));
  }
  // All but one who is drawn have just been heard.
  void let_leases_end() {
    const auto silent = static_cast<Worker>(draw(kTaskWorkers));
    now_ns_ += kLeaseNs - 1;
    for (int server = 0; server < kServers; ++server) {
      for (Worker each = 0; each <= kTaskWorkers; ++each) {
        if (each != silent) say(server, each, Beat{});
      }
    }
    now_ns_ += 1;
    for (int server = 0; server < kServers; ++server) {
      ServerProtocol::Answers answers;
      protocols_[at(server)]->end_leases(now_ns_, answers);
      hear(server, answers);
    }
  }
  void coordinate() {
    if (next_ <= kTasks) {
      const int copies = next_ % 3 == 0 ? 2 : 1;
      say(0, kCoordinator,
          Schedule{.task = next_, .copies = copies, .call = std::to_string(next_)});
      ++next_;
    } else {
      say(0, kCoordinator, AskTask{.task = 1 + draw(kTasks)});
    }
  }
  // What it does next: a push to one more server, or a question for the next task.
  void work(Worker worker) {
    Member& member = members_[at(worker)];
    if (member.waits) return say(0, worker, Beat{});
    if (member.pushed_to == kServers) {
      if (member.part.task == 0 || member.part.part == pushes_of(member.part.task)) {
        member.waits = true;
        return say(0, worker, take_of(member));
      }
      ++member.part.part;
      ++member.seq;
      ++member.clock;
      member.pushed_to = 0;
    }
    const int server = member.pushed_to++;
    auto* gradients = reinterpret_cast<float*>(memory_[{server, worker}].data());
    std::fill_n(gradients, Layout(model_, kServers).gradient_bytes() / sizeof(float), 1.0f);
    Push push{.worker = worker, .seq = member.seq, .clock = member.clock};
    for (const Table& table : model_.tables) push.rules.push_back(table.rule);
    push.used.assign(slot_count(model_), true);
    push.of = member.part;
    say(server, worker, std::move(push));
  }
  bool all_done() {
    if (next_ <= kTasks) return false;
    known_done_ = 0;
    for (TaskId task = 1; task <= kTasks; ++task) {
      known_done_ = 0;
      say(0, kCoordinator, AskTask{.task = task});
      if (known_done_ != task) return false;
    }
    return true;
  }
  float parameter(int server) {
    const Worker other = kTaskWorkers - 1;
    enter(other);
    say(server, other, Pull{});
    const Layout layout(model_, kServers);
    const Layout::Piece& piece = layout.pieces(server).front();
    const std::uint64_t where =
        layout.parameters_at(piece.table) + static_cast<std::uint64_t>(piece.begin) * sizeof(float);
    return *reinterpret_cast<const float*>(memory_[{server, other}].data() + where);
  }

  std::uint64_t draw(std::uint64_t below) { return random_() % below; }
  static std::size_t at(int number) { return static_cast<std::size_t>(number); }

  std::mt19937 random_;
  const Model model_;
  std::uint64_t now_ns_ = 1'000;
  std::uint64_t processes_ = 0;
  std::vector<std::unique_ptr<ServerProtocol>> protocols_;
  std::vector<std::optional<testing::Kept>> kept_;
  std::map<std::pair<int, Worker>, std::vector<std::byte>> memory_;
  std::vector<Member> members_ = std::vector<Member>(kTaskWorkers + 1);
  TaskId next_ = 1;       // that the coordinator schedules
  TaskId scheduled_ = 0;  // as server 0 has said
  TaskId known_done_ = 0;
};

TEST(TaskJobs, EachPushOfATaskCountsOnceWhoeverIsLost) {
  float expected = 0.0f;
  for (TaskId task = 1; task <= kTasks; ++task) expected += static_cast<float>(pushes_of(task));
  for (std::uint32_t seed = 0; seed < ciranda::testing::tries(500); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    TaskJob job(seed);
    job.run(400);
    EXPECT_EQ(job.taken(), std::vector<float>(kServers, expected));
    if (::testing::Test::HasFailure()) return;
  }
}

}  // namespace
}  // namespace ciranda::ps
