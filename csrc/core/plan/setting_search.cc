#include "core/plan/setting_search.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "core/base/assert.h"

namespace ciranda {
namespace {

constexpr std::size_t kPairs = 3;  // of samples, for each value that is tried
constexpr std::size_t kPairsOfProof = 6;
constexpr double kWorth = 0.98;  // of the old time: a smaller gain is noise or not worth it
constexpr double kHopeless = 1.3;

double median(std::vector<double> numbers) {
  std::ranges::sort(numbers);
  const std::size_t half = numbers.size() / 2;
  return numbers.size() % 2 != 0 ? numbers[half] : (numbers[half - 1] + numbers[half]) / 2;
}

std::string in_ms(double seconds) {
  char text[32];
  std::snprintf(text, sizeof text, seconds < 1 ? "%.3g" : "%.0f", 1e3 * seconds);
  return text;
}

std::string spread(const std::vector<double>& seconds) {
  const auto [low, high] = std::ranges::minmax(seconds);
  return in_ms(median(seconds)) + " ms (" + in_ms(low) + "-" + in_ms(high) + ")";
}

}  // namespace

// Faster by the median and in all pairs of samples; of six pairs or more, one may differ.
bool SettingSearch::Comparison::is_faster() const {
  CIRANDA_ASSERT(!of_new.empty() && of_new.size() == of_old.size());
  std::size_t lost = 0;
  for (std::size_t pair = 0; pair < of_new.size(); ++pair) lost += of_new[pair] >= of_old[pair];
  return median(of_new) < kWorth * median(of_old) && lost <= of_new.size() / kPairsOfProof;
}

bool SettingSearch::Comparison::is_done() const {
  if (of_old.size() != of_new.size() || of_new.empty()) return false;
  return of_new.size() == pairs || (of_new.size() == 1 && of_new[0] > kHopeless * of_old[0]);
}

std::string SettingSearch::Comparison::words() const {
  return spread(of_new) + " beside " + spread(of_old);
}

SettingSearch::SettingSearch(std::vector<Knob> knobs, std::function<void(const std::string&)> say)
    : knobs_(std::move(knobs)),
      say_(std::move(say)),
      first_(knobs_.size(), 0),
      best_(first_),
      tried_(first_),
      next_(first_) {
  for (const Knob& knob : knobs_) CIRANDA_ASSERT(!knob.values.empty());
  go_on();
}

std::size_t SettingSearch::samples_at_most() const {
  std::size_t values = 0;
  for (const Knob& knob : knobs_) values += knob.values.size() - 1;
  return 2 * (kPairs * values + kPairsOfProof);
}

void SettingSearch::took(double seconds) {
  CIRANDA_ASSERT(!found_);
  (next_ == tried_ ? comparison_.of_new : comparison_.of_old).push_back(seconds);
  if (comparison_.is_done()) {
    decide();
  } else {
    choose_next();
  }
}

// Chooses the old or the new settings; each come first in every other pair.
void SettingSearch::choose_next() {
  const auto& [pairs, of_old, of_new] = comparison_;
  const bool new_first = std::min(of_old.size(), of_new.size()) % 2 != 0;
  const bool is_new = of_old.size() == of_new.size() ? new_first : of_new.size() < of_old.size();
  next_ = is_new ? tried_ : proof_ ? first_ : best_;
}

void SettingSearch::compare(Settings other, std::size_t pairs) {
  tried_ = std::move(other);
  comparison_ = {.pairs = pairs};
  choose_next();
}

void SettingSearch::decide() {
  const bool kept = comparison_.is_faster();
  const std::string words = comparison_.words();
  const std::string outcome = kept ? ": kept" : ": not kept";
  if (proof_) {
    const std::string made = changed();
    say_("once more, " + made + " beside what there was: " + words + outcome);
    if (kept) return end(best_, made + ": a step takes " + words + " before");
    return end(first_, "");
  }
  const auto& [name, values] = knobs_[knob_];
  say_(name + "=" + values[tried_[knob_]] + " instead of " + values[best_[knob_]] + ": " + words +
       outcome);
  if (kept) best_ = tried_;
  go_on();
}

// Goes on to the next value of the knob, to the next knob, or to the proof.
void SettingSearch::go_on() {
  for (; knob_ < knobs_.size(); ++knob_) {
    const std::size_t value = tried_[knob_] + 1;
    if (value < knobs_[knob_].values.size()) {
      Settings other = best_;
      other[knob_] = value;
      return compare(std::move(other), kPairs);
    }
  }
  if (best_ == first_) return end(first_, "");
  proof_ = true;
  compare(best_, kPairsOfProof);
}

void SettingSearch::end(Settings settings, std::string conclusion) {
  if (conclusion.empty())
    conclusion = "no setting was faster than the first one, so nothing was changed";
  next_ = settings;
  found_ = {.settings = std::move(settings), .conclusion = std::move(conclusion)};
}

std::string SettingSearch::changed() const {
  std::string list;
  for (std::size_t knob = 0; knob < knobs_.size(); ++knob) {
    if (best_[knob] == 0) continue;
    list += (list.empty() ? "" : ", ") + knobs_[knob].name + "=" + knobs_[knob].values[best_[knob]];
  }
  return list;
}

}  // namespace ciranda
