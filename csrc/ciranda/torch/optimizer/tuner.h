#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "ciranda/torch/collective/collective.h"
#include "ciranda/torch/step/optimizer_options.h"
#include "core/plan/setting_search.h"
#include "core/settings/config.h"

namespace ciranda {

// Implements CIRANDA_AUTOTUNE: tries settings between the steps of one optimizer, and keeps the
// faster ones. All ranks make the same steps with the same settings, and agree on the time of each
// sample. No setting changes what is computed, except a wire dtype, which CIRANDA_WIRE_DTYPE=auto
// allows. Not thread-safe.
class Tuner {
 public:
  using Clock = std::function<double()>;  // seconds
  // What the tuner has to know about the optimizer.
  struct Subject {
    std::string class_name;
    std::size_t parameters = 0;
    std::int64_t gradient_bytes = 0;
    std::optional<c10::Device> gpu = {};  // of the parameters
    bool shares_step = false;
  };

  // Collective. Throws kInvalidArgument on the rank that cannot write the log.
  Tuner(std::shared_ptr<const Communicator> world, const AutotuneConfig& config,
        std::uint8_t streams, OptimizerOptions options, const Subject& subject, Clock clock);

  // Counts a step; every rank calls it at the end of each. Returns the options that shall hold from
  // the next step on, if they change. `objects`: this rank objects to the next shared step.
  // Collective and blocking at the end of a sample.
  std::optional<OptimizerOptions> stepped(bool objects);
  bool ended() const { return ended_; }
  // Returns true if the settings that were found, and hold now, are without a shared step.
  bool chose_own_steps() const;

 private:
  // The knobs. A knob that has no second value is left out of the search.
  enum KnobId : std::uint8_t { kSharedStep, kBucketBytes, kWireDtype, kStreams, kOverlap, kSpin };
  struct Values {
    KnobId id;
    std::vector<std::optional<std::int64_t>> numbers;  // none: as the optimizer was made
  };

  std::vector<SettingSearch::Knob> make_knobs(const AutotuneConfig& config, std::uint8_t streams,
                                              const Subject& subject);
  void add_knob(std::vector<SettingSearch::Knob>& knobs, KnobId id, std::string name,
                std::vector<std::optional<std::int64_t>> numbers, std::vector<std::string> words);
  OptimizerOptions apply(const SettingSearch::Settings& settings);
  OptimizerOptions end(const SettingSearch::Settings& settings, const std::string& conclusion);
  void write_log(const std::string& line) const;

  const std::shared_ptr<const Communicator> world_;
  const OptimizerOptions first_;  // as the optimizer was made
  const Clock clock_;
  const std::uint64_t joins_;
  const Pace own_pace_;
  const std::optional<c10::Device> gpu_;
  const std::string log_;  // a path; empty on the other ranks
  const int steps_per_sample_;
  std::vector<Values> values_;  // by knob of the search
  SettingSearch search_;
  SettingSearch::Settings holds_;
  std::optional<double> began_;  // of the sample; none while the settings settle
  int left_ = 0;                 // steps to the end of the sample, or of settling
  bool waits_for_join_ = false;
  bool ended_ = false;
};

}  // namespace ciranda
