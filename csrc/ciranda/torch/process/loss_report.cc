#include "ciranda/torch/process/loss_report.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <optional>
#include <utility>

#include "ciranda/torch/tensor/error.h"
#include "core/trace/timeline_file.h"

namespace ciranda {
namespace {

LossReport of_this_process;                 // NOLINT: constant after the handler is installed
std::terminate_handler previous = nullptr;  // NOLINT: constant after the handler is installed

// Returns the launcher's number of the process whose loss the error reports: ~k for server k.
std::optional<int> lost_process(const Error& error) {
  if (error.code != ErrorCode::kRankLost || error.rank < 0) return std::nullopt;
  if (of_this_process.has_servers) return ~error.rank;
  if (error.rank == of_this_process.number) return std::nullopt;
  return error.rank;
}

void write_error_file(const Error& error, int lost) {
  const std::string during = error.tensor.empty() ? "null" : json_text(error.tensor);
  const std::string content =
      "{\"message\": " + json_text(error.text) +
      ", \"ciranda\": {\"rank\": " + std::to_string(of_this_process.number) +
      ", \"pid\": " + std::to_string(::getpid()) + ", \"victim_of\": " + std::to_string(lost) +
      ", \"in\": " + during + "}}\n";
  std::FILE* const file = std::fopen(of_this_process.error_file.c_str(), "we");
  const bool wrote = file != nullptr && std::fputs(content.c_str(), file) >= 0;
  if (file == nullptr || std::fclose(file) != 0 || !wrote) {
    std::fprintf(stderr, "ciranda: cannot write the error report %s\n",
                 of_this_process.error_file.c_str());
  }
}

// Takes no mutex: the stack is not unwound, so this thread may still hold any.
[[noreturn]] void terminate() {
  if (const std::exception_ptr raised = std::current_exception()) {
    try {
      std::rethrow_exception(raised);
    } catch (const Exception& exception) {
      if (const auto lost = lost_process(exception.error())) {
        std::fprintf(stderr, "ciranda: the program did not catch this error: %s\n",
                     exception.what());
        if (!of_this_process.error_file.empty()) write_error_file(exception.error(), *lost);
        std::fflush(stdout);
        std::_Exit(1);
      }
    } catch (...) {  // NOLINT(bugprone-empty-catch): the previous handler reports it
    }
  }
  if (previous != nullptr) previous();
  std::abort();
}

}  // namespace

void report_loss_on_terminate(LossReport report) {
  [[maybe_unused]] static const bool installed = [&] {
    of_this_process = std::move(report);
    previous = std::get_terminate();
    std::set_terminate(terminate);
    return true;
  }();
}

}  // namespace ciranda
