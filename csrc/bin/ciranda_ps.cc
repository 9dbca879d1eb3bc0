// A parameter server of a job: `ciranda run --ps N` starts N of them. Where it is and who else
// there is stands in its environment; nothing is read from the command line.
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>

#include "core/ps/messages.h"
#include "core/runtime/environment.h"
#include "core/service/server.h"

namespace ciranda::ps {
namespace {

Server* running = nullptr;  // NOLINT: for the signal handler

void stop_running(int) {
  running->stop();
}

struct Options {
  std::string folder;
  DeskOptions desk;
};

Result<Options> read_options() {
  const Getenv getenv = [](const char* name) {
    return std::getenv(name);  // NOLINT(concurrency-mt-unsafe): there is one thread
  };
  const Environment env(getenv);
  Options options;
  for (const auto& [name, text] : {std::pair{"CIRANDA_JOB_DIR", &options.folder},
                                   std::pair{"CIRANDA_JOB_ID", &options.desk.job_id}}) {
    const char* value = env.text(name);
    if (value == nullptr) {
      return Error{.code = ErrorCode::kInvalidArgument,
                   .text = std::string(name) + " is not set; start servers by ciranda run --ps N"};
    }
    *text = value;
  }
  CIRANDA_TRY(env.integer("CIRANDA_PS_SERVERS", 1, kServersMax, options.desk.servers));
  CIRANDA_TRY(env.integer("CIRANDA_PS_SERVER", 0, options.desk.servers - 1, options.desk.server));
  CIRANDA_TRY(env.integer("CIRANDA_SIZE", 1, kLocalRanksMax, options.desk.workers));
  return options;
}

// One line, of what there was to do.
void say_the_end(const DeskOptions& options, const Stats& stats) {
  std::uint64_t pushes = 0;
  for (const std::uint64_t count : stats.outcomes) pushes += count;
  std::printf("server %d of %d: %llu pushes, %.1f MB of parameters and state, %.1f s at work\n",
              options.server, options.servers, static_cast<unsigned long long>(pushes),
              static_cast<double>(stats.held_bytes) / 1e6,
              static_cast<double>(stats.busy_ns) / 1e9);
}

int fail(const Error& why) {
  std::fprintf(stderr, "ciranda-ps: %s\n", why.text.c_str());
  return 1;
}

int run() {
  auto options = read_options();
  if (!options) return fail(options.error());
  // What comes before it listens is seen once it does.
  sigset_t ends;
  sigemptyset(&ends);
  sigaddset(&ends, SIGTERM);
  sigaddset(&ends, SIGINT);
  ::sigprocmask(SIG_BLOCK, &ends, nullptr);
  auto server = Server::start(options.value().folder, options.value().desk);
  if (!server) return fail(server.error());
  running = server.value().get();
  std::signal(SIGTERM, stop_running);
  std::signal(SIGINT, stop_running);
  ::sigprocmask(SIG_UNBLOCK, &ends, nullptr);
  const Status ended = running->run();
  std::signal(SIGTERM, SIG_DFL);
  std::signal(SIGINT, SIG_DFL);
  if (!ended) return fail(ended.error());
  say_the_end(options.value().desk, running->stats());
  return 0;
}

}  // namespace
}  // namespace ciranda::ps

int main() {
  return ciranda::ps::run();
}
