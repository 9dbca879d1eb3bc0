// What could break: a LibTorch program with parameter servers. `served rounds` trains in rounds,
// `served worker` steps by itself; each prints a line if all is right.
#include <ciranda/torch.h>
#include <torch/nn.h>
#include <torch/optim.h>
#include <torch/serialize.h>
#include <torch/utils.h>

#include <cstdio>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "require.h"

namespace served {

using ciranda::DistributedOptimizer;
using ciranda::DistributedOptions;
using torch::Tensor;

constexpr int kBatch = 8;

torch::nn::Sequential make_net() {
  torch::manual_seed(1);
  torch::nn::Sequential net(torch::nn::Linear(6, 300), torch::nn::Tanh(),
                            torch::nn::Linear(300, 3));
  net->to(torch::kFloat64);
  return net;
}

Tensor batch(int step) {
  torch::manual_seed(100 + step);
  return torch::randn({ciranda::size() * kBatch, 6}, torch::kFloat64);
}
Tensor mine(const Tensor& whole) {
  return whole.narrow(0, ciranda::rank() * kBatch, kBatch);
}

torch::optim::AdamOptions adam() {
  return torch::optim::AdamOptions(0.01).amsgrad(true);
}

void rounds() {
  auto net = make_net();
  auto alone = make_net();
  if (ciranda::rank() != 0) {
    const torch::NoGradGuard no_grad;
    for (Tensor& parameter : net->parameters()) parameter.add_(1);  // rank 0's are everybody's
  }
  torch::optim::Adam plain(alone->parameters(), adam());
  DistributedOptimizer optimizer(torch::optim::Adam(net->parameters(), adam()),
                                 net->named_parameters(),
                                 {.max_grad_norm = 0.5, .mode = ciranda::ps::Sync{}});
  ciranda::broadcast_parameters(*net, 0);
  require(optimizer.why_not_shared().empty(), optimizer.why_not_shared());
  for (int step = 0; step < 10; ++step) {
    const Tensor images = batch(step);
    for (auto& group : optimizer.param_groups()) group.options().set_lr(0.01 / (step + 1));
    for (auto& group : plain.param_groups()) group.options().set_lr(0.01 / (step + 1));
    optimizer.zero_grad();
    net->forward(mine(images)).square().mean().backward();
    optimizer.step();
    plain.zero_grad();
    for (int rank = 0; rank < ciranda::size(); ++rank) {  // each clips its own
      std::vector<Tensor> before;
      for (const Tensor& p : alone->parameters()) {
        before.push_back(p.grad().defined() ? p.grad().clone() : torch::zeros_like(p));
        p.mutable_grad().reset();
      }
      alone->forward(images.narrow(0, rank * kBatch, kBatch)).square().mean().backward();
      torch::nn::utils::clip_grad_norm_(alone->parameters(), 0.5);
      for (size_t i = 0; i < before.size(); ++i) {
        Tensor gradient = alone->parameters()[i].mutable_grad();
        gradient.div_(ciranda::size()).add_(before[i]);
      }
    }
    plain.step();
  }
  for (size_t i = 0; i < net->parameters().size(); ++i) {
    require(torch::allclose(net->parameters()[i], alone->parameters()[i], 1e-9, 1e-11),
            "rounds are no mean of all workers");
  }
  require(optimizer.grad_norm() > 0, "no norm");

  // What the servers hold is saved as torch would.
  std::stringstream saved;
  torch::save(optimizer, saved);
  torch::optim::Adam loaded(net->parameters(), adam());
  torch::load(loaded, saved);
  for (size_t i = 0; i < net->parameters().size(); ++i) {
    const auto of = [](torch::optim::Adam& one, const Tensor& parameter) {
      return static_cast<const torch::optim::AdamParamState&>(
          *one.state().at(parameter.unsafeGetTensorImpl()));
    };
    const auto theirs = of(loaded, net->parameters()[i]);
    const auto expected = of(plain, alone->parameters()[i]);
    require(theirs.step() == expected.step(), "another number of steps");
    require(torch::allclose(theirs.max_exp_avg_sq(), expected.max_exp_avg_sq(), 1e-9, 1e-15),
            "other state");
  }
  require(optimizer.state().empty(), "state that is not the servers' stays");

  require_error("do not meet", [&] { ciranda::allreduce(torch::ones({2})); });
  require_error("one optimizer", [&] {
    DistributedOptimizer second(torch::optim::SGD(net->parameters(), 0.1), net->named_parameters(),
                                {.mode = ciranda::ps::Sync{}});
  });
  require_error("give a mode, or start it without --ps", [&] {
    DistributedOptimizer of_ranks(torch::optim::SGD(net->parameters(), 0.1),
                                  net->named_parameters());
  });
  require_error("cannot load one yet", [&] {
    std::stringstream again;
    torch::save(optimizer, again);
    torch::load(optimizer, again);
  });
  const double average = ciranda::ps::average(ciranda::rank(), "loss");
  require(average >= 0 && average <= 1, "no average");

  const ciranda::ps::JobStats stats = ciranda::ps::stats();
  require(stats.worker.pushes.applied == 10, "its pushes are not counted");
  require(stats.worker.pulls > 0 && stats.worker.pushed_bytes > 0, "its bytes are not counted");
  require(stats.worker.waiting_s >= stats.worker.waiting_for_workers_s, "more than all waiting");
  for (const auto& server : stats.servers) {
    require(server.version == 10 && server.busy_s > 0, "its rounds are not counted");
    require(server.workers.at(static_cast<size_t>(ciranda::rank())).pushes == 10,
            "nor the worker's");
  }
}

// Any optimizer; here one that asks for the loss again and again.
void worker() {
  auto net = make_net();
  auto alone = make_net();
  const auto options = torch::optim::LBFGSOptions(0.5).max_iter(4);
  torch::optim::LBFGS plain(alone->parameters(), options);
  DistributedOptimizer optimizer(
      torch::optim::LBFGS(net->parameters(), options), net->named_parameters(),
      {.mode = ciranda::ps::Async{}, .update_on = ciranda::ps::UpdateOn::kWorker});
  require(!optimizer.why_not_shared().empty(), "it is shared");
  const Tensor images = batch(0);
  const auto loss_of = [&](torch::nn::Sequential& one, auto& its_optimizer) {
    its_optimizer.zero_grad();
    Tensor loss = one->forward(images).square().mean();
    loss.backward();
    return loss;
  };
  for (int step = 0; step < 3; ++step) {
    optimizer.step([&] { return loss_of(net, optimizer); });
    plain.step([&] { return loss_of(alone, plain); });
  }
  for (size_t i = 0; i < net->parameters().size(); ++i) {
    require(torch::allclose(net->parameters()[i], alone->parameters()[i], 1e-9, 1e-11),
            "the worker's step is another one");
  }
}

// With plain SGD on the servers too, what a worker does alone is what they do.
void downpour() {
  auto net = make_net();
  auto alone = make_net();
  torch::optim::SGD plain(alone->parameters(), 0.1);
  DistributedOptimizer optimizer(torch::optim::SGD(net->parameters(), 0.1), net->named_parameters(),
                                 {.mode = ciranda::ps::Downpour{.n_push = 2, .n_fetch = 4}});
  for (int step = 0; step < 6; ++step) {
    const Tensor images = batch(step);
    const auto train = [&](torch::nn::Sequential& one, auto& its_optimizer) {
      its_optimizer.zero_grad();
      one->forward(images).square().mean().backward();
      its_optimizer.step();
    };
    train(net, optimizer);
    train(alone, plain);
  }
  for (size_t i = 0; i < net->parameters().size(); ++i) {
    require(torch::allclose(net->parameters()[i], alone->parameters()[i], 1e-5, 1e-7),
            "other steps than alone");
  }
  require(ciranda::ps::stats().worker.pushes.applied == 3, "not a push for two steps");
  require_error("n_push and n_fetch must be at least 1", [&] {
    DistributedOptimizer none(torch::optim::SGD(net->parameters(), 0.1), net->named_parameters(),
                              {.mode = ciranda::ps::Downpour{.n_push = 0}});
  });
}

// All the way nearer: the worker and the servers change places.
void easgd() {
  auto net = make_net();
  auto alone = make_net();
  torch::optim::SGD plain(alone->parameters(), 0.125);
  DistributedOptimizer optimizer(torch::optim::SGD(net->parameters(), 0.125),
                                 net->named_parameters(),
                                 {.mode = ciranda::ps::EASGD{.rho = 8.0, .period = 2}});
  for (int step = 0; step < 2; ++step) {
    const auto train = [&](torch::nn::Sequential& one, auto& its_optimizer) {
      its_optimizer.zero_grad();
      one->forward(batch(step)).square().mean().backward();
      its_optimizer.step();
    };
    train(net, optimizer);
    train(alone, plain);
  }
  const auto require_same = [&](torch::nn::Sequential other, const char* what) {
    for (size_t i = 0; i < net->parameters().size(); ++i) {
      require(torch::allclose(net->parameters()[i], other->parameters()[i], 1e-9, 1e-12), what);
    }
  };
  require_same(make_net(), "the worker's are not what the servers' were");
  ciranda::broadcast_parameters(*net, 0);
  require_same(alone, "the servers' are not what the worker's were");
  require_error("rho must be more than 0", [&] {
    DistributedOptimizer none(torch::optim::SGD(net->parameters(), 0.1), net->named_parameters(),
                              {.mode = ciranda::ps::EASGD{}});
  });
}

int run(int, char** argv) {
  try {
    ciranda::init();
    torch::set_num_threads(1);
    const std::string what = argv[1];
    what == "rounds"     ? rounds()
    : what == "worker"   ? worker()
    : what == "downpour" ? downpour()
                         : easgd();
    std::printf("passed\n");
  } catch (const std::exception& error) {
    std::printf("failed: %s\n", error.what());
    return 1;
  }
  return 0;
}

}  // namespace served
