#pragma once

#include <cstddef>
#include <list>
#include <memory>
#include <unordered_map>

#include "core/negotiate/name_table.h"
#include "core/wire/messages.h"

namespace ciranda {

// The RequestSpecs that have a number. Every rank holds the same cache, because only the agreed
// order of frames changes it. A spec enters when its operation runs and is renewed whenever a
// Request of it is handled. A full cache evicts the spec that was renewed longest ago. Numbers rise
// and are never reused, so a number that was in flight while its spec was evicted cannot mean
// another spec.
class ResponseCache {
 public:
  struct Entry {
    CacheId id = kNoCacheId;
    std::shared_ptr<const RequestSpec> spec;
    NameEntry* name = nullptr;
  };

  // The cache holds at most `capacity` entries; 0: nothing is ever cached.
  ResponseCache(std::size_t capacity, NameTable& names);
  ~ResponseCache();
  ResponseCache(const ResponseCache&) = delete;
  ResponseCache& operator=(const ResponseCache&) = delete;

  // These only look up, so they may be called outside of the agreed order.
  CacheId find(const RequestSpec& spec) const;  // kNoCacheId if it is not cached
  const Entry* find(CacheId id) const;          // nullptr if it is not cached
  bool handed_out(CacheId id) const {
    return id != kNoCacheId && (next_id_ == kNoCacheId || id < next_id_);
  }
  std::size_t size() const { return by_id_.size(); }

  // Renews and returns the entry; nullptr if it is not cached. The pointer is valid until the next
  // insert() or evict_group().
  const Entry* use(CacheId id);
  const Entry* use(const RequestSpec& spec);

  // Renews the entry of `spec`, or makes one and evicts the oldest if there is no room. Returns the
  // spec's number; kNoCacheId if the capacity is 0 or the numbers are used up.
  CacheId insert(const std::shared_ptr<const RequestSpec>& spec, NameEntry& name);
  // Evicts the specs of a group that is removed.
  void evict_group(GroupId group);

 private:
  using Order = std::list<Entry>;  // most recently renewed first
  struct Hash {
    std::size_t operator()(const RequestSpec* spec) const;
  };
  struct Equal {
    bool operator()(const RequestSpec* a, const RequestSpec* b) const { return a == b || *a == *b; }
  };

  const Entry* renew(Order::iterator entry);
  Order::iterator evict(Order::iterator entry);

  const std::size_t capacity_;
  NameTable& names_;
  CacheId next_id_ = kNoCacheId + 1;  // kNoCacheId: no number is left
  Order order_;
  std::unordered_map<CacheId, Order::iterator> by_id_;
  std::unordered_map<const RequestSpec*, Order::iterator, Hash, Equal> by_spec_;
};

}  // namespace ciranda
