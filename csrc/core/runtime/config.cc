#include "core/runtime/config.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string_view>

#include "core/wire/settings.h"

namespace ciranda {
namespace {

// How each starter names the place. A starter counts as found when `rank` and `size` are set.
struct Starter {
  const char* name;
  const char* rank;
  const char* size;
  const char* local_rank;
  const char* local_size;
  const char* job;             // tells two jobs of one user apart
  const char* step = nullptr;  // where a job has several worlds: which one
  const char* cross_rank = nullptr;
  const char* cross_size = nullptr;
  const char* hosts = nullptr;  // their names; rank 0 is on the first
};
constexpr std::array<Starter, 6> kStarters = {{
    {"ciranda", "CIRANDA_RANK", "CIRANDA_SIZE", "CIRANDA_LOCAL_RANK", "CIRANDA_LOCAL_SIZE",
     "CIRANDA_JOB_ID", nullptr, "CIRANDA_CROSS_RANK", "CIRANDA_CROSS_SIZE"},
    {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_PORT", nullptr,
     "GROUP_RANK", "GROUP_WORLD_SIZE"},
    {"horovodrun", "HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE",
     "HOROVOD_GLOO_RENDEZVOUS_PORT", nullptr, "HOROVOD_CROSS_RANK", "HOROVOD_CROSS_SIZE"},
    {"mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE", "PMIX_NAMESPACE"},
    {"mpiexec", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", "PMI_JOBID"},
    // Only variables of a step: those of its allocation are also found in the batch script and in
    // smaller steps. Slurm has no plain number for the tasks of this host.
    {"srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", nullptr, "SLURM_JOB_ID",
     "SLURM_STEP_ID", "SLURM_NODEID", "SLURM_STEP_NUM_NODES", "SLURM_STEP_NODELIST"},
}};
constexpr PortRange kRendezvousPorts = {20'000, 29'999};  // below the ports that kernels hand out
constexpr const char* kSlurmTasks = "SLURM_STEP_TASKS_PER_NODE";

constexpr int kStreamsMax = 8;  // each costs descriptors and memory at every peer
static_assert(kStreamsMax <= kLanesMax);

Error bad_value(const char* name, const char* value, const std::string& expected) {
  return {.code = ErrorCode::kInvalidArgument,
          .text = "the environment variable " + std::string(name) + " is '" + value +
                  "'; it should be " + expected};
}

class Variables {
 public:
  explicit Variables(const Getenv& getenv) : getenv_(getenv) {}

  const char* text(const char* name) const {
    const char* value = name != nullptr ? getenv_(name) : nullptr;
    return value != nullptr && *value != '\0' ? value : nullptr;
  }
  // Keeps `value` when the variable is not set, or has no name.
  Status integer(const char* name, std::int64_t low, std::int64_t high, std::int64_t& value) const {
    const char* given = text(name);
    if (given == nullptr) return {};
    std::int64_t parsed = 0;
    const char* end = given + std::strlen(given);
    const auto [rest, problem] = std::from_chars(given, end, parsed);
    if (problem != std::errc{} || rest != end || parsed < low || parsed > high) {
      return bad_value(
          name, given,
          "a whole number from " + std::to_string(low) + " to " + std::to_string(high));
    }
    value = parsed;
    return {};
  }
  Status integer(const char* name, std::int64_t low, std::int64_t high, int& value) const {
    std::int64_t wide = value;
    CIRANDA_TRY(integer(name, low, high, wide));
    value = static_cast<int>(wide);
    return {};
  }

 private:
  const Getenv& getenv_;
};

bool is_found(const Variables& variables, const Starter& starter) {
  return variables.text(starter.rank) != nullptr && variables.text(starter.size) != nullptr;
}

const Starter* find_starter(const Variables& variables) {
  for (const Starter& starter : kStarters) {
    if (!is_found(variables, starter)) continue;
    // srun --mpi=pmi2 sets variables of mpiexec too, but only some.
    const bool partly =
        starter.name == std::string_view("mpiexec") && !variables.text(starter.local_rank);
    return partly && is_found(variables, kStarters.back()) ? &kStarters.back() : &starter;
  }
  return nullptr;
}

// Slurm's short form of a number for each node, such as "2(x3),1". 0 where that node has none.
int tasks_of_node(std::string_view text, int node) {
  const auto number = [&text] {
    int value = 0;
    const auto [rest, problem] = std::from_chars(text.begin(), text.end(), value);
    text.remove_prefix(static_cast<std::size_t>(rest - text.begin()));
    return problem == std::errc{} ? value : 0;
  };
  for (;; text.remove_prefix(1)) {
    const int tasks = number();
    int nodes = 1;
    if (text.starts_with("(x")) {
      text.remove_prefix(2);
      nodes = number();
      if (!text.starts_with(')')) return 0;
      text.remove_prefix(1);
    }
    if (node < nodes) return tasks;
    node -= nodes;
    if (!text.starts_with(',')) return 0;
  }
}

// The first name of a list such as "gpu[03-05,7],node1": "gpu03".
std::string first_host(std::string_view list) {
  std::string name;
  while (!list.empty() && list.front() != ',') {
    if (list.front() != '[') {
      name += list.front();
      list.remove_prefix(1);
      continue;
    }
    name += list.substr(1, list.find_first_of("-,]") - 1);
    list.remove_prefix(std::min(list.find(']'), list.size() - 1) + 1);
  }
  return name;
}

Status read_slurm_tasks(const Variables& variables, Place& place) {
  const char* tasks = variables.text(kSlurmTasks);
  if (tasks == nullptr) tasks = "";
  place.local_size = tasks_of_node(tasks, place.cross_rank);
  if (place.local_size > 0 && place.local_size <= place.size) return {};
  return bad_value(kSlurmTasks, tasks,
                   "the tasks of each node, such as 2(x3),1, and this is node " +
                       std::to_string(place.cross_rank));
}

Status read_place(const Variables& variables, const Starter& starter, Place& place) {
  CIRANDA_TRY(variables.integer(starter.size, 1, kRanksMax, place.size));
  CIRANDA_TRY(variables.integer(starter.rank, 0, place.size - 1, place.rank));
  // Not told: then every rank is on this host.
  place.local_size = place.size;
  place.local_rank = place.rank;
  CIRANDA_TRY(variables.integer(starter.cross_size, 1, place.size, place.cross_size));
  if (place.cross_size > 1) {
    CIRANDA_TRY(variables.integer(starter.cross_rank, 0, place.cross_size - 1, place.cross_rank));
    if (starter.local_size == nullptr) CIRANDA_TRY(read_slurm_tasks(variables, place));
  }
  CIRANDA_TRY(variables.integer(starter.local_size, 1, place.size, place.local_size));
  CIRANDA_TRY(variables.integer(starter.local_rank, 0, place.local_size - 1, place.local_rank));
  if (place.local_size == place.size) {
    place.cross_rank = 0;
    place.cross_size = 1;
    return {};
  }
  if (place.cross_size > 1) return {};
  if (place.size % place.local_size != 0 || place.rank % place.local_size != place.local_rank) {
    return Error{.code = ErrorCode::kUnsupported,
                 .text = std::string(starter.name) + " does not tell on which host rank " +
                         std::to_string(place.rank) + " of " + std::to_string(place.size) +
                         " is, local rank " + std::to_string(place.local_rank) + " of " +
                         std::to_string(place.local_size) +
                         "; let it number the ranks host by host, as many on each"};
  }
  place.cross_size = place.size / place.local_size;
  place.cross_rank = place.rank / place.local_size;
  return {};
}

// "host:port", "[2001:db8::1]:port".
bool parse_endpoint(std::string_view text, Endpoint& endpoint) {
  const std::size_t colon = text.rfind(':');
  if (colon == std::string_view::npos || colon == 0) return false;
  std::string_view host = text.substr(0, colon);
  const bool bracketed = host.size() > 2 && host.front() == '[' && host.back() == ']';
  if (bracketed) host = host.substr(1, host.size() - 2);
  if (!bracketed && host.find(':') != std::string_view::npos) return false;
  const std::string_view port = text.substr(colon + 1);
  const auto [rest, problem] = std::from_chars(port.begin(), port.end(), endpoint.port);
  endpoint.host = host;
  return problem == std::errc{} && rest == port.end() && endpoint.port > 0;
}

bool parse_ports(std::string_view text, PortRange& ports) {
  const std::size_t dash = text.find('-');
  if (dash == std::string_view::npos) return false;
  const auto number = [](std::string_view digits, std::uint16_t& value) {
    const auto [rest, problem] = std::from_chars(digits.begin(), digits.end(), value);
    return problem == std::errc{} && rest == digits.end() && value > 0;
  };
  return number(text.substr(0, dash), ports.first) && number(text.substr(dash + 1), ports.last) &&
         ports.first <= ports.last;
}

// The same on all hosts, and for two jobs hardly ever.
std::uint16_t port_of_job(const std::string& job_id, PortRange ports) {
  std::uint32_t hash = 2'166'136'261;  // FNV-1a
  for (const char c : job_id) hash = (hash ^ static_cast<unsigned char>(c)) * 16'777'619;
  return static_cast<std::uint16_t>(ports.first + hash % (ports.last - ports.first + 1u));
}

// Where rank 0 listens: as told, or on a port that every rank derives alike.
Status read_rendezvous(const Variables& variables, const Starter& starter,
                       const std::string& job_id, RemoteConfig& remote) {
  if (const char* told = variables.text("CIRANDA_RENDEZVOUS")) {
    if (parse_endpoint(told, remote.rendezvous)) return {};
    return bad_value("CIRANDA_RENDEZVOUS", told, "host:port, with an IPv6 address in []");
  }
  if (const char* master = variables.text("MASTER_ADDR")) {
    remote.rendezvous.host = master;
  } else if (const char* hosts = variables.text(starter.hosts)) {
    remote.rendezvous.host = first_host(hosts);
  } else {
    return Error{.code = ErrorCode::kInvalidArgument,
                 .text = std::string(starter.name) +
                         " started ranks on several hosts, which meet at rank 0; set MASTER_ADDR "
                         "to an address of its host, or CIRANDA_RENDEZVOUS to host:port"};
  }
  const bool any = remote.ports.first == 0;
  remote.rendezvous.port = port_of_job(job_id, any ? kRendezvousPorts : remote.ports);
  return {};
}

Status read_remote(const Variables& variables, const Starter& starter, const std::string& job_id,
                   RemoteConfig& remote) {
  CIRANDA_TRY(variables.integer("CIRANDA_RENDEZVOUS_FD", 0, 1 << 20, remote.listener_fd));
  CIRANDA_TRY(variables.integer("CIRANDA_KEY_FD", 0, 1 << 20, remote.key_fd));
  if (const char* file = variables.text("CIRANDA_KEY_FILE")) remote.key_file = file;
  if (remote.key_fd < 0 && remote.key_file.empty()) {
    return Error{.code = ErrorCode::kInvalidArgument,
                 .text =
                     "ranks on several hosts need the job's key: make one with `ciranda key "
                     "FILE`, copy it to every host, and set CIRANDA_KEY_FILE=FILE for all "
                     "ranks; or start them with `ciranda run`"};
  }
  if (const char* nic = variables.text("CIRANDA_NIC")) remote.nic = nic;
  int tls = 0;
  CIRANDA_TRY(variables.integer("CIRANDA_TLS", 0, 1, tls));
  remote.tls = tls == 1;
  if (const char* ports = variables.text("CIRANDA_PORT_RANGE")) {
    if (!parse_ports(ports, remote.ports)) {
      return bad_value("CIRANDA_PORT_RANGE", ports, "two ports, such as 20000-20099");
    }
  }
  return read_rendezvous(variables, starter, job_id, remote);
}

// A folder name that all ranks of a job derive alike and no other job of this user does.
std::string default_job_folder(const Variables& variables, const Starter& starter,
                               const std::string& job_id) {
  const char* runtime = variables.text("XDG_RUNTIME_DIR");
  const std::string base = runtime != nullptr ? runtime : "/tmp";
  std::string name = "ciranda-" + std::to_string(::geteuid()) + "-" + starter.name + "-";
  for (const char c : job_id) {
    const bool plain = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    name += plain ? c : '_';
  }
  return base + "/" + name.substr(0, 60);
}

// What the user told malloc stands.
Status read_keep_heap(const Variables& variables, Config& config) {
  const char* text = variables.text("CIRANDA_KEEP_HEAP");
  const std::string_view mode = text != nullptr ? text : "auto";
  if (mode != "auto" && mode != "on" && mode != "off") {
    return bad_value("CIRANDA_KEEP_HEAP", text, "auto, on or off");
  }
  bool told = false;
  for (const char* name :
       {"MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_", "GLIBC_TUNABLES"}) {
    told = told || variables.text(name) != nullptr;
  }
  config.keep_heap = mode == "on" || (mode == "auto" && !told);
  return {};
}

Status read_wire_dtype(const Variables& variables, Config& config) {
  const char* text = variables.text("CIRANDA_WIRE_DTYPE");
  const std::string_view name = text != nullptr ? text : "float32";
  for (const DType dtype : {DType::kFloat16, DType::kBFloat16}) {
    if (name == dtype_name(dtype)) config.wire_dtype = dtype;
  }
  if (config.wire_dtype || name == "float32") return {};
  return bad_value("CIRANDA_WIRE_DTYPE", text, "float32, bfloat16 or float16");
}

// Whether one of Horovod's variables names the library `ours`. Of its others, which ciranda does
// without, the user is told: the script runs all the same.
Result<bool> names_library(const Variables& variables, const char* name, std::string_view ours,
                           Config& config) {
  const char* text = variables.text(name);
  if (text == nullptr) return false;
  std::string library = text;
  for (char& c : library) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  if (library == ours) return true;
  for (const std::string_view other : {"mpi", "ccl", "ddl"}) {
    if (library != other) continue;
    config.warnings.push_back(std::string(name) + "=" + text +
                              " has no effect: ciranda does without that library");
    return false;
  }
  return bad_value(name, text, std::string(ours) + ", mpi, ccl or ddl");
}

Status read_cpu_operations(const Variables& variables, Config& config) {
  constexpr const char* kName = "CIRANDA_CPU_OPERATIONS";
  const char* text = variables.text(kName);
  if (text == nullptr) {
    if (config.starter == "horovodrun") return {};  // it sets its variable by itself
    const auto gloo = names_library(variables, "HOROVOD_CPU_OPERATIONS", "gloo", config);
    if (!gloo) return gloo.error();
    if (gloo.value()) config.engine.operations.cpu = BackendId::kGloo;
    return {};
  }
  const std::string_view name = text;
  const int hosts = config.place.cross_size;
  if (name == "shm" && hosts > 1) {
    return bad_value(kName, text,
                     "auto, ring or gloo: the ranks are on " + std::to_string(hosts) +
                         " hosts, and shared memory does not reach from one to another");
  }
  if (name == "ring" && hosts == 1) {
    return bad_value(kName, text,
                     "auto, shm or gloo: all ranks are on one host, and the ring joins hosts");
  }
  if (name == "gloo") config.engine.operations.cpu = BackendId::kGloo;
  if (name == "auto" || name == "shm" || name == "ring" || name == "gloo") return {};
  return bad_value(kName, text, "auto, shm, ring or gloo");
}

// Only NCCL knows memory of a GPU.
Status read_gpu_operations(const Variables& variables, Config& config) {
  constexpr const char* kName = "CIRANDA_GPU_OPERATIONS";
  constexpr const char* kBlocking = "NCCL_COMM_BLOCKING";  // wins over what the backend asks for
  if (const char* text = variables.text(kBlocking);
      text != nullptr && std::string_view(text) != "0") {
    config.engine.operations.gpu_refused =
        bad_value(kBlocking, text, "0 or unset: a call of NCCL that blocks could not be ended")
            .text;
  }
  if (const char* text = variables.text(kName)) {
    const std::string_view name = text;
    if (name == "auto" || name == "nccl") return {};
    const bool cpu = name == "shm" || name == "ring" || name == "gloo";
    return bad_value(kName, text,
                     cpu ? "auto or nccl: " + std::string(name) + " is for tensors of the CPU"
                         : std::string("auto or nccl"));
  }
  for (const char* name :
       {"HOROVOD_GPU_OPERATIONS", "HOROVOD_GPU_ALLREDUCE", "HOROVOD_GPU_ALLGATHER",
        "HOROVOD_GPU_BROADCAST", "HOROVOD_GPU_ALLTOALL", "HOROVOD_GPU_REDUCESCATTER"}) {
    const auto nccl = names_library(variables, name, "nccl", config);
    if (!nccl) return nccl.error();
  }
  return {};
}

// What Gloo and NCCL cannot do, and what they do not do.
Status check_libraries(const Variables& variables, Config& config) {
  int trusted = 0;
  CIRANDA_TRY(variables.integer("CIRANDA_TRUSTED_NETWORK", 0, 1, trusted));
  config.trusted_network = trusted == 1;
  config.engine.ring.authenticates = !config.remote.tls && !config.trusted_network;
  if (config.remote.tls && trusted == 0) {
    config.engine.operations.gpu_refused =
        "--tls or CIRANDA_TLS asks for encryption between hosts, and NCCL encrypts nothing; leave "
        "that out, keep the tensors on the CPU, or say by --trusted-network or "
        "CIRANDA_TRUSTED_NETWORK=1 that NCCL's part of the network needs none";
  }
  if (config.engine.operations.cpu != BackendId::kGloo) return {};
  if (config.wire_dtype) {
    return bad_value("CIRANDA_WIRE_DTYPE", variables.text("CIRANDA_WIRE_DTYPE"),
                     "float32 with Gloo: only ciranda's own ring rounds what it sends");
  }
  if (config.remote.tls) {
    return bad_value("CIRANDA_TLS", variables.text("CIRANDA_TLS"),
                     "0 with Gloo, which encrypts nothing");
  }
  if (trusted == 1 || config.place.size == 1) return {};
  const bool one_host = config.place.cross_size == 1;
  config.warnings.push_back(
      std::string("Gloo does not ask who connects, and encrypts nothing: ") +
      (one_host ? "any user of this host" : "whoever reaches a port of these hosts") +
      " can read and change what the ranks exchange; if you trust them, say so by " +
      "--trusted-network or CIRANDA_TRUSTED_NETWORK=1, else let CIRANDA_CPU_OPERATIONS be auto");
  return {};
}

Status read_engine_options(const Variables& variables, int cores, Config& config) {
  EngineOptions& engine = config.engine;
  int threads = 1;
  CIRANDA_TRY(variables.integer("OMP_NUM_THREADS", 1, 4096, threads));
  const bool free_cores = config.place.local_size * threads < cores;
  const bool oversubscribed = config.place.local_size > cores;

  const char* overlap = variables.text("CIRANDA_OVERLAP");
  const std::string_view mode = overlap != nullptr ? overlap : "auto";
  if (mode != "auto" && mode != "on" && mode != "off") {
    return bad_value("CIRANDA_OVERLAP", overlap, "auto, on or off");
  }
  engine.overlap = mode == "on" || (mode == "auto" && free_cores);

  std::int64_t spin_us = oversubscribed ? 0 : static_cast<std::int64_t>(engine.spin_ns / 1000);
  CIRANDA_TRY(variables.integer("CIRANDA_SPIN_MICROSECONDS", 0, 1'000'000, spin_us));
  engine.spin_ns = static_cast<std::uint64_t>(spin_us) * 1000;

  std::int64_t cache = static_cast<std::int64_t>(engine.cache_entries);
  CIRANDA_TRY(variables.integer("HOROVOD_CACHE_CAPACITY", 0, 1 << 20, cache));
  CIRANDA_TRY(variables.integer("CIRANDA_CACHE_CAPACITY", 0, 1 << 20, cache));
  engine.cache_entries = static_cast<std::size_t>(cache);

  std::int64_t fusion = static_cast<std::int64_t>(engine.fusion.bytes_max);
  CIRANDA_TRY(variables.integer("HOROVOD_FUSION_THRESHOLD", 0, std::int64_t{1} << 40, fusion));
  CIRANDA_TRY(variables.integer("CIRANDA_FUSION_THRESHOLD", 0, std::int64_t{1} << 40, fusion));
  engine.fusion.bytes_max = static_cast<std::uint64_t>(fusion);

  CIRANDA_TRY(variables.integer("CIRANDA_STREAMS", 1, kStreamsMax, engine.ring.grain.channels));

  std::int64_t warn_s = 60;
  std::int64_t shutdown_s = 0;
  CIRANDA_TRY(variables.integer("HOROVOD_STALL_CHECK_TIME_SECONDS", 0, 1 << 20, warn_s));
  CIRANDA_TRY(variables.integer("CIRANDA_STALL_WARNING_SECONDS", 0, 1 << 20, warn_s));
  CIRANDA_TRY(variables.integer("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", 0, 1 << 20, shutdown_s));
  CIRANDA_TRY(variables.integer("CIRANDA_STALL_SHUTDOWN_SECONDS", 0, 1 << 20, shutdown_s));
  const char* disabled = variables.text("HOROVOD_STALL_CHECK_DISABLE");
  if (disabled != nullptr && std::string_view(disabled) != "0") warn_s = 0;
  engine.stall_warning_ns = static_cast<std::uint64_t>(warn_s) * 1'000'000'000;
  engine.stall_shutdown_ns = static_cast<std::uint64_t>(shutdown_s) * 1'000'000'000;

  const char* timeline = variables.text("CIRANDA_TIMELINE");
  if (timeline == nullptr) timeline = variables.text("HOROVOD_TIMELINE");
  if (timeline != nullptr && std::string_view(timeline) != "DYNAMIC") {
    // One file a rank: rank 0's under the given name, the others' with the rank appended.
    engine.timeline_path = timeline;
    if (config.place.rank != 0) engine.timeline_path += "." + std::to_string(config.place.rank);
  }
  return {};
}

}  // namespace

Result<Config> read_config(const Getenv& getenv, int cores) {
  const Variables variables(getenv);
  Config config;
  if (const Starter* starter = find_starter(variables)) {
    config.starter = starter->name;
    CIRANDA_TRY(read_place(variables, *starter, config.place));
    const char* job = variables.text(starter->job);
    config.job_id = job != nullptr ? job : "0";
    if (const char* step = variables.text(starter->step)) config.job_id += std::string(".") + step;
    if (config.place.cross_size > 1) {
      CIRANDA_TRY(read_remote(variables, *starter, config.job_id, config.remote));
    }
    const char* folder = variables.text("CIRANDA_JOB_DIR");
    config.job_folder =
        folder != nullptr ? folder : default_job_folder(variables, *starter, config.job_id);
  } else {
    config.starter = "none";
  }
  std::int64_t start_seconds = 30;
  CIRANDA_TRY(variables.integer("HOROVOD_START_TIMEOUT", 1, 86'400, start_seconds));
  CIRANDA_TRY(variables.integer("CIRANDA_START_TIMEOUT_SECONDS", 1, 86'400, start_seconds));
  config.start_timeout_ms = static_cast<std::uint64_t>(start_seconds) * 1000;
  std::int64_t peer_seconds = static_cast<std::int64_t>(config.engine.peer_timeout_ms / 1000);
  CIRANDA_TRY(variables.integer("CIRANDA_PEER_TIMEOUT", 1, 100, peer_seconds));
  config.engine.peer_timeout_ms = static_cast<std::uint64_t>(peer_seconds) * 1000;
  CIRANDA_TRY(read_keep_heap(variables, config));
  CIRANDA_TRY(read_wire_dtype(variables, config));
  CIRANDA_TRY(read_engine_options(variables, cores, config));
  CIRANDA_TRY(read_cpu_operations(variables, config));
  CIRANDA_TRY(read_gpu_operations(variables, config));
  CIRANDA_TRY(check_libraries(variables, config));
  return config;
}

std::string shared_settings(const Config& config) {
  const EngineOptions& engine = config.engine;
  return to_text(
      {{"CIRANDA_CPU_OPERATIONS", engine.operations.cpu == BackendId::kGloo ? "gloo" : "auto"},
       {"CIRANDA_WIRE_DTYPE", std::string(dtype_name(config.wire_dtype.value_or(DType::kFloat32)))},
       {"CIRANDA_TRUSTED_NETWORK", config.trusted_network ? "1" : "0"},
       {"CIRANDA_STREAMS", std::to_string(engine.ring.grain.channels)},
       {"CIRANDA_CACHE_CAPACITY", std::to_string(engine.cache_entries)},
       {"CIRANDA_FUSION_THRESHOLD", std::to_string(engine.fusion.bytes_max)}});
}

Result<Config> read_process_config() {
  cpu_set_t usable;
  CPU_ZERO(&usable);
  const int cores = ::sched_getaffinity(0, sizeof usable, &usable) == 0 ? CPU_COUNT(&usable) : 1;
  // Read once, by init(); a program that changes its environment in other threads meanwhile races.
  auto config = read_config(
      [](const char* name) -> const char* {
        return std::getenv(name);  // NOLINT(concurrency-mt-unsafe)
      },
      std::max(cores, 1));
  if (!config) return config;
  config.value().engine.warn = [rank = config.value().place.rank](const std::string& text) {
    std::fprintf(stderr, "ciranda: rank %d: %s\n", rank, text.c_str());
  };
  return config;
}

}  // namespace ciranda
