// The program ciranda-ps: a parameter server of a job. `ciranda run --ps N` starts N of them;
// --help says how to start one by hand.
#include <getopt.h>

#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <utility>

#include "core/base/clock.h"
#include "core/base/descriptors.h"
#include "core/ps/decide/messages.h"
#include "core/ps/io/server.h"
#include "core/settings/environment.h"
#include "core/settings/remote_config.h"
#include "core/transport/dial/job_key.h"

namespace ciranda::ps {
namespace {

constexpr const char* kHelp =
    R"(A parameter server for the workers of one job; it ends when all of them have left.

  ciranda key job.key                     once; copy the file to every host
  ciranda-ps --workers 4 --listen 192.0.2.7:20000 --key-file job.key
  CIRANDA_PS=192.0.2.7:20000 CIRANDA_KEY_FILE=job.key   for each worker, however it is started

  --workers N          number of the job's workers
  --listen HOST:PORT   an address of this host, on which workers reach this server
  --key-file FILE      the job's key; connections without it are refused
  --servers N          number of the job's servers; CIRANDA_PS names all, in their order [1]
  --server I           number of this server, from 0 [0]
  --coordinator        the job has a coordinator: a process that has CIRANDA_COORDINATOR=1
  --lease SECONDS      how long the other workers wait for a worker that is silent [10]
  --dir DIR            keep the state in DIR. If the server is killed, start it again with the same
                       options, and the workers continue. Each server needs a DIR of its own, which
                       is empty when the job is over
  --resume             continue from the state in --dir that an earlier job with as many servers and
                       workers has left; without this, a server continues only its own job
  --durability WHAT    what an answer to a worker promises: memory (pushes since the last snapshot
                       may be lost, and are counted), log (the push is in a file), disk (the file is
                       synced) [log]
  --snapshot SECONDS   time between snapshots; none is made if nothing has changed [60]
  --checkpoint-dir DIR write checkpoints of all servers into DIR, and one more when all workers have
                       left; all servers need access to DIR
  --checkpoint-every N write a checkpoint every N pushes (rounds of Sync), or every N seconds (Ns)
                       [1000]
  --restore DIR        start from the checkpoint in DIR, or from the newest below DIR; it may be of
                       any number of servers
  --tls                encrypt the traffic with workers, which need CIRANDA_TLS=1
  --trusted-network    do not authenticate gradients and parameters; workers need
                       CIRANDA_TRUSTED_NETWORK=1
)";

constexpr std::uint64_t kUsualCheckpoint = 1'000;  // pushes

Server* running = nullptr;                   // NOLINT: for the signal handler
volatile std::sig_atomic_t stop_signal = 0;  // NOLINT: the signal, 0: none

void stop_running(int number) {
  stop_signal = number;
  running->stop();
}

struct Options {
  ServerOptions server;
  std::string listen;
  std::string key_file;
  int key_fd = -1;
  int listener_fd = -1;
  bool tls = false;
  bool trusted_network = false;
  bool help = false;
};

Error wrong(std::string text) {
  return {.code = ErrorCode::kInvalidArgument, .text = std::move(text)};
}

Status read_number(const char* option, const char* text, int low, int high, int& value) {
  char* end = nullptr;
  const long number = std::strtol(text, &end, 10);
  if (end != text && *end == '\0' && number >= low && number <= high) {
    value = static_cast<int>(number);
    return {};
  }
  return wrong(std::string(option) + " must be a whole number from " + std::to_string(low) +
               " to " + std::to_string(high) + ", not '" + text + "'");
}

// Reads a number of pushes, or with an `s` behind it of seconds.
Status read_interval(const std::string& text, ServerProtocolOptions& protocol) {
  const bool is_time = text.ends_with('s');
  const std::string number = is_time ? text.substr(0, text.size() - 1) : text;
  int value = 0;
  const Status read =
      read_number("--checkpoint-every", number.c_str(), 1, is_time ? 86'400 : 1 << 30, value);
  if (!read) {
    return wrong(
        "--checkpoint-every must be a number of pushes, such as 1000, or of seconds, such "
        "as 60s, not '" +
        text + "'");
  }
  protocol.checkpoint_pushes = is_time ? 0 : static_cast<std::uint64_t>(value);
  protocol.checkpoint_ns = is_time ? static_cast<std::uint64_t>(value) * 1'000'000'000 : 0;
  return {};
}

Status read_durability(const std::string& text, Durability& value) {
  if (text == "memory") return value = Durability::kMemory, Status();
  if (text == "log") return value = Durability::kLog, Status();
  if (text == "disk") return value = Durability::kDisk, Status();
  return wrong("--durability must be memory, log or disk, not '" + text + "'");
}

Result<Options> read_arguments(int count, char** texts) {
  enum Name {
    kWorkers = 1,
    kServers,
    kNumber,
    kListen,
    kKeyFile,
    kLease,
    kDir,
    kResume,
    kDurability,
    kSnapshot,
    kCheckpointDir,
    kCheckpointEvery,
    kRestore,
    kCoordinator,
    kTls,
    kTrusted,
    kHelpWanted
  };
  constexpr option kNames[] = {{"workers", required_argument, nullptr, kWorkers},
                               {"servers", required_argument, nullptr, kServers},
                               {"server", required_argument, nullptr, kNumber},
                               {"listen", required_argument, nullptr, kListen},
                               {"key-file", required_argument, nullptr, kKeyFile},
                               {"lease", required_argument, nullptr, kLease},
                               {"dir", required_argument, nullptr, kDir},
                               {"resume", no_argument, nullptr, kResume},
                               {"durability", required_argument, nullptr, kDurability},
                               {"snapshot", required_argument, nullptr, kSnapshot},
                               {"checkpoint-dir", required_argument, nullptr, kCheckpointDir},
                               {"checkpoint-every", required_argument, nullptr, kCheckpointEvery},
                               {"restore", required_argument, nullptr, kRestore},
                               {"coordinator", no_argument, nullptr, kCoordinator},
                               {"tls", no_argument, nullptr, kTls},
                               {"trusted-network", no_argument, nullptr, kTrusted},
                               {"help", no_argument, nullptr, kHelpWanted},
                               {nullptr, 0, nullptr, 0}};
  Options options;
  StateOptions state;
  bool speaks_of_state = false;
  bool speaks_of_checkpoints = false;
  ServerProtocolOptions& protocol = options.server.protocol;
  protocol.workers = 0;
  protocol.checkpoint_pushes = kUsualCheckpoint;
  ::opterr = 0;
  int name = 0;
  while ((name = ::getopt_long(count, texts, "", kNames, nullptr)) != -1) {
    Status read;
    switch (name) {
      case kWorkers:
        read = read_number("--workers", ::optarg, 1, kLocalRanksMax, protocol.workers);
        break;
      case kServers:
        read = read_number("--servers", ::optarg, 1, kServersMax, protocol.servers);
        break;
      case kNumber:
        read = read_number("--server", ::optarg, 0, kServersMax - 1, protocol.server);
        break;
      case kListen:
        options.listen = ::optarg;
        break;
      case kKeyFile:
        options.key_file = ::optarg;
        break;
      case kLease: {
        int seconds = 0;
        read = read_number("--lease", ::optarg, 5, 3'600, seconds);
        protocol.lease_ns = static_cast<std::uint64_t>(seconds) * 1'000'000'000;
        break;
      }
      case kDir:
        state.folder = ::optarg;
        if (state.folder.empty()) read = wrong("--dir names no folder");
        break;
      case kResume:
        speaks_of_state = true;
        protocol.resumes = true;
        break;
      case kDurability:
        speaks_of_state = true;
        read = read_durability(::optarg, state.durability);
        break;
      case kSnapshot: {
        int seconds = 0;
        speaks_of_state = true;
        read = read_number("--snapshot", ::optarg, 1, 86'400, seconds);
        state.snapshot_ns = static_cast<std::uint64_t>(seconds) * 1'000'000'000;
        break;
      }
      case kCheckpointDir:
        options.server.checkpoints = ::optarg;
        if (options.server.checkpoints.empty()) read = wrong("--checkpoint-dir names no folder");
        break;
      case kCheckpointEvery:
        speaks_of_checkpoints = true;
        read = read_interval(::optarg, protocol);
        break;
      case kRestore:
        options.server.restored = ::optarg;
        if (options.server.restored.empty()) read = wrong("--restore names no folder");
        break;
      case kCoordinator:
        protocol.has_coordinator = true;
        break;
      case kTls:
        options.tls = true;
        break;
      case kTrusted:
        options.trusted_network = true;
        break;
      case kHelpWanted:
        options.help = true;
        return options;
      default:
        return wrong("'" + std::string(texts[::optind - 1]) +
                     "' is not an option, or its value is missing; see --help");
    }
    CIRANDA_TRY(read);
  }
  if (::optind < count) {
    return wrong("'" + std::string(texts[::optind]) + "' is not understood; see --help");
  }
  if (speaks_of_state && state.folder.empty()) {
    return wrong("--dir DIR is missing: where the server keeps what it holds");
  }
  if (speaks_of_checkpoints && options.server.checkpoints.empty()) {
    return wrong("--checkpoint-dir DIR is missing: where checkpoints go");
  }
  if (!state.folder.empty()) options.server.state = std::move(state);
  if (protocol.workers == 0) return wrong("--workers is missing: how many workers the job has");
  if (protocol.server < protocol.servers) return options;
  return wrong("--server " + std::to_string(protocol.server) + " is not one of " +
               std::to_string(protocol.servers) + " servers, which are numbered from 0");
}

// Reads the variables with which ciranda run configures its servers.
Status read_environment(Options& options) {
  const Getenv getenv = [](const char* name) {
    return std::getenv(name);  // NOLINT(concurrency-mt-unsafe): there is one thread
  };
  const Environment env(getenv);
  options.server.protocol.job_id = kJobByHand;
  const char* const job = env.text("CIRANDA_JOB_ID");
  const char* const folder = env.text("CIRANDA_JOB_DIR");
  if (options.listen.empty() != options.key_file.empty()) {
    return wrong(
        "--listen HOST:PORT and --key-file FILE must be given together: every caller proves that "
        "it holds the key");
  }
  if (!options.listen.empty()) return {};
  if (job == nullptr || folder == nullptr) {
    return wrong(
        "--listen HOST:PORT and --key-file FILE are missing; give both, or let ciranda run --ps N "
        "start the servers");
  }
  if (std::string_view(job).size() > kJobIdBytesMax) {
    return wrong("CIRANDA_JOB_ID has more than " + std::to_string(kJobIdBytesMax) + " bytes");
  }
  options.server.protocol.job_id = job;
  options.server.job_folder = folder;
  CIRANDA_TRY(env.integer("CIRANDA_KEY_FD", 0, 1 << 20, options.key_fd));
  return env.integer("CIRANDA_PS_LISTENER_FD", 0, 1 << 20, options.listener_fd);
}

Status open_listener(Options& options) {
  auto& listeners = options.server.listeners;
  if (options.listener_fd >= 0) {
    auto adopted = adopt_listener(Fd(options.listener_fd));
    if (!adopted) return adopted.error();
    listeners.push_back(std::move(adopted).value());
  } else if (!options.listen.empty()) {
    Endpoint endpoint;
    if (!parse_endpoint(options.listen, endpoint)) {
      return wrong("--listen " + options.listen +
                   ": expected HOST:PORT, and an IPv6 address in brackets");
    }
    auto addresses = resolve(endpoint);
    if (!addresses) return addresses.error();
    for (const SocketAddress& address : addresses.value()) {
      auto socket =
          listen_tcp(address.endpoint().host, {.first = endpoint.port, .last = endpoint.port});
      if (!socket) return socket.error();
      listeners.push_back(std::move(socket).value());
    }
  }
  if (listeners.empty()) return {};
  constexpr std::uint64_t kKeyNs = 10'000'000'000;
  auto key = options.key_fd >= 0 ? read_key(Fd(options.key_fd), monotonic_ns() + kKeyNs)
                                 : read_key_file(options.key_file);
  if (!key) return key.error();
  auto keys =
      ConnectionKeys::of_job(key.value(), options.server.protocol.job_id, /*epoch=*/0, options.tls);
  if (!keys) return keys.error();
  options.server.keys = std::move(keys).value();
  options.server.authenticates = !options.tls && !options.trusted_network;
  return {};
}

// Prints a line about the server's work, and one about lost pushes if there are any.
void say_the_end(const ServerProtocolOptions& options, const Stats& stats) {
  std::uint64_t pushes = 0;
  for (std::size_t outcome = 0; outcome < stats.outcomes.size(); ++outcome) {
    const bool said_again = outcome == static_cast<std::size_t>(Outcome::kDuplicate);
    pushes += said_again ? 0 : stats.outcomes[outcome];
  }
  std::printf("server %d of %d: %llu pushes, %.1f MB of parameters and state, %.1f s at work\n",
              options.server, options.servers, static_cast<unsigned long long>(pushes),
              static_cast<double>(stats.held_bytes) / 1e6,
              static_cast<double>(stats.busy_ns) / 1e9);
  if (stats.lost == 0) return;
  std::printf("server %d of %d: %llu answered pushes were lost\n", options.server, options.servers,
              static_cast<unsigned long long>(stats.lost));
}

// Reports that a signal has stopped the server while it has workers. The process then ends by that
// signal, so that its launcher can tell and start another server for which the workers wait.
void say_that_it_is_missed(const ServerProtocolOptions& options, const std::string& kept,
                           int number) {
  const std::string end =
      "; to let another server continue, keep the state with ciranda-ps --dir or ciranda run "
      "--ps-dir";
  std::fprintf(
      stderr, "ciranda-ps: server %d of %d was ended by %s while it has workers; %s%s\n",
      options.server, options.servers, number == SIGTERM ? "SIGTERM" : "SIGINT",
      kept.empty() ? "its parameters and state are gone" : "its parameters and state are in ",
      kept.empty() ? end.c_str() : kept.c_str());
}

int fail(const Error& why) {
  std::fprintf(stderr, "ciranda-ps: %s\n", why.text.c_str());
  return 1;
}

int run(int count, char** texts) {
  open_standard_descriptors();
  auto options = read_arguments(count, texts);
  if (!options) return fail(options.error());
  if (options.value().help) return std::fputs(kHelp, stdout) < 0 ? 1 : 0;
  if (const Status read = read_environment(options.value()); !read) return fail(read.error());
  if (const Status open = open_listener(options.value()); !open) return fail(open.error());
  const ServerProtocolOptions protocol = options.value().server.protocol;
  const auto& state = options.value().server.state;
  const std::string kept = state ? state->folder : "";
  // Signals that come before the server listens are handled once it does.
  sigset_t ends;
  sigemptyset(&ends);
  sigaddset(&ends, SIGTERM);
  sigaddset(&ends, SIGINT);
  ::sigprocmask(SIG_BLOCK, &ends, nullptr);
  auto server = Server::start(std::move(options.value().server));
  if (!server) return fail(server.error());
  running = server.value().get();
  if (const std::string found = running->found(); !found.empty()) {
    std::fprintf(stderr, "ciranda-ps: server %d goes on from %s\n", protocol.server, found.c_str());
  }
  std::signal(SIGTERM, stop_running);
  std::signal(SIGINT, stop_running);
  ::sigprocmask(SIG_UNBLOCK, &ends, nullptr);
  const Status ended = running->run();
  std::signal(SIGTERM, SIG_DFL);
  std::signal(SIGINT, SIG_DFL);
  if (!ended) return fail(ended.error());
  say_the_end(protocol, running->stats());
  if (!running->is_stopped()) return 0;
  if (running->has_workers()) say_that_it_is_missed(protocol, kept, stop_signal);
  server.value().reset();
  std::fflush(stdout);
  std::raise(stop_signal);
  return 1;
}

}  // namespace
}  // namespace ciranda::ps

int main(int count, char** texts) {
  return ciranda::ps::run(count, texts);
}
