#include "ciranda/torch/elastic/recovery.h"

#include <ATen/ops/empty.h>

#include <cstring>
#include <vector>

#include "ciranda/torch/collective/collectives.h"
#include "ciranda/torch/tensor/error.h"
#include "core/base/assert.h"

namespace ciranda {
namespace {

struct Wire {
  std::uint64_t holds_state;
  std::uint64_t moment;
};

}  // namespace

member::RecoveryPlan agree_on_recovery(const Communicator& among, const member::Standing& own) {
  const Wire mine{.holds_state = own.holds_state ? 1U : 0U, .moment = own.moment};
  const at::Tensor bytes = at::empty({sizeof mine}, at::TensorOptions().dtype(at::kByte));
  std::memcpy(bytes.data_ptr(), &mine, sizeof mine);
  std::vector<member::Standing> all;
  for (const at::Tensor& each : allgather_bytes(among, bytes, "elastic/recovery")) {
    CIRANDA_ASSERT(each.numel() == static_cast<std::int64_t>(sizeof(Wire)));
    Wire wire{};
    std::memcpy(&wire, each.data_ptr(), sizeof wire);
    all.push_back({.holds_state = wire.holds_state != 0, .moment = wire.moment});
  }
  return member::plan_recovery(all);
}

}  // namespace ciranda
