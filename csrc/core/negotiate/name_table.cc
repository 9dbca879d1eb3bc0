#include "core/negotiate/name_table.h"

#include "core/base/assert.h"

namespace ciranda {

NameEntry& NameTable::acquire(std::string_view name, OpKind kind,
                              const std::shared_ptr<const Group>& group) {
  const auto [found, is_new] = of(kind).try_emplace({group->id, std::string(name)});
  NameEntry& entry = found->second;
  if (is_new) {
    entry.kind = kind;
    entry.key = &found->first;
    entry.group = group;
  }
  CIRANDA_ASSERT(entry.group == group);  // numbers of groups are never used twice
  ++entry.references;
  return entry;
}

void NameTable::release(NameEntry& entry) {
  CIRANDA_ASSERT(entry.references > 0);
  if (--entry.references > 0) return;
  CIRANDA_ASSERT(entry.pending.empty());
  Entries& entries = of(entry.kind);
  entries.erase(entries.find(*entry.key));
}

std::size_t NameTable::size() const {
  std::size_t count = 0;
  for (const Entries& entries : entries_) count += entries.size();
  return count;
}

}  // namespace ciranda
