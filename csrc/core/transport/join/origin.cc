#include "core/transport/join/origin.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <optional>
#include <span>
#include <sstream>
#include <string_view>
#include <vector>

#include "core/base/assert.h"
#include "core/base/secret.h"

namespace ciranda {
namespace {

constexpr int kAncestorsMax = 64;

std::string read_file(const std::string& path) {
  std::string text;
  std::FILE* file = std::fopen(path.c_str(), "re");
  if (file == nullptr) return text;
  std::array<char, 4096> buffer;
  while (const std::size_t count = std::fread(buffer.data(), 1, buffer.size(), file)) {
    text.append(buffer.data(), count);
  }
  std::fclose(file);
  return text;
}

std::string read_proc(pid_t pid, const char* name) {
  return read_file("/proc/" + std::to_string(pid) + "/" + name);
}

struct ProcessStat {
  pid_t parent = 0;   // 0: none that this process can see
  std::string began;  // clock ticks since the host's start; empty: unknown
};

ProcessStat stat_of(pid_t pid) {
  ProcessStat stat;
  const std::string text = read_proc(pid, "stat");  // "12 (name of any kind) S 11 ..."
  const std::size_t name_ends = text.rfind(')');
  if (name_ends == std::string::npos) return stat;
  std::istringstream fields(text.substr(name_ends + 1));
  std::string skipped;
  fields >> skipped >> stat.parent;
  for (int field = 5; field < 22; ++field) fields >> skipped;
  fields >> stat.began;
  return stat;
}

pid_t parent_of(pid_t pid) {
  return stat_of(pid).parent;
}

// Returns the pid and the start time of a process; the kernel reuses pids.
std::string process_words(pid_t pid) {
  return std::to_string(pid) + " " + stat_of(pid).began;
}

std::uint64_t digest_of(const std::string& text) {
  const Digest digest = sha256(std::as_bytes(std::span(text)));
  std::uint64_t first = 0;
  std::memcpy(&first, digest.data(), sizeof first);
  return first;
}

std::vector<std::string> words_of(pid_t pid, const char* name) {
  std::vector<std::string> words;
  const std::string text = read_proc(pid, name);
  for (std::size_t at = 0; at < text.size();) {
    words.emplace_back(text.c_str() + at);
    at += words.back().size() + 1;
  }
  return words;
}

// Returns the value of `variable` with which process `pid` was started. Returns nullopt if it had
// none then, even if it has set one since.
std::optional<std::string> environment_value(pid_t pid, const std::string& variable) {
  for (const std::string& word : words_of(pid, "environ")) {
    if (word.starts_with(variable + "=")) return word.substr(variable.size() + 1);
  }
  return std::nullopt;
}

// Returns the parent of `pid` and its ancestors up to the starter. The starter is the first process
// that was started without this number.
std::vector<pid_t> starters_of(pid_t pid, const std::optional<std::string>& number,
                               const std::string& variable) {
  std::vector<pid_t> starters;
  for (pid_t each = parent_of(pid); each > 0; each = parent_of(each)) {
    starters.push_back(each);
    if (!number || starters.size() == kAncestorsMax || environment_value(each, variable) != number)
      break;
  }
  return starters;
}

std::string_view digits_around(std::string_view word, std::size_t at) {
  const auto is_digit = [&](std::size_t i) { return word[i] >= '0' && word[i] <= '9'; };
  std::size_t begin = std::min(at, word.size());
  while (begin > 0 && is_digit(begin - 1)) --begin;
  std::size_t end = begin;
  while (end < word.size() && is_digit(end)) ++end;
  return word.substr(begin, end - begin);
}

struct Numbered {
  const std::vector<std::string>& command;
  std::array<std::string, 2> numbers;  // that stand for this rank

  bool goes_by(std::string_view number) const {
    return !number.empty() && std::ranges::find(numbers, number) != numbers.end();
  }
};

// Returns true if two words are equal apart from the ranks' numbers: "--rank=0" of rank 0 and
// "--rank=1" of rank 1 are.
bool is_same_word(const Numbered& a, const Numbered& b, std::size_t index) {
  CIRANDA_ASSERT(index < a.command.size() && index < b.command.size());
  const std::string_view one = a.command[index];
  const std::string_view other = b.command[index];
  const auto [at, _] = std::ranges::mismatch(one, other);
  if (one.size() == other.size() && at == one.end()) return true;
  const auto offset = static_cast<std::size_t>(at - one.begin());
  const std::string_view own = digits_around(one, offset);
  const std::string_view its = digits_around(other, offset);
  if (!a.goes_by(own) || !b.goes_by(its)) return false;
  return one.substr(static_cast<std::size_t>(own.end() - one.begin())) ==
         other.substr(static_cast<std::size_t>(its.end() - other.begin()));
}

bool is_same_command(const Numbered& a, const Numbered& b) {
  if (a.command.empty() || b.command.empty()) return true;
  // Python gives the processes of one multiprocessing pool different arguments.
  for (const std::string& word : a.command) {
    if (word.find("multiprocessing") != std::string::npos) return true;
  }
  if (a.command.size() != b.command.size()) return false;
  for (std::size_t i = 0; i < a.command.size(); ++i) {
    if (!is_same_word(a, b, i)) return false;
  }
  return true;
}

std::string name_of_process(pid_t pid) {
  std::string name = read_proc(pid, "comm");
  while (!name.empty() && name.back() == '\n') name.pop_back();
  return (name.empty() ? "" : name + ", ") + "pid " + std::to_string(pid);
}

Error of_another_job(const LocalRank& rank_0, const LocalRank& other, const std::string& how) {
  return {
      .code = ErrorCode::kInvalidArgument,
      .text = "rank " + std::to_string(other.number) + " (pid " + std::to_string(other.pid) +
              ") was started " + how + " than rank 0 (pid " + std::to_string(rank_0.pid) +
              "), so it seems to belong to another job; give each job its own MASTER_PORT, or, if "
              "both ranks belong to one job, set CIRANDA_JOB_ID to the same name for all its ranks",
      .rank = other.number};
}

}  // namespace

OriginDigests origin_of_this_process(const std::string& variable) {
  const pid_t self = ::getpid();
  const std::vector<pid_t> starters =
      starters_of(self, environment_value(self, variable), variable);
  std::array<char, 64> processes{};  // "pid:[4026531836]"
  const ssize_t length = ::readlink("/proc/self/ns/pid", processes.data(), processes.size());
  const std::string boot = read_file("/proc/sys/kernel/random/boot_id");
  if (starters.empty() || length <= 0 || boot.empty()) return {};
  return {.host = digest_of(boot + std::string(processes.data(), static_cast<std::size_t>(length))),
          .process = digest_of(process_words(self)),
          .starter = digest_of(process_words(starters.back()))};
}

Status check_same_job(const LocalRank& rank_0, const LocalRank& other,
                      const std::string& variable) {
  if (rank_0.pid == other.pid || rank_0.pid <= 0 || other.pid <= 0) return {};
  const auto number_0 = environment_value(rank_0.pid, variable);
  const auto number = environment_value(other.pid, variable);
  const std::vector<pid_t> starters_0 = starters_of(rank_0.pid, number_0, variable);
  const std::vector<pid_t> starters = starters_of(other.pid, number, variable);
  if (starters_0.empty() || starters.empty()) return {};
  // Some trainers start the other ranks from rank 0.
  if (std::ranges::find(starters, rank_0.pid) != starters.end()) return {};
  if (std::ranges::find_first_of(starters_0, starters) == starters_0.end()) {
    return of_another_job(rank_0, other,
                          "by another process (" + name_of_process(starters.back()) + ", not " +
                              name_of_process(starters_0.back()) + ")");
  }
  const auto command_0 = words_of(rank_0.pid, "cmdline");
  const auto command = words_of(other.pid, "cmdline");
  const Numbered first{command_0, {std::to_string(rank_0.number), number_0.value_or("")}};
  const Numbered second{command, {std::to_string(other.number), number.value_or("")}};
  if (is_same_command(first, second)) return {};
  return of_another_job(rank_0, other, "by another command");
}

std::string heir_of_a_rank(const std::string& variable) {
  const auto number = environment_value(::getpid(), variable);
  const pid_t parent = parent_of(::getpid());
  if (variable.empty() || !number || environment_value(parent, variable) != number) return "";
  const bool ours = variable == "CIRANDA_RANK";
  return "this process is a child of rank " + *number + " (" + name_of_process(parent) +
         "), and has inherited that rank's variables; to run on its own, it must not have " +
         (ours ? "CIRANDA_RANK, HOROVOD_RANK and RANK (env -u CIRANDA_RANK -u HOROVOD_RANK -u RANK)"
               : variable + " (env -u " + variable +
                     "); to be a rank of another job, it needs its own MASTER_PORT");
}

}  // namespace ciranda
