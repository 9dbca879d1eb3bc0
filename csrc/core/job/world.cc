#include "core/job/world.h"

#include <fcntl.h>

#include <algorithm>
#include <utility>

#include "core/base/assert.h"
#include "core/base/clock.h"
#include "core/base/descriptors.h"
#include "core/transport/dial/job_key.h"
#include "core/transport/join/elastic_join.h"
#include "core/transport/join/local_meeting.h"
#include "core/transport/join/remote_mesh.h"
#include "core/transport/tcp/interfaces.h"
#include "core/transport/tcp/tcp.h"

namespace ciranda {
Status take_key(const Config& config, Handover& handover, bool later) {
  const RemoteConfig& remote = config.remote;
  if (handover.key) {
    if (handover.key->intact()) return {};
    return Error{.code = ErrorCode::kForked,
                 .text =
                     "this process was forked from a rank and does not hold the job's key; only "
                     "the rank itself can call init() again"};
  }
  if (later && remote.key_fd >= 0) {
    return Error{.code = ErrorCode::kInvalidArgument,
                 .text =
                     "the job's key can be read from CIRANDA_KEY_FD only once, and that attempt "
                     "failed; start the rank again"};
  }
  const std::uint64_t deadline_ns = monotonic_ns() + config.start_timeout_ms * 1'000'000;
  auto key = remote.key_fd >= 0 ? read_key(Fd(remote.key_fd), deadline_ns)
                                : read_key_file(remote.key_file);
  if (!key) return key.error();
  handover.key = std::move(key).value();
  return {};
}

namespace {

Result<RemoteMesh> meet_other_hosts(const Config& config, const LocalMesh& local,
                                    Handover& handover) {
  const RankInfo& rank_info = config.rank_info;
  const RemoteConfig& remote = config.remote;
  if (rank_info.cross_size == 1) return RemoteMesh::one_host(rank_info.rank, rank_info.size);
  // The starter's listener serves the first meeting; later ones listen at the same address. In an
  // elastic job it serves all of them, as long as the process lives.
  const bool is_elastic = config.member.fd >= 0;
  const bool later = std::exchange(handover.taken, true);
  Fd listener(later || rank_info.rank != 0 ? -1
              : is_elastic                 ? ::fcntl(remote.listener_fd, F_DUPFD_CLOEXEC, 0)
                                           : remote.listener_fd);
  CIRANDA_TRY(take_key(config, handover, later));
  CIRANDA_ASSERT(handover.key.has_value() && handover.met);
  std::function<void()> unanswered;
  if (config.engine.unreachable) {
    unanswered = [tell = config.engine.unreachable] { tell(0); };
  }
  auto mesh = join_remote_unless({.interrupt = config.interrupt, .unanswered = unanswered},
                                 {.self = {.rank = rank_info.rank,
                                           .size = rank_info.size,
                                           .host = rank_info.cross_rank,
                                           .hosts = rank_info.cross_size,
                                           .local_rank = rank_info.local_rank,
                                           .local_size = rank_info.local_size,
                                           .settings = shared_settings(config)},
                                  .job_id = config.job_id,
                                  .epoch = handover.meetings,
                                  .rendezvous = remote.rendezvous,
                                  .listener = std::move(listener),
                                  .nic = remote.nic,
                                  .ports = remote.ports,
                                  .streams = config.engine.ring.streams_max,
                                  .tls = remote.tls,
                                  .timeout_ms = config.start_timeout_ms,
                                  .warn = config.engine.warn,
                                  // An elastic job would say it again and again.
                                  .tell = is_elastic ? nullptr : config.engine.warn},
                                 local, *handover.key);
  if (mesh) ++handover.meetings;
  return mesh;
}

// If the starter has told no local size, all ranks are assumed to be on this host. Returns
// kUnsupported if MASTER_ADDR shows that rank 0 is on another host.
Status check_one_host(const Config& config) {
  if (config.unplaced_master.empty() || config.rank_info.size == 1) return {};
  const auto master = resolve({.host = config.unplaced_master, .port = 1});
  const auto own = list_host_addresses();
  if (!master || !own) return {};
  for (const SocketAddress& each : master.value()) {
    const bool here = std::ranges::find(own.value(), each.endpoint().host, &HostAddress::address) !=
                      own.value().end();
    if (here || is_loopback(each)) return {};
  }
  return Error{
      .code = ErrorCode::kUnsupported,
      .text = "MASTER_ADDR=" + config.unplaced_master +
              " is not an address of this host, and no variable says how many of the " +
              std::to_string(config.rank_info.size) +
              " ranks are on this host; for several hosts set LOCAL_WORLD_SIZE and LOCAL_RANK for "
              "every rank (1 and 0 if each rank has its own host or pod), and CIRANDA_KEY_FILE to "
              "a file with the same key on every host (ciranda key FILE)"};
}

}  // namespace

Result<std::unique_ptr<World>> World::start(Config config, Handover& handover) {
  open_standard_descriptors();
  const RankInfo& rank_info = config.rank_info;
  const BackendId chosen = config.engine.backend_choice.cpu;
  if (Status available = Backends::available(chosen, config.engine.backends); !available) {
    Error error = available.error();
    error.text = "CIRANDA_CPU_OPERATIONS (or Horovod's name for it) asks for " +
                 std::string(backend_name(chosen)) + ", and " + error.text;
    return error;
  }
  if (rank_info.rank == 0 && config.engine.warn) {
    for (const std::string& warning : config.warnings) config.engine.warn(warning);
  }
  CIRANDA_TRY(check_one_host(config));
  auto mesh = join_unix({.folder = config.job_folder,
                         .job_id = config.job_id,
                         .rank = rank_info.local_rank,
                         .size = rank_info.local_size,
                         .timeout_ms = config.start_timeout_ms,
                         // If there are several hosts, meet_other_hosts() compares the settings.
                         .settings = rank_info.cross_size == 1 ? shared_settings(config) : "",
                         .rank_variable = config.rank_variable,
                         .prove_origin = config.prove_origin,
                         .again = handover.met,
                         .interrupt = config.interrupt});
  if (!mesh) return mesh.error();
  handover.met = true;
  auto remote = meet_other_hosts(config, mesh.value(), handover);
  if (!remote) return remote.error();
  auto engine = Engine::start(std::move(mesh).value(), std::move(remote).value(), config.engine);
  if (!engine) return engine.error();
  std::unique_ptr<World> world(
      new World(std::move(config), std::shared_ptr<Engine>(std::move(engine).value())));
  world->start_timeline();
  return world;
}

World::World(Config config, std::shared_ptr<Engine> engine)
    : config_(std::move(config)),
      engine_(std::move(engine)),
      timeline_(std::make_unique<JobTimeline>(*engine_, config_.engine.warn)) {
  CIRANDA_ASSERT(engine_->rank() == config_.rank_info.rank &&
                 engine_->size() == config_.rank_info.size);
  CIRANDA_ASSERT(engine_->local_rank() == config_.rank_info.local_rank &&
                 engine_->local_size() == config_.rank_info.local_size);
}

void World::start_timeline() {
  if (config_.timeline_path.empty()) return;
  const Status on = timeline_->start(config_.timeline_path, config_.timeline_marks_cycles);
  if (!on && config_.engine.warn) config_.engine.warn(on.error().text);
}

void World::shutdown() {
  timeline_->end();
  engine_->shutdown();
}

}  // namespace ciranda
