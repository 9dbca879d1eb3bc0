// The real library: what the machine has of it. No GPU is needed to load it.
#include "core/backend/nccl/nccl_api.h"

#include <gtest/gtest.h>

#include "core/backend/nccl/nccl.h"
#include "required.h"

namespace ciranda {
namespace {

TEST(NcclLibrary, TellsItsVersionAndItsPlace) {
  const auto library = load_nccl();
  if (!library) CIRANDA_SKIP(library.error().text);
  EXPECT_EQ(nccl_version_text(library.value().api->version()), library.value().version);
  EXPECT_GE(library.value().api->version(), NCCL_VERSION(2, 14, 0));
  EXPECT_EQ(library.value().path.front(), '/');
  EXPECT_STRNE(library.value().api->error_string(ncclInvalidUsage), "");
}

TEST(NcclLibrary, SaysWhatToDoWhereThereIsNone) {
  const auto library = load_nccl("libnccl-of-nobody.so.2");
  ASSERT_FALSE(library.ok());
  EXPECT_EQ(library.error().code, ErrorCode::kUnsupported);
  EXPECT_NE(library.error().text.find("NCCL was not found (libnccl-of-nobody.so.2"),
            std::string::npos)
      << library.error().text;
  EXPECT_NE(library.error().text.find("pip install nvidia-nccl-cu13"), std::string::npos);
}

TEST(NcclLibrary, IsNotTakenForAnotherOne) {
  const auto library = load_nccl("libm.so.6");
  ASSERT_FALSE(library.ok());
  EXPECT_EQ(library.error().text, "libm.so.6 is not an NCCL library: it does not tell its version");
}

TEST(NcclLibrary, IsRefusedWhereItIsTooOld) {
  const auto library = load_nccl(CIRANDA_FAKE_NCCL_21212);
  ASSERT_FALSE(library.ok());
  EXPECT_EQ(library.error().text.find("NCCL 2.12.12 in /"), 0u) << library.error().text;
  EXPECT_NE(library.error().text.find(" is too old: "), std::string::npos) << library.error().text;
}

TEST(NcclLibrary, IsRefusedWhereItLacksAFunction) {
  const auto library = load_nccl(CIRANDA_FAKE_NCCL_23007);
  ASSERT_FALSE(library.ok());
  EXPECT_EQ(library.error().text.find("NCCL 2.30.7 in /"), 0u) << library.error().text;
  EXPECT_NE(library.error().text.find(" lacks nccl"), std::string::npos) << library.error().text;
}

TEST(NcclVersion, OlderThanTwoFourteenIsTooOld) {
  EXPECT_TRUE(check_nccl_version(NCCL_VERSION(2, 14, 0), "/lib/libnccl.so.2").ok());
  EXPECT_EQ(check_nccl_version(NCCL_VERSION(2, 12, 12), "/lib/libnccl.so.2").error().text,
            "NCCL 2.12.12 in /lib/libnccl.so.2 is too old: non-blocking communicators need NCCL "
            "2.14.0; upgrade it, for example by `pip install --upgrade nvidia-nccl-cu13`");
}

TEST(NcclVersion, IsWrittenAsPeopleDo) {
  EXPECT_EQ(nccl_version_text(NCCL_VERSION(2, 30, 7)), "2.30.7");
  EXPECT_EQ(nccl_version_text(NCCL_VERSION(2, 9, 10)), "2.9.10");
  EXPECT_EQ(nccl_version_text(NCCL_VERSION(2, 8, 4)), "2.8.4");
}

TEST(NcclFacts, SayWhatIsMissing) {
  const BackendFacts facts = nccl_facts();
  EXPECT_EQ(facts.id, BackendId::kNccl);
  EXPECT_EQ(facts.available, facts.why_not.empty());
  if (facts.available) GTEST_SKIP() << "this machine has all that NCCL needs";
  if (load_nccl().ok()) {
    EXPECT_NE(facts.version, "");
    EXPECT_EQ(facts.why_not.find("NCCL needs a GPU, and "), 0u) << facts.why_not;
  } else {
    EXPECT_EQ(facts.why_not, load_nccl().error().text);
  }
}

}  // namespace
}  // namespace ciranda
