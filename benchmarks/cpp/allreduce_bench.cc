// A rank that times all-reduce of float32 in place through Job, as workers/control.py talks.
#include <ciranda/ciranda.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

int connect_to(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof address.sun_path - 1);
  const int fd = ::socket(AF_UNIX, SOCK_STREAM, 0);
  if (::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    throw std::runtime_error("cannot connect to " + path);
  }
  return fd;
}

// The harness's commands are flat: {"bytes": 4, "iterations": 2000, "warm_up": 200}.
std::size_t number_in(const std::string& command, const std::string& key) {
  const std::string before = "\"" + key + "\": ";
  const std::size_t at = command.find(before);
  if (at == std::string::npos) throw std::runtime_error("no " + key + " in " + command);
  return std::stoul(command.substr(at + before.size()));
}

void check_sum(const std::vector<float>& data, int size) {
  const float expected = static_cast<float>(size * (size + 1)) / 2;
  if (data != std::vector<float>(data.size(), expected)) {
    throw std::runtime_error("allreduce gave another sum than " + std::to_string(expected));
  }
}

std::string time_calls(ciranda::Job& job, std::vector<float>& data, const std::string& command) {
  using Clock = std::chrono::steady_clock;
  const std::string name = "bench.job." + std::to_string(data.size());
  const auto call = [&] { job.allreduce(data.data(), data.size(), ciranda::Job::Op::kSum, name); };
  for (std::size_t left = number_in(command, "warm_up"); left > 0; --left) call();
  std::vector<Clock::time_point> stamps(number_in(command, "iterations") + 1, Clock::now());
  for (std::size_t i = 1; i < stamps.size(); ++i) {
    call();
    stamps[i] = Clock::now();
  }
  std::string seconds;
  for (std::size_t i = 1; i < stamps.size(); ++i) {
    const std::chrono::nanoseconds taken = stamps[i] - stamps[i - 1];
    seconds += (i == 1 ? "" : ", ") + std::to_string(taken.count()) + "e-9";
  }
  return "{\"seconds\": [" + seconds + "]}";
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3 || std::string(argv[1]) != "--control") return 2;
  ciranda::Job job;
  const int connection = connect_to(argv[2]);
  ::dprintf(connection, "{\"rank\": %d}\n", job.rank());
  std::map<std::size_t, std::vector<float>> arrays;
  std::FILE* const commands = ::fdopen(connection, "r");
  for (char line[4096]; std::fgets(line, sizeof line, commands) != nullptr;) {
    const std::size_t count = number_in(line, "bytes") / sizeof(float);
    const auto [array, is_new] =
        arrays.try_emplace(count, count, static_cast<float>(job.rank() + 1));
    if (is_new) {
      job.allreduce(array->second.data(), count);
      check_sum(array->second, job.size());
      array->second.assign(count, 0);  // zeros stay zeros, however often they are added
    }
    ::dprintf(connection, "%s\n", time_calls(job, array->second, line).c_str());
  }
}
