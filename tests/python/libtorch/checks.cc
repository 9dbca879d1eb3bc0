// What could break: <ciranda/torch.h> as a LibTorch program uses it. Every rank runs all checks of
// a list, in its order, and prints a line for each that passed; the first that fails ends the rank.
// test_libtorch.py builds and starts it.
#include <ciranda/torch.h>
#include <torch/nn.h>
#include <torch/optim.h>
#include <torch/serialize.h>
#include <torch/utils.h>

#include <cstdio>
#include <functional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "require.h"

namespace checks {

using ciranda::DistributedOptimizer;
using ciranda::DistributedOptions;
using ciranda::ProcessSet;
using ciranda::SharedStepMode;
using torch::Tensor;
using torch::nn::Sequential;

constexpr SharedStepMode kSharedStepModes[] = {SharedStepMode::kOff, SharedStepMode::kAuto,
                                               SharedStepMode::kHost};

void require_close(const std::vector<Tensor>& ours, const std::vector<Tensor>& theirs,
                   const std::string& what, double tolerance = 1e-9) {
  require(ours.size() == theirs.size(), what + ": other tensors");
  for (size_t i = 0; i < ours.size(); ++i) {
    require(torch::allclose(ours[i], theirs[i], tolerance, tolerance / 1000),
            what + ": tensor " + std::to_string(i) + " is off by " +
                std::to_string((ours[i] - theirs[i]).abs().max().item<double>()));
  }
}

void require_same_bits_on_all_ranks(const std::vector<Tensor>& tensors) {
  for (const Tensor& tensor : tensors) {
    const Tensor first = tensor.detach().clone();
    ciranda::broadcast_(first, 0);
    require(torch::equal(first, tensor), "the ranks differ");
  }
}

// Enough parameters for kAuto, in float64: what differs is no rounding error.
Sequential make_model() {
  torch::manual_seed(1);
  Sequential model(torch::nn::Linear(64, 1100), torch::nn::Tanh(), torch::nn::Linear(1100, 3));
  model->to(torch::kFloat64);
  return model;
}

std::vector<Tensor> copies(const Sequential& model) {
  std::vector<Tensor> result;
  for (const Tensor& parameter : model->parameters()) result.push_back(parameter.detach().clone());
  return result;
}

Tensor batch_of(int step, int rank) {
  torch::manual_seed(100 * step + rank);
  return torch::randn({4, 64}, torch::kFloat64);
}

void backward_own(Sequential& model, int step) {
  model->forward(batch_of(step, ciranda::rank())).square().mean().backward();
}

// As one process with the batches of all ranks.
void backward_joined(Sequential& model, int step) {
  std::vector<Tensor> batches;
  for (int rank = 0; rank < ciranda::size(); ++rank) batches.push_back(batch_of(step, rank));
  model->forward(torch::cat(batches)).square().mean().backward();
}

// A model that all ranks train, and the same one trained by one process.
template <typename Optimizer>
struct Pair {
  using Make = std::function<Optimizer(Sequential&)>;

  Pair(const Make& make, const DistributedOptions& options)
      : optimizer(make(model), model->named_parameters(), options), alone(make(model_alone)) {
    require((options.shared_step == SharedStepMode::kOff || ciranda::size() == 1) !=
                optimizer.why_not_shared().empty(),
            "shared or not: " + optimizer.why_not_shared());
  }

  void step(int number) {
    optimizer.zero_grad();
    backward_own(model, number);
    optimizer.step();
    alone.zero_grad();
    backward_joined(model_alone, number);
    alone.step();
  }

  void require_equal(const std::string& what) {
    require_close(model->parameters(), model_alone->parameters(), what);
    require_same_bits_on_all_ranks(model->parameters());
  }

  Sequential model = make_model();
  Sequential model_alone = make_model();
  DistributedOptimizer<Optimizer> optimizer;
  Optimizer alone;
};

// Two param groups: weights as `options` say, biases with a larger learning rate.
template <typename Optimizer, typename Options>
typename Pair<Optimizer>::Make in_groups(const Options& options) {
  return [options](Sequential& model) {
    std::vector<Tensor> weights;
    std::vector<Tensor> biases;
    for (const auto& item : model->named_parameters()) {
      (item.key().find("bias") == std::string::npos ? weights : biases).push_back(item.value());
    }
    auto larger = std::make_unique<Options>(options);
    larger->lr(3 * options.lr());
    std::vector<torch::optim::OptimizerParamGroup> groups;
    groups.emplace_back(weights, std::make_unique<Options>(options));
    groups.emplace_back(biases, std::move(larger));
    return Optimizer(groups, options);
  };
}

template <typename Optimizer, typename Options>
void trains_as_one_process(const std::string& name, const Options& options) {
  for (const SharedStepMode shared_step : kSharedStepModes) {
    Pair<Optimizer> pair(in_groups<Optimizer>(options), {.shared_step = shared_step});
    torch::optim::StepLR scheduler(pair.optimizer, /*step_size=*/8, /*gamma=*/0.5);
    torch::optim::StepLR scheduler_alone(pair.alone, 8, 0.5);
    for (int step = 0; step < 24; ++step) {
      pair.step(step);
      scheduler.step();
      scheduler_alone.step();
    }
    require(pair.optimizer.param_groups()[0].options().get_lr() < options.lr() / 3, "no schedule");
    pair.require_equal(name + " with shared_step " + std::to_string(int(shared_step)));
  }
}

void all_optimizers_train_as_one_process() {
  using namespace torch::optim;
  trains_as_one_process<SGD>("SGD", SGDOptions(1e-3).momentum(0.9).nesterov(true));
  trains_as_one_process<SGD>("plain SGD", SGDOptions(1e-3).weight_decay(0.01));
  trains_as_one_process<Adam>("Adam", AdamOptions(1e-3).amsgrad(true).weight_decay(0.01));
  trains_as_one_process<AdamW>("AdamW", AdamWOptions(1e-3).betas({0.8, 0.95}));
  trains_as_one_process<Adagrad>(
      "Adagrad", AdagradOptions(0.01).lr_decay(0.01).initial_accumulator_value(0.5));
  trains_as_one_process<RMSprop>("RMSprop",
                                 RMSpropOptions(1e-3).momentum(0.8).centered(true).alpha(0.9));
}

torch::optim::Adam make_adam(Sequential& model) {
  return torch::optim::Adam(model->parameters(), 1e-3);
}

void clips_to_the_global_norm() {
  for (const SharedStepMode shared_step : kSharedStepModes) {
    for (const double max_norm : {0.01, 1000.0}) {
      Pair<torch::optim::Adam> pair(make_adam,
                                    {.shared_step = shared_step, .max_grad_norm = max_norm});
      for (int step = 0; step < 5; ++step) {
        pair.optimizer.zero_grad();
        backward_own(pair.model, step);
        pair.optimizer.step();
        pair.alone.zero_grad();
        backward_joined(pair.model_alone, step);
        const double norm =
            torch::nn::utils::clip_grad_norm_(pair.model_alone->parameters(), max_norm);
        pair.alone.step();
        require(std::abs(pair.optimizer.grad_norm() - norm) < 1e-9 * norm, "another norm");
      }
      pair.require_equal("clipped");
    }
  }
}

void saved_state_is_torchs_and_loads_again() {
  for (const SharedStepMode shared_step : kSharedStepModes) {
    Pair<torch::optim::Adam> pair(make_adam, {.shared_step = shared_step});
    for (int step = 0; step < 5; ++step) pair.step(step);
    std::stringstream saved;
    torch::save(pair.optimizer, saved);
    const std::vector<Tensor> before = copies(pair.model);
    const std::vector<Tensor> before_alone = copies(pair.model_alone);
    for (int step = 5; step < 8; ++step) pair.step(step);
    const std::vector<Tensor> after = copies(pair.model);

    // Back to step 5, the plain optimizer with the state of the distributed one.
    {
      const torch::NoGradGuard no_grad;
      for (size_t i = 0; i < before.size(); ++i) {
        pair.model->parameters()[i].copy_(before[i]);
        pair.model_alone->parameters()[i].copy_(before_alone[i]);
      }
    }
    std::stringstream copy(saved.str());
    torch::load(pair.optimizer, saved);
    torch::load(pair.alone, copy);
    for (const Tensor& parameter : pair.model->parameters()) {
      const auto& state = static_cast<const torch::optim::AdamParamState&>(
          *pair.optimizer.state().at(parameter.unsafeGetTensorImpl()));
      require(state.step() == 5, "step is " + std::to_string(state.step()));
    }
    for (int step = 5; step < 8; ++step) pair.step(step);
    pair.require_equal("loaded");
    require_close(pair.model->parameters(), after, "the same steps again");
  }
}

void state_that_was_there_before_goes_along() {
  for (const SharedStepMode shared_step : kSharedStepModes) {
    Pair<torch::optim::Adam> pair(
        [](Sequential& trained) {
          torch::optim::Adam adam = make_adam(trained);
          for (int step = 0; step < 3; ++step) {
            adam.zero_grad();
            backward_joined(trained, step);
            adam.step();
          }
          return adam;
        },
        {.shared_step = shared_step});
    for (int step = 3; step < 6; ++step) pair.step(step);
    pair.require_equal("trained before");
  }
}

void an_added_group_is_reduced_too() {
  for (const SharedStepMode shared_step : kSharedStepModes) {
    const auto first_layer = [](Sequential& model) {
      return torch::optim::Adam(model[0]->parameters(), torch::optim::AdamOptions(1e-3));
    };
    Pair<torch::optim::Adam> pair(first_layer, {.shared_step = shared_step, .bucket_bytes = 4096});
    pair.step(0);
    const auto options = [] {
      return std::make_unique<torch::optim::AdamOptions>(torch::optim::AdamOptions(1e-2));
    };
    pair.optimizer.add_param_group({pair.model[2]->parameters(), options()});
    pair.alone.add_param_group({pair.model_alone[2]->parameters(), options()});
    for (int step = 1; step < 5; ++step) pair.step(step);
    pair.require_equal("with a group that was added");
  }
}

void backward_leaves_what_the_page_says() {
  Sequential reduced = make_model();
  Sequential own = make_model();
  backward_joined(reduced, 0);
  backward_own(own, 0);
  for (const SharedStepMode shared_step : kSharedStepModes) {
    Sequential model = make_model();
    DistributedOptimizer optimizer(make_adam(model), model->named_parameters(),
                                   {.shared_step = shared_step});
    backward_own(model, 0);
    Sequential expected = shared_step == SharedStepMode::kHost ? own : reduced;
    require_close({model->parameters()[0].grad()}, {expected->parameters()[0].grad()}, "backward");
    optimizer.synchronize();
    require_close({model->parameters()[0].grad()}, {reduced->parameters()[0].grad()}, "average");
  }
}

// What a program does with gradients, parameters and state that it believes to be its own.
void what_the_program_holds_and_changes() {
  using Change =
      std::function<void(Pair<torch::optim::Adam>&, Sequential&, torch::optim::Optimizer&)>;
  const auto swap_gradients = [](auto&, Sequential& model, auto&) {
    Tensor first = model->parameters()[0].mutable_grad();
    model->parameters()[0].mutable_grad() = first.clone().mul_(2);
  };
  const auto replace_values = [](auto&, Sequential& model, auto&) {
    Tensor parameter = model->parameters()[0];
    parameter.set_data(parameter.detach().clone());
  };
  const auto convert_and_back = [](auto&, Sequential& model, auto&) {
    model->to(torch::kFloat32);
    model->to(torch::kFloat64);
  };
  const auto clear_state = [](auto&, Sequential&, torch::optim::Optimizer& optimizer) {
    optimizer.state().clear();
  };
  const std::vector<std::pair<std::string, Change>> changes = {
      {"gradients replaced", swap_gradients},
      {"values replaced", replace_values},
      {"a model converted and back", convert_and_back},
      {"state cleared", clear_state},
  };
  for (const auto& [what, change] : changes) {
    for (const SharedStepMode shared_step : kSharedStepModes) {
      Pair<torch::optim::Adam> pair(make_adam, {.shared_step = shared_step});
      pair.step(0);
      pair.optimizer.zero_grad();
      backward_own(pair.model, 1);
      pair.optimizer.synchronize();
      pair.alone.zero_grad();
      backward_joined(pair.model_alone, 1);
      change(pair, pair.model, pair.optimizer);
      change(pair, pair.model_alone, pair.alone);
      pair.optimizer.step();
      pair.alone.step();
      for (int step = 2; step < 5; ++step) pair.step(step);
      require_close(pair.model->parameters(), pair.model_alone->parameters(), what, 1e-4);
      require_same_bits_on_all_ranks(pair.model->parameters());
    }
  }
}

void a_gradient_that_is_held_keeps_its_value() {
  for (const SharedStepMode shared_step : kSharedStepModes) {
    Sequential model = make_model();
    DistributedOptimizer optimizer(make_adam(model), model->named_parameters(),
                                   {.shared_step = shared_step});
    std::vector<std::pair<Tensor, Tensor>> held;
    for (int step = 0; step < 4; ++step) {
      optimizer.zero_grad();
      backward_own(model, step);
      optimizer.synchronize();
      for (const Tensor& parameter : model->parameters()) {
        held.emplace_back(parameter.grad(), parameter.grad().clone());
      }
      optimizer.step();
    }
    for (const auto& [gradient, before] : held) require_close({gradient}, {before}, "held");
  }
}

void a_parameter_of_size_0_keeps_none_from_its_step() {
  for (const SharedStepMode shared_step : kSharedStepModes) {
    Tensor none = torch::zeros({0, 3}, torch::requires_grad());
    Tensor weight = torch::zeros({70'000}, torch::requires_grad());
    torch::OrderedDict<std::string, Tensor> named;
    named.insert("none", none);
    named.insert("weight", weight);
    DistributedOptimizer optimizer(
        torch::optim::SGD(std::vector<Tensor>{none, weight}, torch::optim::SGDOptions(1.0)), named,
        {.shared_step = shared_step});
    (none.sum() + weight.sum()).backward();
    optimizer.step();
    require((weight == -1.0).all().item<bool>(), "weight did not step");
  }
}

void a_second_optimizer_takes_over() {
  for (const SharedStepMode shared_step : kSharedStepModes) {
    Tensor weight = torch::zeros({70'000}, torch::requires_grad());
    torch::OrderedDict<std::string, Tensor> named;
    named.insert("weight", weight);
    DistributedOptimizer first(torch::optim::Adam(std::vector<Tensor>{weight}, 0.1), named,
                               {.shared_step = shared_step});
    DistributedOptimizer second(
        torch::optim::SGD(std::vector<Tensor>{weight}, torch::optim::SGDOptions(0.1)), named,
        {.shared_step = shared_step});
    const double mean = (ciranda::size() + 1) / 2.0;
    for (int step = 0; step < 3; ++step) {
      second.zero_grad();
      (weight * (ciranda::rank() + 1)).sum().backward();
      second.step();
      require_close(
          {weight.grad()},
          {shared_step == SharedStepMode::kHost ? weight.grad() : torch::full_like(weight, mean)},
          "gradient of two optimizers");
    }
    require_close({weight.detach()}, {torch::full_like(weight, -0.3 * mean)}, "second", 1e-5);
    require_same_bits_on_all_ranks({weight});
  }
}

void autograd_sees_the_step() {
  for (const SharedStepMode shared_step : kSharedStepModes) {
    Sequential model = make_model();
    DistributedOptimizer optimizer(make_adam(model), model->named_parameters(),
                                   {.shared_step = shared_step});
    const Tensor loss = model->forward(batch_of(0, ciranda::rank())).square().mean();
    loss.backward({}, /*retain_graph=*/true);
    optimizer.step();
    bool raised = false;
    try {
      loss.backward();
    } catch (const std::exception& problem) {
      raised = std::string(problem.what()).find("inplace operation") != std::string::npos;
    }
    require(raised, "a backward pass with changed weights went through");
    optimizer.zero_grad();
  }
}

void closures_and_other_optimizers_step_as_one_process() {
  Sequential model = make_model();
  Sequential model_alone = make_model();
  const auto make = [](Sequential& trained) {
    return torch::optim::LBFGS(trained->parameters(), torch::optim::LBFGSOptions(0.1).max_iter(4));
  };
  DistributedOptimizer optimizer(make(model), model->named_parameters());
  torch::optim::LBFGS alone = make(model_alone);
  optimizer.step([&] {
    optimizer.zero_grad();
    const Tensor loss = model->forward(batch_of(0, ciranda::rank())).square().mean();
    loss.backward();
    return loss;
  });
  alone.step([&] {
    alone.zero_grad();
    std::vector<Tensor> batches;
    for (int rank = 0; rank < ciranda::size(); ++rank) batches.push_back(batch_of(0, rank));
    const Tensor loss = model_alone->forward(torch::cat(batches)).square().mean();
    loss.backward();
    return loss;
  });
  require_close(model->parameters(), model_alone->parameters(), "LBFGS");
  require_same_bits_on_all_ranks(model->parameters());
}

// Each rank steps with its own gradients; Adasum combines the changes, tensor by tensor.
void adasum_combines_what_the_ranks_have_changed() {
  const auto make = [](Sequential& model) {
    return torch::optim::SGD(model->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  };
  Sequential model = make_model();
  Sequential model_alone = make_model();
  DistributedOptimizer optimizer(make(model), model->named_parameters(),
                                 {.op = ciranda::Op::kAdasum});
  require(!optimizer.why_not_shared().empty(), "a shared step");
  torch::optim::SGD alone = make(model_alone);
  for (int step = 0; step < 3; ++step) {
    const std::vector<Tensor> starts = copies(model_alone);
    optimizer.zero_grad();
    backward_own(model, step);
    optimizer.step();
    alone.zero_grad();
    backward_own(model_alone, step);
    alone.step();
    const torch::NoGradGuard no_grad;
    for (size_t i = 0; i < starts.size(); ++i) {
      const Tensor parameter = model_alone->parameters()[i];
      parameter.copy_(starts[i] + ciranda::allreduce(parameter - starts[i], ciranda::Op::kAdasum));
      require(torch::allclose(model->parameters()[i].grad(), parameter.grad(), 1e-9),
              "another gradient");
    }
  }
  require_close(model->parameters(), model_alone->parameters(), "Adasum");
  require_same_bits_on_all_ranks(model->parameters());
}

// Begun with CIRANDA_AUTOTUNE: the job's first optimizer is tuned.
void tuned_steps_train_as_one_process() {
  Pair<torch::optim::Adam> pair(make_adam, {});
  for (int step = 0; step < 160; ++step) pair.step(step);  // enough for all samples
  pair.require_equal("autotuning");
}

void a_plain_reference_steps_together_too() {
  Sequential model = make_model();
  DistributedOptimizer distributed(make_adam(model), model->named_parameters());
  torch::optim::Optimizer& optimizer = distributed;
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    backward_own(model, step);
    optimizer.step();
  }
  require_same_bits_on_all_ranks(model->parameters());
}

void errors_say_what_to_do() {
  Sequential model = make_model();
  const auto make = [&](const DistributedOptions& options) {
    DistributedOptimizer optimizer(make_adam(model), model->named_parameters(), options);
  };
  require_error("op must be Average, Sum or Adasum", [&] { make({.op = ciranda::Op::kMax}); });
  require_error(
      "with op=Adasum no gradients are reduced, so leave out bucket_bytes, max_grad_norm",
      [&] { make({.max_grad_norm = 1.0, .op = ciranda::Op::kAdasum, .bucket_bytes = 4096}); });
  require_error("max_grad_norm must be above 0", [&] { make({.max_grad_norm = 0.0}); });
  require_error("2 of the optimizer's 4 parameters have no name in named_parameters", [&] {
    DistributedOptimizer optimizer(make_adam(model), model[0]->named_parameters());
  });
  require_error("root_rank 9 is not a rank", [&] { ciranda::broadcast_parameters(*model, 9); });
  if (ciranda::size() == 1) return;
  require_error(
      "shared_step='host' is not possible: torch::optim::LBFGS is not one of SGD, Adam, AdamW",
      [&] {
        DistributedOptimizer optimizer(torch::optim::LBFGS(model->parameters()),
                                       model->named_parameters(),
                                       {.shared_step = SharedStepMode::kHost});
      });
  const Tensor held = model->parameters()[0].detach();
  require_error(
      "shared_step='host' is not possible: parameter '0.weight' shares its memory with another",
      [&] { make({.shared_step = SharedStepMode::kHost}); });
  require_error("the ranks differ in the options: rank 0 has",
                [&] { make({.bucket_bytes = 4096 + ciranda::rank()}); });
  Sequential other(torch::nn::Linear(2, 3 + ciranda::rank()));
  require_error("the ranks differ in parameter 0: rank 0 has '0.weight' float32[3, 2]", [&] {
    DistributedOptimizer optimizer(make_adam(other), other->named_parameters());
  });
}

void ranks_with_other_learning_rates_are_told() {
  if (ciranda::size() == 1) return;
  for (const SharedStepMode shared_step : kSharedStepModes) {
    Sequential model = make_model();
    DistributedOptimizer optimizer(make_adam(model), model->named_parameters(),
                                   {.shared_step = shared_step});
    optimizer.param_groups()[0].options().set_lr(0.5 + ciranda::rank());
    backward_own(model, 0);
    require_error("lr=1.5", [&] { optimizer.step(); });
  }
}

void ranks_with_other_first_parameters_are_told() {
  if (ciranda::size() == 1) return;
  for (const SharedStepMode shared_step : kSharedStepModes) {
    Sequential model = make_model();
    DistributedOptimizer optimizer(make_adam(model), model->named_parameters(),
                                   {.shared_step = shared_step});
    model->parameters()[1].data()[0] += ciranda::rank();
    backward_own(model, 0);
    require_error("different values of parameter '0.bias'; call broadcast_parameters",
                  [&] { optimizer.step(); });
    ciranda::broadcast_parameters(*model, 0);
    optimizer.step();
    require_same_bits_on_all_ranks(model->parameters());
  }
}

void collectives_reach_every_rank() {
  const int size = ciranda::size();
  const Tensor mine = torch::full({3}, ciranda::rank() + 1.0F);
  require(ciranda::allreduce(mine).eq((size + 1) / 2.0F).all().item<bool>(), "average");
  ciranda::allreduce_(mine, ciranda::Op::kMax, "largest");
  const Tensor same = torch::ones({300}, torch::kFloat64);  // the average of what is equal
  require(ciranda::allreduce(same, ciranda::Op::kAdasum).allclose(same), "Adasum");
  require(mine.eq(size).all().item<bool>(), "max");
  torch::nn::BatchNorm1d norm(torch::nn::BatchNormOptions(4));
  norm->register_buffer("flags", torch::full({2}, ciranda::rank() == 0, torch::kBool));
  {
    const torch::NoGradGuard no_grad;
    norm->weight.fill_(ciranda::rank());
    norm->num_batches_tracked.fill_(7 + ciranda::rank());
  }
  ciranda::broadcast_parameters(*norm, 0);
  require(norm->weight.eq(0).all().item<bool>(), "parameter");
  require(norm->num_batches_tracked.item<int64_t>() == 7, "buffer");
  require(norm->named_buffers()["flags"].all().item<bool>(), "bool buffer");
  ciranda::barrier();
  require(ciranda::local_size() == size && ciranda::cross_size() == 1 && ciranda::cross_rank() == 0,
          "place");
}

void autograd_sees_what_is_written() {
  const std::function<void(torch::nn::Linear&)> writes[] = {
      [](torch::nn::Linear& layer) { ciranda::allreduce_(layer->weight); },
      [](torch::nn::Linear& layer) { ciranda::broadcast_(layer->weight, 0); },
      [](torch::nn::Linear& layer) { ciranda::broadcast_parameters(*layer, 0); },
  };
  for (const auto& write : writes) {
    torch::nn::Linear layer(2, 3);
    const Tensor loss = (layer->weight * layer->weight).sum();
    write(layer);
    std::string said;
    try {
      loss.backward();
    } catch (const c10::Error& error) {
      said = error.what();
    }
    require(said.find("modified by an inplace operation") != std::string::npos, "said: " + said);
  }
}

void conjugated_views_are_sent_as_they_look() {
  const Tensor parts = torch::full({3}, 1.0F + ciranda::rank());
  const Tensor view = torch::complex(parts, parts).conj();
  ciranda::broadcast_(view, 0);
  require(torch::imag(view.resolve_conj()).eq(-1).all().item<bool>(), "another value");
  require(torch::imag(view.conj()).eq(1).all().item<bool>(), "another value in memory");
}

// -------------------------------------------------------------------------------------------
// Of four ranks

void a_process_set_works_among_its_members() {
  const int rank = ciranda::rank();
  const ProcessSet odd = ciranda::add_process_set({3, 1});
  require(odd.ranks() == std::vector<int>{1, 3} && odd.included() == (rank % 2 == 1), "the set");
  require(ciranda::global_process_set().rank() == rank, "the global set");
  torch::nn::Linear layer(2, 3);
  torch::NoGradGuard no_grad;
  layer->weight.fill_(rank);
  if (odd.included()) {
    const Tensor average = ciranda::allreduce(layer->weight, ciranda::Op::kAverage, "", odd);
    require(average.eq(2).all().item<bool>(), "average");
    ciranda::broadcast_parameters(*layer, 3, odd);
    require(layer->weight.eq(3).all().item<bool>(), "parameter");
    layer->weight.fill_(rank);
    ciranda::broadcast_(layer->weight, 1, "", odd);
    require(layer->weight.eq(1).all().item<bool>(), "broadcast");
    ciranda::barrier(odd);
  } else {
    const std::string text = "rank " + std::to_string(rank) + " is not a member of process set 1; ";
    require_error(text + "only its members may submit operations of the set",
                  [&] { ciranda::allreduce_(layer->weight, {}, "", odd); });
    require_error("DistributedOptimizer: " + text + "make the optimizer only on members", [&] {
      DistributedOptimizer optimizer(torch::optim::SGD(layer->parameters(), 0.1),
                                     layer->named_parameters(), {.process_set = odd});
    });
  }
  require_error("process sets must be unique", [] { ciranda::add_process_set({1, 3}); });
  ciranda::remove_process_set(odd);
  require_error("there is no process set 1; it may have been removed",
                [&] { ciranda::barrier(odd); });
}

// One step of plain torch on the batches of `ranks`.
void step_alone(Sequential& model, torch::optim::Optimizer& optimizer, int step,
                const std::vector<int>& ranks) {
  std::vector<Tensor> batches;
  for (const int rank : ranks) batches.push_back(batch_of(step, rank));
  optimizer.step([&] {
    optimizer.zero_grad();
    const Tensor loss = model->forward(torch::cat(batches)).square().mean();
    loss.backward();
    return loss;
  });
}

template <typename Optimizer>
void sets_train_apart(const ProcessSet& mine, const std::function<Optimizer(Sequential&)>& make,
                      bool shared) {
  Sequential model = make_model();
  Sequential model_alone = make_model();
  Optimizer alone = make(model_alone);
  DistributedOptimizer optimizer(make(model), model->named_parameters(), {.process_set = mine});
  require(optimizer.why_not_shared().empty() == shared, optimizer.why_not_shared());
  for (int step = 0; step < 3; ++step) {
    optimizer.step([&] {
      optimizer.zero_grad();
      const Tensor loss = model->forward(batch_of(step, ciranda::rank())).square().mean();
      loss.backward();
      return loss;
    });
    step_alone(model_alone, alone, step, mine.ranks());
  }
  require_close(model->parameters(), model_alone->parameters(), "trained by a set");
}

// In two jobs, whose sets of the same numbers have other ranks.
void two_sets_train_as_two_processes() {
  ProcessSet earlier;
  for (const std::vector<int>& first : {std::vector<int>{0, 1}, std::vector<int>{0, 2}}) {
    ciranda::shutdown();
    ciranda::init();
    const ProcessSet one = ciranda::add_process_set(first);
    const ProcessSet other = ciranda::add_process_set({3 - first[1], 3});
    const ProcessSet mine = one.included() ? one : other;
    if (earlier.id() != 0) {
      require_error("belongs to an earlier job", [&] { ciranda::barrier(earlier); });
    }
    earlier = mine;
    if (one.included())
      sets_train_apart<torch::optim::Adam>(mine, make_adam, true);  // names are a set's own
    sets_train_apart<torch::optim::Adam>(mine, make_adam, true);
    const auto make_lbfgs = [](Sequential& model) {
      return torch::optim::LBFGS(model->parameters(), torch::optim::LBFGSOptions(0.1).max_iter(4));
    };
    sets_train_apart<torch::optim::LBFGS>(mine, make_lbfgs, false);
  }
}

// A step in which rank r has joined if r < `first_there`, of one process.
void step_without(Sequential& model, torch::optim::Optimizer& optimizer, int step,
                  int first_there) {
  optimizer.zero_grad();
  for (int rank = first_there; rank < ciranda::size(); ++rank) {
    const Tensor loss = model->forward(batch_of(step, rank)).square().mean();
    (loss / ciranda::size()).backward();
  }
  optimizer.step();
}

void ranks_with_fewer_batches_join() {
  const int last = ciranda::size() - 1;
  for (const SharedStepMode shared_step : kSharedStepModes) {
    Sequential model = make_model();
    Sequential model_alone = make_model();
    const torch::optim::AdamOptions options(1e-3);
    DistributedOptimizer optimizer(torch::optim::Adam(model->parameters(), options),
                                   model->named_parameters(), {.shared_step = shared_step});
    torch::optim::Adam alone(model_alone->parameters(), options);
    for (int epoch = 0; epoch < 2; ++epoch) {
      const int batches = ciranda::rank() + epoch;  // none in rank 0's first
      for (int step = 0; step < batches; ++step) {
        optimizer.zero_grad();
        backward_own(model, step);
        optimizer.step();
      }
      require(ciranda::join() == last, "another rank joined last");
      for (int step = 0; step < last + epoch; ++step) {
        step_without(model_alone, alone, step, step + 1 - epoch);
      }
      if (shared_step == SharedStepMode::kOff) {
        ciranda::broadcast_parameters(*model, last);
        break;  // its state is another rank's too
      }
      require_close(model->parameters(), model_alone->parameters(), "with fewer batches");
      require_same_bits_on_all_ranks(model->parameters());
    }
    require_close(model->parameters(), model_alone->parameters(), "with fewer batches");
    if (shared_step == SharedStepMode::kOff) continue;
    optimizer.zero_grad();  // a step of all, after which the state is everybody's
    backward_own(model, 7);
    optimizer.step();
    step_without(model_alone, alone, 7, 0);
    require(optimizer.why_not_shared().empty(), "the ranks share no step any more");
    require(optimizer.state().size() == alone.state().size(), "a rank has missed state");
    for (const Tensor& parameter : model->parameters()) {
      const auto& state = static_cast<const torch::optim::AdamParamState&>(
          *optimizer.state().at(parameter.unsafeGetTensorImpl()));
      require(state.step() == 2 * last + 2, "a rank has missed steps");
      require_same_bits_on_all_ranks({state.exp_avg(), state.exp_avg_sq()});
    }
    require_close(model->parameters(), model_alone->parameters(), "with fewer batches");
  }
}

using Check = std::pair<const char*, void (*)()>;

const std::vector<Check> kChecksOfFourRanks = {
    {"a_process_set_works_among_its_members", a_process_set_works_among_its_members},
    {"two_sets_train_as_two_processes", two_sets_train_as_two_processes},
    {"ranks_with_fewer_batches_join", ranks_with_fewer_batches_join},
};

const std::vector<Check> kChecks = {
    {"collectives_reach_every_rank", collectives_reach_every_rank},
    {"autograd_sees_what_is_written", autograd_sees_what_is_written},
    {"conjugated_views_are_sent_as_they_look", conjugated_views_are_sent_as_they_look},
    {"backward_leaves_what_the_page_says", backward_leaves_what_the_page_says},
    {"all_optimizers_train_as_one_process", all_optimizers_train_as_one_process},
    {"clips_to_the_global_norm", clips_to_the_global_norm},
    {"saved_state_is_torchs_and_loads_again", saved_state_is_torchs_and_loads_again},
    {"state_that_was_there_before_goes_along", state_that_was_there_before_goes_along},
    {"an_added_group_is_reduced_too", an_added_group_is_reduced_too},
    {"what_the_program_holds_and_changes", what_the_program_holds_and_changes},
    {"a_gradient_that_is_held_keeps_its_value", a_gradient_that_is_held_keeps_its_value},
    {"a_parameter_of_size_0_keeps_none_from_its_step",
     a_parameter_of_size_0_keeps_none_from_its_step},
    {"a_second_optimizer_takes_over", a_second_optimizer_takes_over},
    {"autograd_sees_the_step", autograd_sees_the_step},
    {"closures_and_other_optimizers_step_as_one_process",
     closures_and_other_optimizers_step_as_one_process},
    {"adasum_combines_what_the_ranks_have_changed", adasum_combines_what_the_ranks_have_changed},
    {"a_plain_reference_steps_together_too", a_plain_reference_steps_together_too},
    {"errors_say_what_to_do", errors_say_what_to_do},
    {"ranks_with_other_learning_rates_are_told", ranks_with_other_learning_rates_are_told},
    {"ranks_with_other_first_parameters_are_told", ranks_with_other_first_parameters_are_told},
};

int run(int argc, char**) {
  const char* current = "a_call_before_init_is_an_error";
  try {
    require_error("call init() first", [] { ciranda::rank(); });
    ciranda::init();
    torch::set_num_threads(1);
    if (argc > 1) return tuned_steps_train_as_one_process(), 0;
    for (const auto& [name, check] : ciranda::size() == 4 ? kChecksOfFourRanks : kChecks) {
      current = name;
      check();
      std::printf("passed %s\n", name);
    }
  } catch (const std::exception& error) {
    std::printf("failed %s: %s\n", current, error.what());
    return 1;
  }
  return 0;
}

}  // namespace checks
