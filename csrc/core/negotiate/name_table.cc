#include "core/negotiate/name_table.h"

#include "core/base/assert.h"

namespace ciranda {

NameEntry& NameTable::acquire(std::string_view name, OpKind kind) {
  if (name.empty()) {
    NameEntry& entry = unnamed_[static_cast<std::size_t>(kind)];
    ++entry.references;
    return entry;
  }
  const auto [found, is_new] = entries_.try_emplace(std::string(name));
  NameEntry& entry = found->second;
  if (is_new) entry.name = &found->first;
  ++entry.references;
  return entry;
}

void NameTable::release(NameEntry& entry) {
  CIRANDA_ASSERT(entry.references > 0);
  if (--entry.references > 0) return;
  CIRANDA_ASSERT(entry.pending.empty() && entry.failed.empty());
  if (entry.name != nullptr) entries_.erase(entries_.find(*entry.name));
}

}  // namespace ciranda
