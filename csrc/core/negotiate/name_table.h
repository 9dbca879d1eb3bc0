#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/wire/op_kind.h"

namespace ciranda {

struct PendingOp;  // readiness.h

// One name of a kind that something unfinished or cached refers to. Cached specs point here, so
// that a known Request finds its pending operation without touching the name's characters.
struct NameEntry {
  OpKind kind = OpKind::kAllreduce;
  const std::string* name = nullptr;
  std::uint32_t references = 0;     // cached specs + pending operations
  std::vector<PendingOp*> pending;  // ascending by occurrence; nearly always one
};

// Interned names, also the empty one. Each kind has its own: operations of different kinds never
// meet, whatever they are called. Entries keep their address and live while references > 0.
class NameTable {
 public:
  NameTable() = default;
  NameTable(const NameTable&) = delete;
  NameTable& operator=(const NameTable&) = delete;

  // The entry, made if it is new. The caller holds a reference: it calls release() in the end.
  NameEntry& acquire(std::string_view name, OpKind kind);
  void add_reference(NameEntry& entry) { ++entry.references; }
  void release(NameEntry& entry);

  std::size_t size() const;

 private:
  using Entries = std::unordered_map<std::string, NameEntry>;

  Entries& of(OpKind kind) { return entries_[static_cast<std::size_t>(kind)]; }

  std::array<Entries, kOpKindCount> entries_;  // by kind
};

}  // namespace ciranda
