#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <initializer_list>
#include <type_traits>
#include <utility>
#include <vector>

namespace ciranda {

// A vector that stores up to `kInline` elements without an allocation, and more in one std::vector.
// The elements are plain values, so moving the vector copies bytes.
template <typename T, std::size_t kInline>
class InlineVector {
  static_assert(std::is_trivially_copyable_v<T> && std::is_default_constructible_v<T>);

 public:
  InlineVector() = default;
  InlineVector(const InlineVector&) = default;
  InlineVector& operator=(const InlineVector&) = default;
  InlineVector(InlineVector&& other) noexcept
      : size_(std::exchange(other.size_, 0)), few_(other.few_), many_(std::move(other.many_)) {}
  InlineVector& operator=(InlineVector&& other) noexcept {
    size_ = std::exchange(other.size_, 0);
    few_ = other.few_;
    many_ = std::move(other.many_);
    return *this;
  }
  ~InlineVector() = default;
  InlineVector(std::initializer_list<T> values) { assign(values.begin(), values.end()); }
  InlineVector(std::vector<T> values) { assign(values.begin(), values.end()); }  // NOLINT: same

  void push_back(const T& value) {
    if (size_ < kInline) {
      few_[size_++] = value;
      return;
    }
    if (size_ == kInline) many_.assign(few_.begin(), few_.end());
    many_.push_back(value);
    ++size_;
  }
  void erase(T* at) {
    std::move(at + 1, end(), at);
    if (size_ > kInline) many_.pop_back();
    if (size_ == kInline + 1) std::copy_n(many_.begin(), kInline, few_.begin());
    --size_;
  }
  void assign(const T* from, std::size_t count) {
    resize(count);
    std::copy_n(from, count, data());
  }
  // The values of the elements are unspecified afterwards.
  void resize(std::size_t count) {
    size_ = count;
    if (count > kInline) many_.resize(count);
  }
  void clear() {
    size_ = 0;
    many_.clear();
  }

  std::size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  T* data() { return size_ <= kInline ? few_.data() : many_.data(); }
  const T* data() const { return size_ <= kInline ? few_.data() : many_.data(); }
  T* begin() { return data(); }
  T* end() { return data() + size_; }
  const T* begin() const { return data(); }
  const T* end() const { return data() + size_; }
  T& operator[](std::size_t index) { return data()[index]; }
  const T& operator[](std::size_t index) const { return data()[index]; }
  T& front() { return *data(); }
  const T& front() const { return *data(); }
  T& back() { return data()[size_ - 1]; }
  const T& back() const { return data()[size_ - 1]; }

  bool operator==(const InlineVector& other) const {
    return std::equal(begin(), end(), other.begin(), other.end());
  }

 private:
  template <typename Iterator>
  void assign(Iterator from, Iterator to) {
    for (; from != to; ++from) push_back(*from);
  }

  std::size_t size_ = 0;
  std::array<T, kInline> few_{};
  std::vector<T> many_;
};

}  // namespace ciranda
