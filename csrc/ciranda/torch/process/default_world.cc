#include "ciranda/torch/process/default_world.h"

#include <ciranda/torch.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <map>
#include <thread>
#include <utility>

#include "ciranda/torch/process/loss_report.h"
#include "ciranda/torch/process/row_tables.h"
#include "ciranda/torch/tensor/error.h"
#include "ciranda/torch/tensor/heap.h"
#include "ciranda/torch/tensor/tensor_view.h"
#include "core/base/assert.h"
#include "core/base/mutex.h"
#include "core/engine/run/backends.h"
#include "core/member/hosts.h"

namespace ciranda {
namespace {

constexpr std::uint64_t kMeetingMs = 600'000;  // in which all members of an epoch must come
constexpr std::chrono::microseconds kEndPause{200};
constexpr int kCoordinatorNumber = 1'000'000;  // the launcher's, see launch/plan/processes.py

struct OtherProcess {
  explicit OtherProcess(pid_t number)
      : pid(number), fd(static_cast<int>(::syscall(SYS_pidfd_open, number, 0))) {}

  bool has_ended() const {
    if (!fd.valid()) return ::kill(pid, 0) != 0 && errno == ESRCH;  // an old kernel
    pollfd end{.fd = fd.get(), .events = POLLIN, .revents = 0};
    return ::poll(&end, 1, 0) > 0;
  }

  pid_t pid;
  Fd fd;  // readable once it has ended
};

// The state that a process has once. A process has one World or one connection to its servers.
struct Process {
  Mutex mutex;
  std::shared_ptr<World> world GUARDED_BY(mutex);
  std::shared_ptr<ps::Client> client GUARDED_BY(mutex);
  std::uint64_t connections GUARDED_BY(mutex) = 0;              // to servers, so far
  std::shared_ptr<const Communicator> whole GUARDED_BY(mutex);  // of all ranks
  std::map<GroupId, std::shared_ptr<const Communicator>> parts GUARDED_BY(mutex);  // used so far
  std::function<void()> show_where GUARDED_BY(mutex);
  std::function<bool()> interrupted GUARDED_BY(mutex);
  Handover handover GUARDED_BY(mutex);
  // In an elastic job, from the first init() on: this process's socket to the arbiter, and the
  // settings of its Worlds.
  std::shared_ptr<Member> member GUARDED_BY(mutex);
  Config config GUARDED_BY(mutex);
  member::NewEpoch epoch GUARDED_BY(mutex);  // of the World; number 0: a World of one rank
  // The other processes that were in its World or in an earlier one.
  std::map<member::Incarnation, OtherProcess> others GUARDED_BY(mutex);
  LossReport loss_report GUARDED_BY(mutex);                      // as of the latest init()
  std::shared_ptr<TorchStream> device_stream GUARDED_BY(mutex);  // on this rank's GPU

  // The fork handler and the forked child read these without the mutex.
  std::atomic<Engine*> engine_at_fork{nullptr};
  std::atomic<ps::Client*> client_at_fork{nullptr};
  std::atomic<bool> forked{false};
  RankInfo rank_info;
  Hosts hosts;               // of the job
  bool coordinates = false;  // the process is the coordinator, not a rank
};
Process process;                           // NOLINT: the one of this process
thread_local bool begins_or_ends = false;  // NOLINT: this thread runs init() or shutdown()

// Must not touch a mutex: the child has only the thread that forked, so any mutex may stay locked
// for ever.
void child_after_fork() {
  if (Engine* engine = process.engine_at_fork.load()) {
    process.forked.store(true);
    engine->after_fork_in_child();
  } else if (ps::Client* of_servers = process.client_at_fork.load()) {
    process.forked.store(true);
    of_servers->close_in_forked_child();
  }
}

std::shared_ptr<ps::Client> connect_to_servers(const Config& config) REQUIRES(process.mutex) {
  if (config.with_comm) {
    throw Exception({.code = ErrorCode::kUnsupported,
                     .text = "init: comm has no meaning in a job with parameter servers (--ps), "
                             "whose ranks do not meet; leave it out"});
  }
  if (config.keep_heap) keep_heap_between_steps();
  std::shared_ptr<const ConnectionKeys> keys;
  if (config.has_servers_elsewhere()) {
    check(take_key(config, process.handover, std::exchange(process.handover.taken, true)));
    keys = unwrap(ConnectionKeys::of_job(*process.handover.key, config.servers_job, /*epoch=*/0,
                                         config.remote.tls));
  }
  return unwrap(ps::Client::connect(
      {.address = {.folder = config.job_folder,
                   .servers = config.servers,
                   .keys = std::move(keys),
                   .authenticates = config.engine.ring.authenticates,
                   .worker = config.coordinates ? config.rank_info.size : config.rank_info.rank,
                   // Each connection is a new life, see Membership.
                   .life = config.life_base + ++process.connections,
                   .timeout_ms = config.start_timeout_ms},
       .job_id = config.servers_job,
       .workers = config.rank_info.size,
       .origin = ps::origin_of_worker(config),
       .patience_ms = config.servers_patience_ms,
       .timeline_path = config.coordinates ? "" : config.timeline_path,
       .coordinates = config.coordinates}));
}

// Returns the ranks of each host. A worker knows only which ranks are on its own host; the other
// hosts get equal shares of the other ranks.
Hosts hosts_of_workers(const RankInfo& rank_info) {
  Hosts hosts(static_cast<std::size_t>(rank_info.cross_size));
  const int others = rank_info.size - rank_info.local_size;
  const int share =
      std::max(1, (others + rank_info.cross_size - 2) / std::max(1, rank_info.cross_size - 1));
  const Rank first = rank_info.rank - rank_info.local_rank;
  for (Rank rank = 0, other = 0; rank < rank_info.size; ++rank) {
    const bool here = rank >= first && rank < first + rank_info.local_size;
    const int host = here ? rank_info.cross_rank : other++ / share;
    hosts[static_cast<std::size_t>(host + (!here && host >= rank_info.cross_rank ? 1 : 0))]
        .push_back(rank);
  }
  return hosts;
}

// Begins a World and makes it the process's.
void begin_world(Config config, Handover& handover) REQUIRES(process.mutex) {
  CIRANDA_ASSERT(process.whole == nullptr && process.parts.empty());  // by end_world()
  config.engine.show_where = process.show_where;
  if (process.interrupted) {
    config.engine.interrupted = [ask = process.interrupted] { return !begins_or_ends && ask(); };
  }
  process.world = unwrap(World::start(std::move(config), handover));
  process.rank_info = process.world->rank_info();
  process.hosts = process.world->engine()->group(kWorldGroup)->hosts;
  process.engine_at_fork.store(process.world->engine().get());
  process.whole = std::make_shared<const Communicator>(Communicator{
      process.world->engine(), process.world->engine()->group(kWorldGroup), default_stream});
}

void end_world() REQUIRES(process.mutex) {
  if (process.world == nullptr) return;
  process.world->shutdown();
  process.engine_at_fork.store(nullptr);
  process.device_stream.reset();
  process.parts.clear();
  process.whole.reset();
  process.world.reset();
}

// Begins the World of one rank in which a process of an elastic job starts. rank() and size() give
// the place that the launcher expects it to have.
void begin_alone(Config config) REQUIRES(process.mutex) {
  if (config.with_comm) {
    throw Exception({.code = ErrorCode::kUnsupported,
                     .text = "init: comm has no meaning in an elastic job, whose ranks change; "
                             "leave it out"});
  }
  if (process.member == nullptr) process.member = std::make_shared<Member>(config.member);
  // The launcher hands the key over once, and each meeting of hosts needs it.
  if (config.remote.key_fd >= 0) {
    check(take_key(config, process.handover, std::exchange(process.handover.taken, true)));
    (void)::fcntl(config.remote.listener_fd, F_SETFD, FD_CLOEXEC);
  }
  process.config = config;
  config.timeline_path.clear();
  const RankInfo expected = std::exchange(config.rank_info, {});
  if (expected.rank != 0) config.warnings.clear();
  Handover handover;
  begin_world(std::move(config), handover);
  process.rank_info = expected;
  process.epoch = {};
}

struct BeginsOrEnds {
  BeginsOrEnds() { begins_or_ends = true; }
  ~BeginsOrEnds() { begins_or_ends = false; }
  BeginsOrEnds(const BeginsOrEnds&) = delete;
  BeginsOrEnds& operator=(const BeginsOrEnds&) = delete;
};

// Registers shutdown() as an exit handler. Must be called after a World was made: by then libcrypto
// has registered its exit handler, and handlers that are registered later run earlier. shutdown()
// needs libcrypto, to seal the goodbye to other hosts.
void shut_down_at_exit() {
  [[maybe_unused]] static const int registered = std::atexit(shutdown);
}

}  // namespace

void init() {
  init_default_world(/*with_comm=*/false);
  const MutexLock lock(process.mutex);
  report_loss_on_terminate(process.loss_report);
}

void init_default_world(bool with_comm) {
  refuse_in_forked_child();
  [[maybe_unused]] static const int registered =
      ::pthread_atfork(nullptr, nullptr, child_after_fork);
  const MutexLock lock(process.mutex);
  if (process.world != nullptr || process.client != nullptr) return;
  const BeginsOrEnds here;
  Config config = unwrap(read_process_config());
  config.with_comm = with_comm;
  process.loss_report = {.error_file = config.error_file,
                         .number = config.coordinates ? kCoordinatorNumber : config.rank_info.rank,
                         .has_servers = !config.servers.empty()};
  if (!config.servers.empty()) {
    process.client = connect_to_servers(config);
    process.rank_info = config.rank_info;
    process.hosts = hosts_of_workers(process.rank_info);
    process.coordinates = config.coordinates;
    process.client_at_fork.store(process.client.get());
    shut_down_at_exit();
    return;
  }
  if (config.member.fd >= 0) {
    begin_alone(std::move(config));
  } else {
    begin_world(std::move(config), process.handover);
  }
  shut_down_at_exit();
}

std::shared_ptr<Member> elastic_member() {
  refuse_in_forked_child();
  const MutexLock lock(process.mutex);
  return process.member;
}

bool in_elastic_job_of_hosts() {
  const MutexLock lock(process.mutex);
  return process.member != nullptr && process.config.remote.key_fd >= 0;
}

member::EpochNumber own_epoch() {
  const MutexLock lock(process.mutex);
  return process.epoch.number;
}

void begin_epoch(const member::NewEpoch& epoch) {
  refuse_in_forked_child();
  const MutexLock lock(process.mutex);
  CIRANDA_ASSERT(process.member != nullptr);  // by init(), in an elastic job
  const BeginsOrEnds here;
  end_world();
  process.epoch = epoch;
  Config config = process.config;
  const member::MemberPlace place = member::place_of_member(epoch, process.member->incarnation());
  const int local_size = static_cast<int>(place.here.size());
  config.rank_info = {.rank = place.rank,
                      .size = place.size,
                      .local_rank = place.local_rank,
                      .local_size = local_size,
                      .cross_rank = place.host,
                      .cross_size = place.hosts};
  if (place.hosts > 1 && !parse_endpoint(epoch.meet_at, config.remote.rendezvous)) {
    throw Exception({.code = ErrorCode::kMalformed,
                     .text = "the launcher has named " + std::to_string(place.hosts) +
                             " hosts, and '" + epoch.meet_at + "' as the address where they meet"});
  }
  const std::string name = "e" + std::to_string(epoch.number);
  // Each World writes a file of its own, as it ends.
  if (!config.timeline_path.empty()) {
    config.timeline_path += ".epoch" + std::to_string(epoch.number);
  }
  config.job_folder += "/" + name;
  config.job_id += "." + name;
  config.warnings.clear();  // init() has printed them
  // Members come when their block ends; the arbiter says so if one is gone.
  config.start_timeout_ms = kMeetingMs;
  config.interrupt = process.member->fd();
  // The launcher learns of the death as soon as this rank does, and not when the process is gone.
  config.engine.died = [member = process.member, here = place.here](Rank local) {
    (void)member->say(member::Died{.who = here[static_cast<std::size_t>(local)]});
  };
  config.engine.unreachable = [member = process.member, epoch](Rank who) {
    (void)member->say(member::Unreachable{.who = epoch.members[static_cast<std::size_t>(who)],
                                          .epoch = epoch.number});
  };
  // Each epoch has keys of its own, by its job_id, so its meeting is the first.
  process.handover = {.key = std::move(process.handover.key)};
  begin_world(std::move(config), process.handover);
  for (int local = 0; local < local_size; ++local) {
    const member::Incarnation incarnation = place.here[static_cast<std::size_t>(local)];
    if (local == place.local_rank) continue;
    process.others.try_emplace(incarnation, process.world->engine()->process_of(local));
  }
}

void leave_ranks() {
  refuse_in_forked_child();
  const MutexLock lock(process.mutex);
  const BeginsOrEnds here;
  if (process.world != nullptr) process.world->shutdown();
}

void tell_who_left(Rank who, std::uint64_t step) {
  const MutexLock lock(process.mutex);
  const std::vector<member::Incarnation>& members = process.epoch.members;
  if (who < 0 || static_cast<std::size_t>(who) >= members.size()) return;  // the ranks have not met
  check(process.member->say(member::LeftEarly{
      .who = members[static_cast<std::size_t>(who)], .epoch = process.epoch.number, .step = step}));
}

void await_lost_ranks() {
  const MutexLock lock(process.mutex);
  std::erase_if(process.others, [](const auto& each) REQUIRES(process.mutex) {
    const auto& [incarnation, other] = each;
    const auto& members = process.epoch.members;
    if (std::ranges::find(members, incarnation) != members.end()) return false;
    while (!other.has_ended()) std::this_thread::sleep_for(kEndPause);
    return true;
  });
}

void shutdown() {
  if (process.forked.load()) return;
  const MutexLock lock(process.mutex);
  CIRANDA_ASSERT(process.client == nullptr || process.world == nullptr);
  if (process.client != nullptr) {
    process.client_at_fork.store(nullptr);
    process.client->leave();
    process.client.reset();
    forget_row_tables();
  }
  const BeginsOrEnds here;
  end_world();
}

bool is_initialized() {
  if (process.forked.load()) return false;
  const MutexLock lock(process.mutex);
  return process.world != nullptr || process.client != nullptr;
}

namespace {

void refuse_before_init() REQUIRES(process.mutex) {
  if (process.world != nullptr || process.client != nullptr) return;
  throw Exception({.code = ErrorCode::kNotInitialized,
                   .text = "ciranda has not been initialized; call init() first"});
}

// Returns `what`, a part of the World. Throws if there is no World.
template <typename T>
const T& of_world(const T& what) REQUIRES(process.mutex) {
  refuse_before_init();
  if (what != nullptr) return what;
  throw Exception(
      {.code = ErrorCode::kUnsupported,
       .text =
           "the ranks of a job with parameter servers (--ps) do not meet, so there are no "
           "collectives; ps.average() gives the mean of a number without waiting for other ranks"});
}

}  // namespace

void set_interrupted(std::function<bool()> ask) {
  const MutexLock lock(process.mutex);
  process.interrupted = std::move(ask);
}

void set_show_where(std::function<void()> show) {
  const MutexLock lock(process.mutex);
  process.show_where = std::move(show);
}

RankInfo own_rank_info() {
  if (process.forked.load()) return process.rank_info;
  const MutexLock lock(process.mutex);
  refuse_before_init();
  return process.rank_info;
}

Rank rank_of(Rank RankInfo::*number, std::string_view what) {
  const RankInfo rank_info = own_rank_info();
  if (!process.coordinates) return rank_info.*number;
  throw Exception({.code = ErrorCode::kInvalidArgument,
                   .text = std::string(what) +
                           ": this process is the coordinator, not a rank; call this "
                           "function in a task, or in a function with @ps.per_worker"});
}

Hosts ranks_of_hosts() {
  if (process.forked.load()) return process.hosts;
  const MutexLock lock(process.mutex);
  refuse_before_init();
  return process.hosts;
}

std::shared_ptr<ps::Client> default_client() {
  refuse_in_forked_child();
  const MutexLock lock(process.mutex);
  refuse_before_init();
  return process.client;
}

std::shared_ptr<World> default_world() {
  refuse_in_forked_child();
  const MutexLock lock(process.mutex);
  return of_world(process.world);
}

std::shared_ptr<const Communicator> default_communicator() {
  refuse_in_forked_child();
  const MutexLock lock(process.mutex);
  return of_world(process.whole);
}

std::shared_ptr<const Communicator> default_communicator(GroupId group, std::string_view what) {
  refuse_in_forked_child();
  const MutexLock lock(process.mutex);
  const auto& all = of_world(process.whole);
  if (group == kWorldGroup) return all;
  const auto known = process.parts.find(group);
  if (known != process.parts.end()) return known->second;
  auto members = all->engine->group(group);
  if (members == nullptr) {
    throw Exception({.code = ErrorCode::kInvalidArgument,
                     .text = std::string(what) + ": there is no process set " +
                             std::to_string(group) + "; it may have been removed"});
  }
  return process.parts[group] = std::make_shared<const Communicator>(
             Communicator{all->engine, std::move(members), all->stream_of});
}

GroupId add_group(std::vector<Rank> ranks) {
  return unwrap(default_world()->engine()->add_group(std::move(ranks)))->id;
}

void remove_group(GroupId group) {
  check(default_world()->engine()->remove_group(group));
  const MutexLock lock(process.mutex);
  process.parts.erase(group);
}

Rank join() {
  return unwrap(default_world()->engine()->join());
}

std::shared_ptr<TorchStream> default_stream(c10::Device device, std::string_view what) {
  refuse_in_forked_child();
  const MutexLock lock(process.mutex);
  const BackendChoice choice = of_world(process.world)->engine()->backend_choice();
  check_device(device, what);
  const auto refuse = [&](ErrorCode code, const std::string& why) {
    throw Exception(
        {.code = code,
         .text = std::string(what) + ": the tensor is on " + device.str() + ", but " + why});
  };
  if (process.device_stream == nullptr) {
    if (!choice.gpu_refused.empty()) {
      refuse(ErrorCode::kInvalidArgument, choice.gpu_refused);
    }
    const Status usable = Backends::available(choice.gpu);
    if (!usable) refuse(usable.error().code, usable.error().text);
    process.device_stream = unwrap(TorchStream::make(device));
  }
  if (process.device_stream->torch().device() != device) {
    refuse(ErrorCode::kInvalidArgument,
           "the first tensor of this rank was on " + process.device_stream->torch().device().str() +
               "; use one GPU per rank, for example by torch.cuda.set_device(local_rank())");
  }
  return process.device_stream;
}

bool in_forked_child() {
  return process.forked.load(std::memory_order_relaxed);
}

void refuse_in_forked_child() {
  if (!in_forked_child()) return;
  throw Exception(
      {.code = ErrorCode::kForked,
       .text = "this process was forked from a rank and is not a rank itself; call collectives in "
               "the parent only (DataLoader workers need no collectives)"});
}

}  // namespace ciranda
