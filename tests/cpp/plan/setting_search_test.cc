// What a search keeps, given how long a step takes with each setting.
#include "core/plan/setting_search.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <random>

namespace ciranda {
namespace {

using Settings = SettingSearch::Settings;

struct Course {
  SettingSearch::Found found;
  std::vector<Settings> taken = {};
  std::vector<std::string> lines = {};

  std::size_t samples_of(const Settings& settings) const {
    return static_cast<std::size_t>(std::ranges::count(taken, settings));
  }
};

// `seconds`: of a step with these settings, in the sample of that number, from 1 on.
Course run(const std::function<double(const Settings&, std::size_t)>& seconds) {
  Course course;
  SettingSearch search({{.name = "bucket", .values = {"4", "1", "16"}},
                        {.name = "overlap", .values = {"off", "on"}}},
                       [&](const std::string& line) { course.lines.push_back(line); });
  while (!search.found()) {
    course.taken.push_back(search.settings());
    search.took(seconds(search.settings(), course.taken.size()));
    EXPECT_LE(course.taken.size(), search.samples_at_most());
  }
  EXPECT_EQ(search.settings(), search.found()->settings);
  course.found = *search.found();
  return course;
}

const std::string kNothing = "no setting was faster than the first one, so nothing was changed";

TEST(SettingSearch, GoesOnFromTheBestSoFar) {
  const double cost[] = {2.0, 3.0, 1.0};
  const Course course = run([&](const Settings& settings, std::size_t) {
    return cost[settings[0]] - 0.5 * static_cast<double>(settings[1]);
  });
  EXPECT_EQ(course.found.settings, (Settings{2, 1}));
  EXPECT_EQ(course.found.conclusion,
            "bucket=16, overlap=on: a step takes 500 ms (500-500) beside 2000 ms (2000-2000) "
            "before");
  EXPECT_EQ(course.taken.front(), (Settings{0, 0}));
  EXPECT_EQ(course.samples_of({0, 1}), 0U);  // "on" is tried beside the best alone
  EXPECT_EQ(
      course.lines,
      (std::vector<std::string>{
          "bucket=1 instead of 4: 3000 ms (3000-3000) beside 2000 ms (2000-2000): not kept",
          "bucket=16 instead of 4: 1000 ms (1000-1000) beside 2000 ms (2000-2000): kept",
          "overlap=on instead of off: 500 ms (500-500) beside 1000 ms (1000-1000): kept",
          "once more, bucket=16, overlap=on beside what there was: 500 ms (500-500) beside 2000 "
          "ms (2000-2000): kept"}));
}

TEST(SettingSearch, LeavesWhatIsAsFast) {
  const Course course =
      run([](const Settings& settings, std::size_t) { return settings[1] == 1 ? 0.99 : 1.0; });
  EXPECT_EQ(course.found.settings, (Settings{0, 0}));
  EXPECT_EQ(course.found.conclusion, kNothing);
  EXPECT_EQ(course.taken.size(), 2U * 3 * 3);
}

TEST(SettingSearch, TriesWhatIsHopelessOnce) {
  const Course course =
      run([](const Settings& settings, std::size_t) { return settings[0] == 1 ? 2.0 : 1.0; });
  EXPECT_EQ(course.samples_of({1, 0}), 1U);
}

// A machine that was slow while the first settings were sampled.
TEST(SettingSearch, KeepsNothingThatWasFasterOnlyAtFirst) {
  const std::size_t proof_begins = 2 * 3 * 3;
  const Course course = run([&](const Settings& settings, std::size_t number) {
    return settings[0] == 2 && number <= proof_begins ? 0.5 : 1.0;
  });
  EXPECT_EQ(course.found.settings, (Settings{0, 0}));
  EXPECT_EQ(course.found.conclusion, kNothing);
  EXPECT_EQ(course.taken.size(), proof_begins + 12);
  EXPECT_TRUE(course.lines.back().starts_with("once more, bucket=16 beside what there was: "));
  EXPECT_TRUE(course.lines.back().ends_with(": not kept"));
}

TEST(SettingSearch, FavorsNothingOnAMachineThatDrifts) {
  for (const double drift : {0.9, 1.1}) {
    const Course course = run([&](const Settings&, std::size_t number) {
      return std::pow(drift, static_cast<double>(number) / 10);
    });
    EXPECT_EQ(course.found.settings, (Settings{0, 0})) << drift;
  }
}

TEST(SettingSearch, HardlyEverTakesNoiseForSpeed) {
  int mistaken = 0;
  for (unsigned seed = 0; seed < 200; ++seed) {
    std::mt19937 source(seed);
    std::normal_distribution<double> noise(1.0, 0.05);
    const Course course = run([&](const Settings&, std::size_t) { return noise(source); });
    mistaken += course.found.conclusion != kNothing;
  }
  EXPECT_LE(mistaken, 10);
}

TEST(SettingSearch, EndsAtOnceWithoutKnobs) {
  const SettingSearch search({}, [](const std::string&) { FAIL(); });
  ASSERT_TRUE(search.found());
  EXPECT_EQ(search.found()->conclusion, kNothing);
}

}  // namespace
}  // namespace ciranda
