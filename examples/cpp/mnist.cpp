// (Fashion-)MNIST on one process or on many, in C++.
//
//   build/mnist                                    one process, random images
//   ciranda run -np 2 build/mnist FOLDER [EPOCHS]  two, on the four unpacked idx files in FOLDER
//
// What makes an ordinary LibTorch program a distributed one is marked with (1) to (5).
#include <ciranda/torch.h>
#include <torch/optim/adam.h>
#include <torch/optim/schedulers/step_lr.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>

#include "images.h"

namespace {

constexpr const char* kUsage = "usage: mnist [FOLDER [EPOCHS]]; without FOLDER: random images\n";
constexpr size_t kBatchSize = 64;  // of each rank

// Percent of all images; each rank looks at its share of them.
double accuracy(torch::nn::Sequential& model, const Split& split) {
  const torch::NoGradGuard no_grad;
  using torch::indexing::Slice;
  const auto share = Slice(ciranda::rank(), torch::indexing::None, ciranda::size());
  const torch::Tensor labels = split.labels.index({share});
  const torch::Tensor right = model->forward(split.images.index({share})).argmax(1).eq(labels);
  torch::Tensor counts = torch::tensor({right.sum().item<double>(), double(labels.numel())});
  // (5) Figures of one rank become figures of all.
  ciranda::allreduce_(counts, ciranda::Op::kSum);
  return 100.0 * counts[0].item<double>() / counts[1].item<double>();
}

void train(const std::string& folder, int epochs) {
  Split train_split = folder.empty() ? random_split(4096) : read_split(folder, true);
  const Split test_split = folder.empty() ? random_split(1024) : read_split(folder, false);

  torch::nn::Sequential model = make_model();
  // (2) The optimizer steps on gradients averaged over all ranks.
  ciranda::DistributedOptimizer optimizer(torch::optim::Adam(model->parameters(), 1e-3),
                                          model->named_parameters());
  // (3) Every rank starts from rank 0's parameters.
  ciranda::broadcast_parameters(*model, /*root_rank=*/0);
  torch::optim::StepLR scheduler(optimizer, /*step_size=*/1, /*gamma=*/0.7);

  // (4) Each rank reads its share of the images, another one every epoch.
  torch::data::samplers::DistributedRandomSampler sampler(*train_split.size(),
                                                          static_cast<size_t>(ciranda::size()),
                                                          static_cast<size_t>(ciranda::rank()));
  auto batches = torch::data::make_data_loader(train_split.map(torch::data::transforms::Stack<>()),
                                               sampler, kBatchSize);

  for (int epoch = 1; epoch <= epochs; ++epoch) {
    double loss_sum = 0.0;
    int steps = 0;
    for (const torch::data::Example<>& batch : *batches) {
      optimizer.zero_grad();
      const torch::Tensor loss =
          torch::nn::functional::cross_entropy(model->forward(batch.data), batch.target);
      loss.backward();
      optimizer.step();
      loss_sum += loss.item<double>();
      ++steps;
    }
    scheduler.step();
    const double percent = accuracy(model, test_split);
    if (ciranda::rank() == 0) {
      std::printf("epoch %d: loss %.4f, accuracy %.2f %%\n", epoch, loss_sum / steps, percent);
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
    ciranda::init();  // (1) Find the other ranks.
    train(folder, epochs);
  } catch (const c10::Error& error) {
    std::fprintf(stderr, "mnist: %s\n", error.what_without_backtrace());
    return 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "mnist: %s\n", error.what());
    return 1;
  }
}
