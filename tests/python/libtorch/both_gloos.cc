// One process with two Gloos: LibTorch's own under c10d, and ciranda's. Breaks when they mix up
// their symbols. test_libtorch.py starts it on 2 ranks, with a file for c10d to meet at.
#include <ciranda/torch.h>

#include <cstdio>
#include <exception>
#include <stdexcept>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <vector>

namespace both_gloos {

void reduce_by_both(const char* meeting_point) {
  using c10d::ProcessGroupGloo;
  ciranda::init();
  auto options = ProcessGroupGloo::Options::create();
  options->devices.push_back(ProcessGroupGloo::createDeviceForHostname("127.0.0.1"));
  const auto torchs = c10::make_intrusive<ProcessGroupGloo>(
      c10::make_intrusive<c10d::FileStore>(meeting_point, ciranda::size()), ciranda::rank(),
      ciranda::size(), options);
  for (int turn = 0; turn < 3; ++turn) {
    const torch::Tensor by_ours = torch::full({300'000}, ciranda::rank() + 1.0F);
    std::vector<torch::Tensor> by_torchs = {by_ours.clone()};
    ciranda::allreduce_(by_ours, ciranda::Op::kSum);
    torchs->allreduce(by_torchs)->wait();
    for (const torch::Tensor& sum : {by_ours, by_torchs[0]}) {
      if (!sum.eq(3).all().item<bool>()) throw std::runtime_error("a sum is wrong");
    }
  }
}

int run(int, char** arguments) {
  try {
    reduce_by_both(arguments[1]);
    std::printf("both reduced\n");
  } catch (const std::exception& error) {
    std::printf("failed: %s\n", error.what());
    return 1;
  }
  return 0;
}

}  // namespace both_gloos
