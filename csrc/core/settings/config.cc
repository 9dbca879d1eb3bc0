#include "core/settings/config.h"

#include <sched.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string_view>

#include "core/base/assert.h"
#include "core/base/clock.h"
#include "core/ps/decide/messages.h"
#include "core/settings/operations_config.h"
#include "core/wire/settings.h"

namespace ciranda {
namespace {

constexpr int kStreamsMax = 8;  // each costs descriptors and memory at every peer
static_assert(kStreamsMax <= kPairStreamsMax);
// If ranks outnumber cores: about the time of two thread switches. A peer that runs has answered by
// then; one that does not run needs the core.
constexpr std::int64_t kSpinOnSharedCoresUs = 3;

// After `su` or `sudo -E`, a variable may still name a folder of another user.
bool is_own_folder(const char* path) {
  struct stat facts {};
  return path != nullptr && ::stat(path, &facts) == 0 && S_ISDIR(facts.st_mode) &&
         facts.st_uid == ::geteuid() && (facts.st_mode & 022) == 0;
}

std::string parent_of_job_folder(const Environment& env) {
  const char* runtime = env.text("XDG_RUNTIME_DIR");
  if (is_own_folder(runtime)) return runtime;
  const char* temporary = env.text("TMPDIR");
  const bool instead = ::access("/tmp", W_OK) != 0 && is_own_folder(temporary);
  return instead ? temporary : "/tmp";
}

// Returns a folder name that all ranks of a job derive alike, and no other job of this user does.
std::string default_job_folder(const Environment& env, const Starter& starter,
                               const std::string& job_id) {
  std::string name = "ciranda-" + std::to_string(::geteuid()) + "-" + starter.name + "-";
  for (const char c : job_id) {
    const bool plain = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    name += plain ? c : '_';
  }
  return parent_of_job_folder(env) + "/" + name.substr(0, 60);
}

// Settings of malloc that the user has made stay in force, unless CIRANDA_KEEP_HEAP is on.
Status read_keep_heap(const Environment& env, Config& config) {
  const char* text = env.text("CIRANDA_KEEP_HEAP");
  const std::string_view mode = text != nullptr ? text : "auto";
  if (mode != "auto" && mode != "on" && mode != "off") {
    return bad_value("CIRANDA_KEEP_HEAP", text, "auto, on or off");
  }
  bool told = false;
  for (const char* name :
       {"MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_", "GLIBC_TUNABLES"}) {
    told = told || env.text(name) != nullptr;
  }
  config.keep_heap = mode == "on" || (mode == "auto" && !told);
  return {};
}

Status read_wire_dtype(const Environment& env, Config& config) {
  const char* text = env.text("CIRANDA_WIRE_DTYPE");
  const std::string_view name = text != nullptr ? text : "float32";
  for (const DType dtype : {DType::kFloat16, DType::kBFloat16}) {
    if (name == dtype_name(dtype)) config.wire_dtype = dtype;
  }
  config.autotune.wire_dtype = name == "auto";
  if (config.wire_dtype || name == "float32" || name == "auto") return {};
  return bad_value("CIRANDA_WIRE_DTYPE", text, "float32, bfloat16, float16 or auto");
}

Status read_autotune(const Environment& env, AutotuneConfig& autotune) {
  int on = 0;
  CIRANDA_TRY(env.integer("HOROVOD_AUTOTUNE", 0, 1, on));
  CIRANDA_TRY(env.integer("CIRANDA_AUTOTUNE", 0, 1, on));
  autotune.on = on == 1;
  const char* log = env.text("CIRANDA_AUTOTUNE_LOG");
  if (log == nullptr) log = env.text("HOROVOD_AUTOTUNE_LOG");
  if (log != nullptr) autotune.log = log;
  constexpr int kMax = 1'000'000;
  CIRANDA_TRY(env.integer("HOROVOD_AUTOTUNE_WARMUP_SAMPLES", 0, kMax, autotune.warmup_samples));
  CIRANDA_TRY(env.integer("CIRANDA_AUTOTUNE_WARMUP_SAMPLES", 0, kMax, autotune.warmup_samples));
  CIRANDA_TRY(env.integer("HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE", 1, kMax, autotune.steps_per_sample));
  CIRANDA_TRY(env.integer("CIRANDA_AUTOTUNE_STEPS_PER_SAMPLE", 1, kMax, autotune.steps_per_sample));
  return {};
}

Status read_member(const Environment& env, MemberConfig& member) {
  CIRANDA_TRY(env.integer("CIRANDA_MEMBER_FD", 0, 1 << 20, member.fd));
  std::int64_t incarnation = 0;
  CIRANDA_TRY(env.integer("CIRANDA_INCARNATION", 1, std::int64_t{1} << 31, incarnation));
  member.incarnation = static_cast<std::uint32_t>(incarnation);
  if ((member.fd >= 0) == (incarnation > 0)) return {};
  return bad_value(member.fd >= 0 ? "CIRANDA_MEMBER_FD" : "CIRANDA_INCARNATION",
                   env.text(member.fd >= 0 ? "CIRANDA_MEMBER_FD" : "CIRANDA_INCARNATION"),
                   "set by ciranda run alone, which sets CIRANDA_MEMBER_FD and "
                   "CIRANDA_INCARNATION together");
}

Status read_stalls(const Environment& env, EngineOptions& engine) {
  std::int64_t warn_s = 60;
  std::int64_t shutdown_s = 0;
  CIRANDA_TRY(env.integer("HOROVOD_STALL_CHECK_TIME_SECONDS", 0, 1 << 20, warn_s));
  CIRANDA_TRY(env.integer("CIRANDA_STALL_WARNING_SECONDS", 0, 1 << 20, warn_s));
  CIRANDA_TRY(env.integer("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", 0, 1 << 20, shutdown_s));
  CIRANDA_TRY(env.integer("CIRANDA_STALL_SHUTDOWN_SECONDS", 0, 1 << 20, shutdown_s));
  const char* disabled = env.text("HOROVOD_STALL_CHECK_DISABLE");
  if (disabled != nullptr && std::string_view(disabled) != "0") warn_s = 0;
  engine.stall_warning_ns = static_cast<std::uint64_t>(warn_s) * 1'000'000'000;
  engine.stall_shutdown_ns = static_cast<std::uint64_t>(shutdown_s) * 1'000'000'000;
  return {};
}

void read_timeline(const Environment& env, Config& config) {
  const char* timeline = env.text("CIRANDA_TIMELINE");
  if (timeline == nullptr) timeline = env.text("HOROVOD_TIMELINE");
  const char* marks = env.text("CIRANDA_TIMELINE_MARK_CYCLES");
  if (marks == nullptr) marks = env.text("HOROVOD_TIMELINE_MARK_CYCLES");
  if (timeline == nullptr || std::string_view(timeline) == "DYNAMIC") return;
  config.timeline_path = timeline;
  config.timeline_marks_cycles = marks != nullptr && std::string_view(marks) != "0";
}

// Parses the address of each server, by number: "here,192.0.2.7:20000".
Status parse_servers(const char* name, const char* text, bool by_hand,
                     std::vector<std::optional<Endpoint>>& servers) {
  for (std::string_view rest = text;;) {
    const std::size_t comma = rest.find(',');
    const std::string_view each = rest.substr(0, comma);
    servers.emplace_back();
    if (by_hand || each != "here") {
      if (!parse_endpoint(each, servers.back().emplace())) {
        return bad_value(name, text, "host:port of each server, with commas between them");
      }
    }
    if (comma == std::string_view::npos) break;
    rest.remove_prefix(comma + 1);
  }
  if (servers.size() <= ps::kServersMax) return {};
  return bad_value(name, text, "at most " + std::to_string(ps::kServersMax) + " servers");
}

Status read_servers(const Environment& env, Config& config) {
  std::int64_t life = 0;
  CIRANDA_TRY(env.integer("CIRANDA_LIFE", 1, std::int64_t{1} << 30, life));
  int patience_s = static_cast<int>(config.servers_patience_ms / 1'000);
  CIRANDA_TRY(env.integer("CIRANDA_PS_PATIENCE_SECONDS", 0, 86'400, patience_s));
  config.servers_patience_ms = static_cast<std::uint64_t>(patience_s) * 1'000;
  const char* told = env.text("CIRANDA_PS_SERVERS");
  const bool by_hand = told == nullptr;
  const char* const name = by_hand ? "CIRANDA_PS" : "CIRANDA_PS_SERVERS";
  if (by_hand) told = env.text(name);
  int coordinates = 0;
  CIRANDA_TRY(env.integer("CIRANDA_COORDINATOR", 0, 1, coordinates));
  config.coordinates = coordinates == 1;
  if (told == nullptr && config.coordinates) {
    return bad_value("CIRANDA_COORDINATOR", "1",
                     "0 in a job without parameter servers, because their workers run the tasks; "
                     "CIRANDA_PS has the servers' addresses");
  }
  if (told == nullptr) return {};
  CIRANDA_TRY(parse_servers(name, told, by_hand, config.servers));
  config.servers_job = by_hand ? std::string(ps::kJobByHand) : config.job_id;
  config.servers_by_hand = by_hand;
  // Nobody counts lives when workers are started by hand: a later start is a later life.
  config.life_base =
      by_hand && life == 0 ? wall_clock_us() : static_cast<std::uint64_t>(life) << 32;
  if (config.rank_info.size > kLocalRanksMax) {
    return Error{.code = ErrorCode::kUnsupported,
                 .text = "parameter servers serve at most " + std::to_string(kLocalRanksMax) +
                         " workers, and this job has " + std::to_string(config.rank_info.size)};
  }
  if (!config.has_servers_elsewhere()) return {};
  return read_keys(env, "workers of parameter servers on other hosts", config.remote);
}

Status read_engine_options(const Environment& env, int cores, Config& config) {
  EngineOptions& engine = config.engine;
  int threads = 1;
  CIRANDA_TRY(env.integer("OMP_NUM_THREADS", 1, 4096, threads));
  const bool free_cores = config.rank_info.local_size * threads < cores;
  const bool oversubscribed = config.rank_info.local_size > cores;

  const char* overlap = env.text("CIRANDA_OVERLAP");
  const std::string_view mode = overlap != nullptr ? overlap : "auto";
  if (mode != "auto" && mode != "on" && mode != "off") {
    return bad_value("CIRANDA_OVERLAP", overlap, "auto, on or off");
  }
  engine.pace.overlap = mode == "on" || (mode == "auto" && free_cores);

  std::int64_t spin_us =
      oversubscribed ? kSpinOnSharedCoresUs : static_cast<std::int64_t>(engine.pace.spin_ns / 1000);
  CIRANDA_TRY(env.integer("CIRANDA_SPIN_MICROSECONDS", 0, 1'000'000, spin_us));
  engine.pace.spin_ns = static_cast<std::uint32_t>(spin_us) * 1000;
  CIRANDA_ASSERT(engine.pace.spin_ns <= 1'000'000'000);  // see Pace

  std::int64_t cache = static_cast<std::int64_t>(engine.cache_entries);
  CIRANDA_TRY(env.integer("HOROVOD_CACHE_CAPACITY", 0, 1 << 20, cache));
  CIRANDA_TRY(env.integer("CIRANDA_CACHE_CAPACITY", 0, 1 << 20, cache));
  engine.cache_entries = static_cast<std::size_t>(cache);

  std::int64_t fusion = static_cast<std::int64_t>(engine.fusion.bytes_max);
  CIRANDA_TRY(env.integer("HOROVOD_FUSION_THRESHOLD", 0, std::int64_t{1} << 40, fusion));
  CIRANDA_TRY(env.integer("CIRANDA_FUSION_THRESHOLD", 0, std::int64_t{1} << 40, fusion));
  engine.fusion.bytes_max = static_cast<std::uint64_t>(fusion);

  CIRANDA_TRY(env.integer("CIRANDA_STREAMS", 1, kStreamsMax, engine.ring.grain.channels));
  engine.ring.streams_max = config.autotune.on ? kStreamsMax : engine.ring.grain.channels;
  CIRANDA_ASSERT(engine.ring.grain.channels <= engine.ring.streams_max);

  CIRANDA_TRY(read_stalls(env, engine));
  read_timeline(env, config);
  return {};
}

// Returns what distinguishes the job from others with the same servers; empty if nothing does. A
// port that torchrun chose changes with a restart, so its run id counts instead.
std::string job_of_workers(const Environment& env, const Starter& starter,
                           const std::string& job_id) {
  const char* const run = env.text("TORCHELASTIC_RUN_ID");
  if (starter.name == std::string_view("torchrun") && run != nullptr) {
    return run == std::string_view("none") ? "" : run;
  }
  return env.text(starter.job) != nullptr ? job_id : "";
}

// Reads this rank's place in its job, and where the ranks of this host meet.
Status read_job(const Environment& env, const Starter& starter, Config& config) {
  config.starter = starter.name;
  CIRANDA_TRY(read_rank_info(env, starter, config.rank_info));
  const RankInfo& place = config.rank_info;
  CIRANDA_ASSERT(place.rank >= 0 && place.rank < place.size);
  CIRANDA_ASSERT(place.cross_rank >= 0 && place.cross_rank < place.cross_size);
  CIRANDA_ASSERT((place.local_size == place.size) == (place.cross_size == 1));
  const char* job = env.text(starter.job);
  config.job_id = job != nullptr ? job : "0";
  if (const char* step = env.text(starter.step)) config.job_id += std::string(".") + step;
  const char* name = config.starter != "ciranda" ? env.text("CIRANDA_JOB_ID") : nullptr;
  config.origin_job = name != nullptr ? name : job_of_workers(env, starter, config.job_id);
  if (name != nullptr) config.job_id += std::string(".") + name;
  CIRANDA_TRY(read_servers(env, config));
  // The ranks of an elastic job may all begin on one of its hosts.
  const bool may_meet = config.rank_info.cross_size > 1 ||
                        (env.text("CIRANDA_MEMBER_FD") != nullptr && env.text("CIRANDA_KEY_FD"));
  if (may_meet && config.servers.empty()) {
    CIRANDA_TRY(read_remote(env, starter, config.job_id, config.remote));
  }
  const char* folder = env.text("CIRANDA_JOB_DIR");
  config.job_folder = folder != nullptr ? folder : default_job_folder(env, starter, config.job_id);
  // Without a job number, or with a port that the user chose, another job may look the same.
  const bool alone = job == nullptr || config.starter == "torchrun";
  config.rank_variable = starter.rank;
  config.prove_origin = alone && name == nullptr && (folder == nullptr || config.servers_by_hand);
  const char* master = env.text("MASTER_ADDR");
  const bool placed = env.text("LOCAL_WORLD_SIZE") != nullptr || master == nullptr;
  if (config.starter == "torchrun" && !placed) config.unplaced_master = master;
  return {};
}

}  // namespace

bool Config::has_servers_elsewhere() const {
  return std::any_of(servers.begin(), servers.end(),
                     [](const auto& each) { return each.has_value(); });
}

Result<Config> read_config(const Getenv& getenv, int cores) {
  CIRANDA_ASSERT(cores >= 1);
  const Environment env(getenv);
  Config config;
  if (const Starter* starter = find_starter(env)) {
    CIRANDA_TRY(read_job(env, *starter, config));
  } else {
    config.starter = "none";
    CIRANDA_TRY(read_servers(env, config));
  }
  if (const char* file = env.text("CIRANDA_ERROR_FILE")) config.error_file = file;
  std::int64_t start_seconds = 30;
  CIRANDA_TRY(env.integer("HOROVOD_START_TIMEOUT", 1, 86'400, start_seconds));
  CIRANDA_TRY(env.integer("CIRANDA_START_TIMEOUT_SECONDS", 1, 86'400, start_seconds));
  config.start_timeout_ms = static_cast<std::uint64_t>(start_seconds) * 1000;
  std::int64_t peer_seconds = static_cast<std::int64_t>(config.engine.peer_timeout_ms / 1000);
  CIRANDA_TRY(env.integer("CIRANDA_PEER_TIMEOUT", 1, 100, peer_seconds));
  config.engine.peer_timeout_ms = static_cast<std::uint64_t>(peer_seconds) * 1000;
  CIRANDA_TRY(read_keep_heap(env, config));
  CIRANDA_TRY(read_wire_dtype(env, config));
  CIRANDA_TRY(read_autotune(env, config.autotune));
  CIRANDA_TRY(read_member(env, config.member));
  CIRANDA_TRY(read_engine_options(env, cores, config));
  CIRANDA_TRY(read_cpu_operations(env, config));
  CIRANDA_TRY(read_gpu_operations(env, config));
  CIRANDA_TRY(check_libraries(env, config));
  return config;
}

std::string shared_settings(const Config& config) {
  const EngineOptions& engine = config.engine;
  // Ranks on several hosts start a timeline together; on one host each rank may have one or not.
  const bool timeline = config.rank_info.cross_size > 1 && !config.timeline_path.empty();
  return to_text(
      {{"CIRANDA_CPU_OPERATIONS", engine.backend_choice.cpu == BackendId::kNative
                                      ? "auto"
                                      : std::string(backend_name(engine.backend_choice.cpu))},
       {"CIRANDA_WIRE_DTYPE",
        config.autotune.wire_dtype
            ? "auto"
            : std::string(dtype_name(config.wire_dtype.value_or(DType::kFloat32)))},
       {"CIRANDA_AUTOTUNE", config.autotune.on ? "1" : "0"},
       {"CIRANDA_AUTOTUNE_WARMUP_SAMPLES", std::to_string(config.autotune.warmup_samples)},
       {"CIRANDA_AUTOTUNE_STEPS_PER_SAMPLE", std::to_string(config.autotune.steps_per_sample)},
       {"CIRANDA_TRUSTED_NETWORK", config.trusted_network ? "1" : "0"},
       {"CIRANDA_STREAMS", std::to_string(engine.ring.grain.channels)},
       {"CIRANDA_CACHE_CAPACITY", std::to_string(engine.cache_entries)},
       {"CIRANDA_FUSION_THRESHOLD", std::to_string(engine.fusion.bytes_max)},
       {"CIRANDA_TIMELINE", timeline ? "a file" : "none"},
       {"init(comm)", config.with_comm ? "a list or communicator" : "None"}});
}

Result<Config> read_process_config() {
  cpu_set_t usable;
  CPU_ZERO(&usable);
  const int cores = ::sched_getaffinity(0, sizeof usable, &usable) == 0 ? CPU_COUNT(&usable) : 1;
  // Read once, by init(). A program that changes its environment in another thread meanwhile races.
  auto config = read_config(
      [](const char* name) -> const char* {
        return std::getenv(name);  // NOLINT(concurrency-mt-unsafe)
      },
      std::max(cores, 1));
  if (!config) return config;
  config.value().engine.warn = [rank = config.value().rank_info.rank](const std::string& text) {
    std::fprintf(stderr, "ciranda: rank %d: %s\n", rank, text.c_str());
  };
  return config;
}

}  // namespace ciranda
