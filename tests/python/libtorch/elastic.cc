// What could break: a LibTorch program that trains on although ranks are lost
// (<ciranda/elastic.h>). `elastic PLACE AT RANK` kills the rank that comes first to that place;
// with a further argument the others give a new process time to join. `elastic leave AT RANK`
// empties the host of the rank. `elastic two PLACE AT RANK` trains with two optimizers. `elastic
// MISTAKE` makes a mistake. test_libtorch_elastic.py starts it, and reads what it writes.
#include <ciranda/elastic.h>
#include <sys/types.h>
#include <torch/nn.h>
#include <torch/optim.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

namespace elastic_job {

namespace elastic = ciranda::elastic;
using torch::Tensor;

constexpr std::size_t kSamples = 62;
constexpr int kPasses = 3;

struct NetImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) {
    forwards += 1;
    return last->forward(torch::dropout(torch::relu(first->forward(x)), 0.2, is_training()));
  }

  torch::nn::Linear first = register_module("first", torch::nn::Linear(8, 16));
  torch::nn::Linear last = register_module("last", torch::nn::Linear(16, 1));
  Tensor forwards = register_buffer("forwards", torch::zeros({}, torch::kLong));
};
TORCH_MODULE(Net);

class Victim {
 public:
  Victim(int count, char** arguments)
      : place_(arguments[1]),
        at_(std::atoll(arguments[2])),
        rank_(std::atoi(arguments[3])),
        waits_(count > 4) {}

  void die(const std::string& place, std::int64_t at) const {
    if (place != place_ || at != at_ || ciranda::rank() != rank_) return;
    if (std::filesystem::exists("killed")) return;
    std::ofstream("killed").close();
    std::raise(SIGKILL);
  }

  // Tells the agent of its host that the machine will be gone soon. All wait until it is.
  void leave(std::int64_t at) const {
    if (place_ != "leave" || at < at_ || ciranda::size() < 4) return;
    if (ciranda::rank() == rank_ && at == at_) ::kill(parent_of(::getppid()), SIGTERM);
    std::this_thread::sleep_for(std::chrono::seconds(1));
  }

  // Waits in a block, at most a second, until a process that has joined is in one.
  void wait_for_newcomer(bool joined) const {
    if (joined) std::ofstream("joined").close();
    for (int i = 0; i < 50 && waits_ && std::filesystem::exists("killed"); ++i) {
      if (std::filesystem::exists("joined")) return;
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  }

 private:
  static pid_t parent_of(pid_t process) {
    std::ifstream status("/proc/" + std::to_string(process) + "/status");
    for (std::string word; status >> word;) {
      pid_t parent = 0;
      if (word == "PPid:" && status >> parent) return parent;
    }
    return process;
  }

  std::string place_;
  std::int64_t at_;
  int rank_;
  bool waits_;
};

// The bits of all parameters, in a number.
std::uint64_t digest(const torch::nn::Module& module) {
  std::uint64_t sum = 14695981039346656037ULL;
  for (const Tensor& each : module.parameters()) {
    const auto* bytes = static_cast<const unsigned char*>(each.const_data_ptr());
    for (std::size_t i = 0; i < each.nbytes(); ++i) sum = (sum ^ bytes[i]) * 1099511628211ULL;
  }
  return sum;
}

void train(const Victim& victim) {
  const char* const incarnation = std::getenv("CIRANDA_INCARNATION");
  const std::string own = incarnation ? incarnation : std::to_string(ciranda::rank());
  std::ofstream log("deals-" + own);
  torch::manual_seed(incarnation ? 1 : 10 + ciranda::rank());
  Net model;
  model->to(torch::kFloat64);
  ciranda::DistributedOptimizer optimizer(torch::optim::Adam(model->parameters(), 0.01),
                                          model->named_parameters(), {.max_grad_norm = 1.0});
  torch::optim::StepLR scheduler(optimizer, 2, 0.5);
  torch::manual_seed(2);
  const Tensor data = torch::randn({kSamples, 8}, torch::kFloat64);
  std::int64_t begun = 0;
  double ended = 0;
  std::string names;
  elastic::State state(model, optimizer, begun, ended, names);
  state.on_resize([&](int old_size, int new_size) {
    auto& options = optimizer.param_groups()[0].options();
    options.set_lr(options.get_lr() * new_size / old_size);
  });
  std::int64_t now = -1;
  model->first->weight.register_hook([&](const Tensor&) { victim.die("hook", now); });
  std::vector<double> scores;
  for (int pass = 0; pass < kPasses; ++pass) {
    const elastic::Deal deal{.samples = kSamples, .batch = 4, .shuffle = true};
    elastic::steps(state, deal, [&](const elastic::Block& block) {
      now = block.number;
      ++begun;
      log << now << " " << block.begin << " " << block.end;
      for (const std::size_t index : block.indices) log << " " << index;
      log << std::endl;
      victim.die("block", now);
      victim.leave(now);
      victim.wait_for_newcomer(own > "3");
      optimizer.zero_grad();
      model->forward(data.index({block.index()})).square().mean().backward();
      victim.die("backward", now);
      optimizer.step();
      victim.die("step", now);
      ended += 1;
    });
    victim.die("after", pass);
    scheduler.step();
    names += std::to_string(pass);
    victim.die("between", pass);
    scores.push_back(elastic::agreed(state, [&] {
      victim.die("agreed", pass);
      const Tensor sum = model->last->weight.detach().sum();
      return ciranda::allreduce(sum, ciranda::Op::kAverage, "score").item<double>();
    }));
    victim.die("agreed_after", pass);
  }
  victim.die("end", 0);
  std::ofstream result("result-" + own);
  result.precision(17);
  result << "{\"rank\": " << ciranda::rank() << ", \"size\": " << ciranda::size()
         << ", \"digest\": " << digest(*model) << ", \"begun\": " << begun
         << ", \"ended\": " << ended << ", \"blocks\": " << state.step()
         << ", \"forwards\": " << model->forwards.item<std::int64_t>() << ", \"names\": \"" << names
         << "\", \"lr\": " << optimizer.param_groups()[0].options().get_lr() << ", \"scores\": [";
  for (std::size_t i = 0; i < scores.size(); ++i) result << (i == 0 ? "" : ", ") << scores[i];
  result << "]}" << std::endl;
  victim.die("result", 0);
}

// A block of two optimizers, which is redone as a whole.
void train_by_two(const Victim& victim) {
  torch::manual_seed(1);
  Net model;
  model->to(torch::kFloat64);
  ciranda::DistributedOptimizer first(torch::optim::Adam(model->first->parameters(), 0.01),
                                      model->first->named_parameters());
  ciranda::DistributedOptimizer last(
      torch::optim::SGD(model->last->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9)),
      model->last->named_parameters());
  const Tensor data = torch::randn({kSamples, 8}, torch::kFloat64);
  elastic::State state(model, first, last);
  elastic::steps(state, {.samples = kSamples, .batch = 4}, [&](const elastic::Block& block) {
    first.zero_grad();
    last.zero_grad();
    model->forward(data.index({block.index()})).square().mean().backward();
    first.step();
    victim.die("half", block.number);
    last.step();
    victim.die("step", block.number);
  });
  std::ofstream("result-" + std::to_string(ciranda::rank()))
      << "{\"digest\": " << digest(*model) << ", \"blocks\": " << state.step() << "}" << std::endl;
}

struct Early {};  // ends the program of a rank before that of the others

void make_mistake(const std::string& mistake) {
  torch::nn::Linear model(2, 1);
  const ciranda::DistributedOptions options{.op = mistake == "adasum" ? ciranda::Op::kAdasum
                                                                      : ciranda::Op::kAverage};
  ciranda::DistributedOptimizer optimizer(torch::optim::SGD(model->parameters(), 0.1),
                                          model->named_parameters(), options);
  elastic::State state(model);
  if (mistake != "unregistered") state.add(optimizer);
  const auto train = [&](const elastic::Block& block) {
    if (mistake == "early" && block.number == 1 && ciranda::rank() == 1) throw Early();
    model->forward(torch::randn({4, 2})).sum().backward();
    optimizer.step();
    if (mistake == "twice") optimizer.step();
    if (mistake == "nested") elastic::agreed(state, [] { return 1.0; });
    if (mistake == "own") throw std::runtime_error("an error of its own");
  };
  try {
    elastic::steps(state, {.samples = 16, .batch = mistake == "empty" ? 0U : 4U}, train);
  } catch (const Early&) {
    return;
  }
  if (mistake == "second") {
    elastic::State second(model, optimizer);
    elastic::steps(second, {.samples = 4}, [](const elastic::Block&) {});
  }
}

int run(int count, char** arguments) {
  try {
    ciranda::init();
    if (count == 2) {
      make_mistake(arguments[1]);
    } else if (std::string(arguments[1]) == "two") {
      train_by_two(Victim(count - 1, arguments + 1));
    } else {
      train(Victim(count, arguments));
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "elastic: %s\n", error.what());
    return 1;
  }
  return 0;
}

}  // namespace elastic_job
