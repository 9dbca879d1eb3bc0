#include "core/negotiate/response_cache.h"

#include <functional>
#include <iterator>
#include <string_view>

#include "core/base/assert.h"

namespace ciranda {
namespace {

std::uint64_t mix(std::uint64_t hash, std::uint64_t value) {
  hash = (hash ^ value) * 0x9e3779b97f4a7c15ull;
  return hash ^ (hash >> 32);
}

}  // namespace

// The hash leaves out attributes that are equal in nearly all specs, such as the streams. The scale
// factors are also left out because 0.0 == -0.0.
std::size_t ResponseCache::Hash::operator()(const RequestSpec* spec) const {
  std::uint64_t hash = std::hash<std::string_view>{}(spec->name);
  if (!spec->rule.empty()) hash = mix(hash, std::hash<std::string_view>{}(spec->rule));
  hash = mix(hash, static_cast<std::uint64_t>(spec->backend) << 24 |
                       static_cast<std::uint64_t>(spec->kind) << 16 |
                       static_cast<std::uint64_t>(spec->op) << 8 | (spec->in_arena ? 1u : 0u));
  hash = mix(
      hash, static_cast<std::uint64_t>(spec->group) << 32 | static_cast<std::uint32_t>(spec->root));
  for (const TensorSpec& tensor : spec->tensors) {
    hash = mix(hash, static_cast<std::uint64_t>(tensor.user_dtype) << 16 |
                         static_cast<std::uint64_t>(tensor.dtype) << 8 | tensor.shape.size());
    for (const std::int64_t dim : tensor.shape) hash = mix(hash, static_cast<std::uint64_t>(dim));
  }
  return hash;
}

ResponseCache::ResponseCache(std::size_t capacity, NameTable& names)
    : capacity_(capacity), names_(names) {}

ResponseCache::~ResponseCache() {
  while (!order_.empty()) evict(order_.begin());
}

CacheId ResponseCache::find(const RequestSpec& spec) const {
  const auto found = by_spec_.find(&spec);
  return found == by_spec_.end() ? kNoCacheId : found->second->id;
}

const ResponseCache::Entry* ResponseCache::find(CacheId id) const {
  const auto found = by_id_.find(id);
  return found == by_id_.end() ? nullptr : &*found->second;
}

const ResponseCache::Entry* ResponseCache::use(CacheId id) {
  const auto found = by_id_.find(id);
  return found == by_id_.end() ? nullptr : renew(found->second);
}

const ResponseCache::Entry* ResponseCache::use(const RequestSpec& spec) {
  const auto found = by_spec_.find(&spec);
  return found == by_spec_.end() ? nullptr : renew(found->second);
}

CacheId ResponseCache::insert(const std::shared_ptr<const RequestSpec>& spec, NameEntry& name) {
  if (capacity_ == 0) return kNoCacheId;
  if (const Entry* known = use(*spec)) return known->id;
  if (next_id_ == kNoCacheId) return kNoCacheId;  // 2^32 - 1 numbers were handed out
  if (order_.size() == capacity_) evict(std::prev(order_.end()));
  names_.add_reference(name);
  order_.push_front({.id = next_id_++, .spec = spec, .name = &name});
  by_id_.emplace(order_.front().id, order_.begin());
  by_spec_.emplace(order_.front().spec.get(), order_.begin());
  CIRANDA_ASSERT(order_.size() <= capacity_ && by_id_.size() == order_.size());  // I8
  CIRANDA_ASSERT(by_spec_.size() == order_.size());
  return order_.front().id;
}

const ResponseCache::Entry* ResponseCache::renew(Order::iterator entry) {
  order_.splice(order_.begin(), order_, entry);
  return &*entry;
}

void ResponseCache::evict_group(GroupId group) {
  for (auto entry = order_.begin(); entry != order_.end();)
    entry = entry->spec->group == group ? evict(entry) : std::next(entry);
}

ResponseCache::Order::iterator ResponseCache::evict(Order::iterator entry) {
  by_id_.erase(entry->id);
  by_spec_.erase(entry->spec.get());
  names_.release(*entry->name);
  return order_.erase(entry);
}

}  // namespace ciranda
