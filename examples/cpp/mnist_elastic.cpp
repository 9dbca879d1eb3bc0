// (Fashion-)MNIST on ranks that may be lost at any time, in C++: docs/elastic.md.
//
//   ciranda run -np 4 --min-np 4 --spares 1 build/mnist_elastic FOLDER [EPOCHS]
//   ciranda run -np 4 --min-np 2 build/mnist_elastic    goes on with 2 of 4, on random images
//
// Kill a rank: with a spare in its place the training ends with the parameters that it would have
// had anyway. What makes the training elastic is marked with (1) to (6).
#include <ciranda/elastic.h>
#include <torch/optim/adam.h>
#include <torch/optim/schedulers/step_lr.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>

#include "images.h"

namespace {

namespace elastic = ciranda::elastic;

constexpr const char* kUsage =
    "usage: mnist_elastic [FOLDER [EPOCHS]]; without FOLDER: random images\n";
constexpr size_t kBatchSize = 64;  // of each rank

// Percent of all images; each rank looks at its share of them.
double accuracy(torch::nn::Sequential& model, const Split& split) {
  const torch::NoGradGuard no_grad;
  using torch::indexing::Slice;
  const auto share = Slice(ciranda::rank(), torch::indexing::None, ciranda::size());
  const torch::Tensor labels = split.labels.index({share});
  const torch::Tensor right = model->forward(split.images.index({share})).argmax(1).eq(labels);
  torch::Tensor counts = torch::tensor({right.sum().item<double>(), double(labels.numel())});
  ciranda::allreduce_(counts, ciranda::Op::kSum);
  return 100.0 * counts[0].item<double>() / counts[1].item<double>();
}

void train(const std::string& folder, int epochs) {
  Split train_split = folder.empty() ? random_split(4096) : read_split(folder, true);
  const Split test_split = folder.empty() ? random_split(1024) : read_split(folder, false);

  torch::nn::Sequential model = make_model();
  ciranda::DistributedOptimizer optimizer(torch::optim::Adam(model->parameters(), 1e-3),
                                          model->named_parameters());
  torch::optim::StepLR scheduler(optimizer, /*step_size=*/1, /*gamma=*/0.7);
  double loss_sum = 0.0;
  int64_t steps = 0;
  // (1) What training changes. All ranks begin with rank 0's, and one that joins gets it. At the
  // state's end a rank waits until the others are there too.
  elastic::State state(model, optimizer, loss_sum, steps);

  // (2) No sampler: steps() deals the images to the ranks there are.
  const elastic::Deal deal{.samples = *train_split.size(), .batch = kBatchSize, .shuffle = true};
  auto data = train_split.map(torch::data::transforms::Stack<>());
  for (int epoch = 1; epoch <= epochs; ++epoch) {
    loss_sum = 0.0;
    steps = 0;
    // (3) A block is one step. It comes again if a rank is lost before the step is made.
    elastic::steps(state, deal, [&](const elastic::Block& block) {
      const torch::data::Example<> batch = data.get_batch(block.indices);
      optimizer.zero_grad();
      const torch::Tensor loss =
          torch::nn::functional::cross_entropy(model->forward(batch.data), batch.target);
      loss.backward();
      optimizer.step();
      loss_sum += loss.item<double>();
      ++steps;
    });
    scheduler.step();
    // (4) So may an evaluation. A rank that joins later gets its result.
    const double percent = elastic::agreed(state, [&] { return accuracy(model, test_split); });
    // (5) A rank that joins comes through the whole program, and what it skips was printed.
    if (ciranda::rank() == 0 && !state.skipping()) {
      std::printf("epoch %d: loss %.4f, accuracy %.2f %%, %d ranks\n", epoch,
                  loss_sum / double(steps), percent, ciranda::size());
      std::fflush(stdout);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::string folder = argc > 1 ? argv[1] : "";
  const int epochs = argc > 2 ? std::atoi(argv[2]) : 3;
  const bool wants_help = folder == "--help" || folder == "-h";
  if (wants_help || folder.starts_with('-') || epochs < 1 || argc > 3) {
    std::fputs(kUsage, wants_help ? stdout : stderr);
    return wants_help ? 0 : 2;
  }
  try {
    ciranda::init();
    train(folder, epochs);
  } catch (const c10::Error& error) {
    std::fprintf(stderr, "mnist_elastic: %s\n", error.what_without_backtrace());
    return 1;
  } catch (const std::exception& error) {
    // (6) A process that ends with an error counts as lost, and is started again.
    std::fprintf(stderr, "mnist_elastic: %s\n", error.what());
    return 1;
  }
}
