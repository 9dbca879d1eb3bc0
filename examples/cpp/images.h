#pragma once

// The images and the model of the examples. Nothing here knows of ranks.
#include <torch/data.h>
#include <torch/nn.h>

#include <cstdint>
#include <optional>
#include <string>

inline constexpr int64_t kClasses = 10;
inline constexpr double kMean = 0.2860;  // of Fashion-MNIST's training images, pixels in 0..1
inline constexpr double kDeviation = 0.3530;

// Images N x 1 x 28 x 28 and their classes.
struct Split : torch::data::datasets::Dataset<Split> {
  torch::Tensor images;
  torch::Tensor labels;

  torch::data::Example<> get(size_t index) override {
    return {images[static_cast<int64_t>(index)], labels[static_cast<int64_t>(index)]};
  }
  std::optional<size_t> size() const override { return static_cast<size_t>(labels.numel()); }
};

inline Split read_split(const std::string& folder, bool train) {
  using torch::data::datasets::MNIST;
  const MNIST files(folder, train ? MNIST::Mode::kTrain : MNIST::Mode::kTest);
  Split split;
  split.images = files.images().sub(kMean).div_(kDeviation);
  split.labels = files.targets();
  return split;
}

// The same on every rank: noise that leans towards a pattern of its class.
inline Split random_split(int64_t count) {
  torch::manual_seed(2);
  const torch::Tensor patterns = torch::randn({kClasses, 1, 28, 28});
  Split split;
  split.labels = torch::randint(kClasses, {count}, torch::kLong);
  split.images = torch::randn({count, 1, 28, 28}) + 0.1 * patterns.index({split.labels});
  return split;
}

inline torch::nn::Sequential make_model() {
  torch::manual_seed(1);
  return torch::nn::Sequential(torch::nn::Flatten(), torch::nn::Linear(28 * 28, 256),
                               torch::nn::ReLU(), torch::nn::Linear(256, kClasses));
}
