#include "core/backend/registry.h"

#include "core/base/assert.h"

namespace ciranda {

std::vector<BackendFacts> backend_facts() {
  std::vector<BackendFacts> facts = {{.id = BackendId::kNative, .available = true}};
  for (const BackendEntry& entry : backend_entries()) {
    facts.push_back(entry.facts());
    CIRANDA_ASSERT(facts.back().id == entry.id);
  }
  return facts;
}

}  // namespace ciranda
