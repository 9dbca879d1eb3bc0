// What a build without Gloo and NCCL says: this executable compiles no_gloo.cc and no_nccl.cc
// itself, so that core's own of that name, or the backends, are not linked.
#include <gtest/gtest.h>

#include <algorithm>

#include "core/job/world.h"

namespace ciranda {
namespace {

BackendFacts facts_of(BackendId id) {
  const auto all = backend_facts();
  return *std::find_if(all.begin(), all.end(), [id](const auto& facts) { return facts.id == id; });
}

TEST(StandIns, SayWhatToInstall) {
  for (const auto& [id, package] :
       {std::pair(BackendId::kGloo, "libgloo-dev"), std::pair(BackendId::kNccl, "nvidia-nccl")}) {
    const BackendFacts facts = facts_of(id);
    EXPECT_FALSE(facts.built || facts.available);
    EXPECT_NE(facts.why_not.find(package), std::string::npos) << facts.why_not;
    const Status available = Backends::available(id);
    ASSERT_FALSE(available.ok());
    EXPECT_EQ(available.error().code, ErrorCode::kUnsupported);
    EXPECT_EQ(available.error().text, facts.why_not);
  }
}

TEST(StandIns, AWorldThatAsksForGlooDoesNotStart) {
  Config config;
  config.engine.backend_choice.cpu = BackendId::kGloo;
  Handover handover;
  const auto world = World::start(std::move(config), handover);
  ASSERT_FALSE(world.ok());
  EXPECT_EQ(world.error().code, ErrorCode::kUnsupported);
  EXPECT_EQ(world.error().text,
            "CIRANDA_CPU_OPERATIONS (or Horovod's name for it) asks for gloo, and " +
                facts_of(BackendId::kGloo).why_not);
}

}  // namespace
}  // namespace ciranda
