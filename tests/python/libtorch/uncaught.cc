// Rank 1 of two ends as its argument says. Rank 0 waits for it and catches nothing.
#include <ciranda/torch.h>

#include <csignal>
#include <stdexcept>
#include <string>

namespace uncaught {

int run(int, char** arguments) {
  ciranda::init();
  if (ciranda::rank() == 1) {
    if (std::string(arguments[1]) == "throws") throw std::runtime_error("an error of its own");
    std::raise(SIGKILL);
  }
  ciranda::barrier();
  return 0;
}

}  // namespace uncaught
