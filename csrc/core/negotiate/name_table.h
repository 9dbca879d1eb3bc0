#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/negotiate/group.h"
#include "core/wire/op_kind.h"

namespace ciranda {

struct PendingOp;  // readiness.h

struct NameKey {
  GroupId group = kWorldGroup;
  std::string name;
  bool operator==(const NameKey&) const = default;
};

// One name of a group and kind, while a pending operation or a cached spec refers to it. Cached
// specs point to their NameEntry, so a known Request finds its pending operation and its group
// without a look at the name's characters.
struct NameEntry {
  OpKind kind = OpKind::kAllreduce;
  const NameKey* key = nullptr;
  std::shared_ptr<const Group> group;
  std::uint32_t references = 0;     // cached specs + pending operations
  std::vector<PendingOp*> pending;  // ascending by occurrence; nearly always at most one
};

// Interned names, with the empty one. Each kind has its own names in each group, so operations of
// different groups or kinds never match, whatever their names. An entry keeps its address and lives
// while references > 0.
class NameTable {
 public:
  NameTable() = default;
  NameTable(const NameTable&) = delete;
  NameTable& operator=(const NameTable&) = delete;

  // Returns the entry, created if it is new, and adds a reference. The caller gives the reference
  // back with release().
  NameEntry& acquire(std::string_view name, OpKind kind, const std::shared_ptr<const Group>& group);
  void add_reference(NameEntry& entry) { ++entry.references; }
  void release(NameEntry& entry);

  std::size_t size() const;

 private:
  struct Hash {
    std::size_t operator()(const NameKey& key) const {
      return std::hash<std::string>{}(key.name) ^ key.group * std::size_t{0x9e3779b97f4a7c15};
    }
  };
  using Entries = std::unordered_map<NameKey, NameEntry, Hash>;

  Entries& of(OpKind kind) { return entries_[static_cast<std::size_t>(kind)]; }

  std::array<Entries, kOpKindCount> entries_;  // by kind
};

}  // namespace ciranda
