#include "core/backend/registry.h"

#include "core/backend/gloo/gloo.h"
#include "core/backend/nccl/nccl.h"

namespace ciranda {

const std::vector<BackendEntry>& backend_entries() {
  static const std::vector<BackendEntry> kEntries = {
      {BackendId::kGloo, make_gloo, gloo_facts},
      {BackendId::kNccl, make_nccl, nccl_facts},
  };
  return kEntries;
}

std::vector<BackendFacts> backend_facts() {
  std::vector<BackendFacts> facts = {{.id = BackendId::kNative, .available = true}};
  for (const BackendEntry& entry : backend_entries()) facts.push_back(entry.facts());
  return facts;
}

}  // namespace ciranda
