#include "ciranda/torch/gradient/digest.h"

#include <ATen/core/grad_mode.h>

#include <array>
#include <bit>
#include <cstring>

#include "ciranda/torch/tensor/tensor_view.h"

namespace ciranda {

std::uint64_t mixed(std::uint64_t digest, std::uint64_t word) {
  constexpr std::uint64_t kOdd = 0x9E3779B97F4A7C15U;
  return std::rotl((digest ^ word) * kOdd, 31);
}

// Uses as many lanes as hide the latency of a multiplication.
std::uint64_t digest_of(std::span<const std::byte> bytes) {
  std::array<std::uint64_t, 4> lanes = {1, 2, 3, 4};
  std::array<std::uint64_t, 4> words = {};
  const auto mix = [&] {
    for (std::size_t i = 0; i < lanes.size(); ++i) lanes[i] = mixed(lanes[i], words[i]);
  };
  for (; bytes.size() >= sizeof(words); bytes = bytes.subspan(sizeof(words))) {
    std::memcpy(words.data(), bytes.data(), sizeof(words));
    mix();
  }
  words = {};
  if (!bytes.empty()) std::memcpy(words.data(), bytes.data(), bytes.size());
  mix();
  return mixed(mixed(lanes[0], lanes[1]), mixed(lanes[2], lanes[3]));
}

std::uint64_t digest_of_values(const at::Tensor& tensor) {
  if (tensor.layout() != c10::Layout::Strided || tensor.numel() == 0) return 0;
  const at::NoGradGuard no_grad;
  const at::Tensor values = resolved(tensor.detach()).cpu().contiguous();
  return digest_of({static_cast<const std::byte*>(values.const_data_ptr()), values.nbytes()});
}

}  // namespace ciranda
