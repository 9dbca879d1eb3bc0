#pragma once

#include <string>

namespace ciranda {

// The place of this process in its job, for a report of a loss.
struct LossReport {
  std::string error_file = {};  // CIRANDA_ERROR_FILE; empty: no file is written
  int number = 0;               // the launcher's number of this process
  bool has_servers = false;     // losses are of servers, not of ranks
};

// Installs a std::terminate handler, once in a process. If a C++ program ends by an uncaught
// Exception that says that another rank or a server was lost, the handler prints the error, writes
// it to the error file and ends the process with exit code 1, so that the launcher counts this
// process as a victim. For anything else the previous handler runs. Python reports its exceptions
// in ciranda/torch/failure_report.py.
void report_loss_on_terminate(LossReport report);

}  // namespace ciranda
