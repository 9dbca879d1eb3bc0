#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace ciranda {

// Decides which settings make a step faster, from the times of samples and without a clock.
//
// Tries one knob after another: samples each of its values beside the best settings so far, in
// turns, so that a machine that gets slower favors neither. In the end samples the result beside
// the first settings, and drops it unless it is faster.
class SettingSearch {
 public:
  // A setting and its values in words. The first value is the current one.
  struct Knob {
    std::string name;
    std::vector<std::string> values;
  };
  using Settings = std::vector<std::size_t>;  // by knob: the number of its value
  struct Found {
    Settings settings;
    // "knob=value, ...: a step takes X beside Y before", or that nothing was faster.
    std::string conclusion;
  };

  // `say` receives a line for each decision.
  SettingSearch(std::vector<Knob> knobs, std::function<void(const std::string&)> say);

  // Returns the settings of the next sample; those found after the search has ended.
  const Settings& settings() const { return next_; }
  // Takes the seconds that a step took in a sample with settings(). Must not be called after the
  // end.
  void took(double seconds);
  // Returns the best settings, once the search has ended; before, none.
  const std::optional<Found>& found() const { return found_; }
  // Returns the largest number of samples that the search takes.
  std::size_t samples_at_most() const;

 private:
  struct Comparison {  // of samples of old and new settings; seconds a step
    std::size_t pairs = 0;
    std::vector<double> of_old = {};
    std::vector<double> of_new = {};

    bool is_faster() const;
    bool is_done() const;
    std::string words() const;
  };

  void go_on();
  void compare(Settings other, std::size_t pairs);
  void choose_next();
  void decide();
  void end(Settings settings, std::string conclusion);
  std::string changed() const;

  const std::vector<Knob> knobs_;
  const std::function<void(const std::string&)> say_;
  const Settings first_;  // zeros
  Settings best_;
  Settings tried_;  // beside `best_`; in the proof, `best_` beside `first_`
  Settings next_;
  std::size_t knob_ = 0;  // of tried_
  bool proof_ = false;
  Comparison comparison_;
  std::optional<Found> found_;
};

}  // namespace ciranda
