// What could break: a checkpoint that comes back otherwise than it was, on other servers than it
// was made by; a damaged file that is used.
#include "core/ps/io/checkpoint_reader.h"

#include <gtest/gtest.h>
#include <sys/fsuid.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "ps/io/service.h"

namespace ciranda::ps {
namespace {

namespace fs = std::filesystem;

using testing::declare;
using testing::model_of;
using testing::push;

using Bytes = std::vector<std::byte>;

class CheckpointReaderTest : public testing::Service {
 protected:
  static Model momentum_model(Mode mode = {}) {
    return model_of({{3, 40'000}, {17}}, mode,
                    {.kind = kernels::RuleKind::kSgd, .lr = 0.1, .momentum = 0.9});
  }
  // All parameters and states, table by table, as the servers held them.
  static std::vector<Bytes> tables_of(Client& client, const Model& model) {
    std::vector<Bytes> tables;
    for (std::size_t table = 0; table < model.tables.size(); ++table) {
      const auto size = static_cast<std::size_t>(client.parameters().layout().elements(table)) * 4;
      const std::byte* from =
          client.parameters().segment().data() + client.parameters().layout().parameters_at(table);
      tables.emplace_back(from, from + size);
      const auto state = client.parameters().fetch_state(table, 0);
      EXPECT_TRUE(state.ok());
      tables.emplace_back(state.value().data(), state.value().data() + size);
    }
    return tables;
  }
  static std::vector<Bytes> tables_of(const CheckpointReader& reader, int servers) {
    std::vector<Bytes> tables;
    for (int server = 0; server < servers; ++server) {
      const auto share = reader.share(server, servers, 1);
      EXPECT_TRUE(share.ok()) << share.error().text;
      const Shard& one = *share.value();
      tables.resize(2 * one.model().tables.size());
      for (std::size_t table = 0; table < one.model().tables.size(); ++table) {
        const auto size = static_cast<std::size_t>(one.layout().elements(table)) * 4;
        tables[2 * table].resize(size);
        tables[2 * table + 1].resize(size);
        one.parameters().copy_parameters(table, tables[2 * table].data());
        one.parameters().copy_state(table, 0, tables[2 * table + 1].data());
      }
    }
    return tables;
  }
  // A job with as many servers, whose last checkpoint is what is returned.
  std::vector<Bytes> train(int servers, const Model& model, int pushes) {
    make_checkpoints(3);
    start_servers(servers, 1);
    auto client = connect(0);
    EXPECT_TRUE(declare(*client, model, 1.0f).ok());
    for (int i = 0; i < pushes; ++i) {
      EXPECT_TRUE(push(*client, model, 0.1f * static_cast<float>(i)).ok());
    }
    auto tables = tables_of(*client, model);
    client.reset();
    await_servers();
    return tables;
  }
};

TEST_F(CheckpointReaderTest, GivesEachServerItsShareOfWhatOthersHeld) {
  const auto held = train(3, momentum_model(), 10);
  const auto reader = CheckpointReader::open(checkpoints());
  ASSERT_TRUE(reader.ok()) << reader.error().text;
  EXPECT_EQ(reader.value().servers(), 3);
  for (const int servers : {1, 2, 3, 5}) EXPECT_EQ(tables_of(reader.value(), servers), held);
  EXPECT_EQ(reader.value().share(0, 1, 1).value()->parameters().steps().front(), 10);
}

TEST_F(CheckpointReaderTest, AJobGoesOnWithItAsWithoutTheBreak) {
  const Model model = momentum_model();
  const auto whole = train(2, model, 20);
  fs::remove_all(checkpoints());
  train(2, model, 12);
  restored_ = checkpoints();
  start_servers(3, 1);
  auto client = connect(0);
  const Model in_rounds = momentum_model({.kind = ModeKind::kSync});  // which makes no difference
  ASSERT_TRUE(declare(*client, in_rounds, 77.0f).ok());
  for (int i = 12; i < 20; ++i) {
    ASSERT_TRUE(push(*client, in_rounds, 0.1f * static_cast<float>(i)).ok());
  }
  EXPECT_EQ(tables_of(*client, model), whole);
}

// Each file, with a byte in its middle changed, its end cut off, or missing.
TEST_F(CheckpointReaderTest, NamesAFileThatIsDamaged) {
  train(2, momentum_model(), 4);
  const std::string folder = CheckpointReader::open(checkpoints()).value().folder();
  const auto refusal = [&]() -> std::string {
    const auto reader = CheckpointReader::open(folder);
    if (!reader) return reader.error().text;
    const auto share = reader.value().share(0, 1, 1);
    return share ? "" : share.error().text;
  };
  ASSERT_EQ(refusal(), "");
  for (const char* name :
       {"manifest", "part-0-of-2", "part-1-of-2", "late-0-of-2", "late-1-of-2"}) {
    const fs::path file = fs::path(folder) / name, copy = fs::path(folder_) / "copy";
    fs::copy_file(file, copy);
    const auto middle = static_cast<std::streamoff>(fs::file_size(file) * 2 / 3);
    std::fstream changed(file, std::ios::in | std::ios::out | std::ios::binary);
    changed.seekg(middle);
    const int byte = changed.get();
    changed.seekp(middle);
    changed.put(static_cast<char>(byte ^ 1));
    changed.close();
    EXPECT_NE(refusal().find(file.string() + " cannot be used: it is damaged, or cut off"),
              std::string::npos)
        << refusal();
    fs::resize_file(file, fs::file_size(file) - 1);
    EXPECT_NE(refusal().find(file.string()), std::string::npos) << name << refusal();
    fs::remove(file);
    EXPECT_NE(refusal().find(std::string(name) == "manifest" ? folder : file.string()),
              std::string::npos)
        << name << refusal();
    fs::rename(copy, file);
    ASSERT_EQ(refusal(), "");
  }
}

// Assembled from those of two jobs: one has a wider table of rows, or one more.
TEST_F(CheckpointReaderTest, NamesAPartOfAnotherModel) {
  const RowTable words{.name = "words", .rows = 10'000, .columns = 2, .deviation = 1.0};
  RowTable wide = words;
  wide.columns = 64;
  RowTable more = words;
  more.name = "more";
  for (const std::vector<RowTable>& other : {std::vector{wide}, {words, more}, {}}) {
    Model model = momentum_model();
    model.row_tables = other;
    train(2, model, 4);
    const fs::path theirs = fs::path(folder_) / "theirs";
    fs::rename(CheckpointReader::open(checkpoints()).value().folder(), theirs);
    fs::remove_all(checkpoints());
    model.row_tables = {words};
    train(2, model, 4);
    const fs::path ours = CheckpointReader::open(checkpoints()).value().folder();
    for (const char* name : {"part-1-of-2", "late-1-of-2"}) {
      fs::copy_file(theirs / name, ours / name, fs::copy_options::overwrite_existing);
    }
    const auto mixed = CheckpointReader::open(ours).value().share(0, 1, 1);
    ASSERT_FALSE(mixed.ok());
    EXPECT_NE(
        mixed.error().text.find(
            "part-1-of-2 cannot be used: it belongs to another job than the part of server 0: "),
        std::string::npos)
        << mixed.error().text;
    fs::remove_all(theirs);
    fs::remove_all(checkpoints());
  }
}

// As a user who may do no more, for root may write everywhere.
TEST_F(CheckpointReaderTest, FilesMayBeReadOnly) {
  const auto held = train(2, momentum_model(), 4);
  fs::permissions(folder_, fs::perms(0555));
  for (const auto& entry : fs::recursive_directory_iterator(folder_)) {
    fs::permissions(entry.path(), fs::perms(entry.is_directory() ? 0555 : 0444));
  }
  const int own = ::setfsuid(65'534);
  const auto reader = CheckpointReader::open(checkpoints());
  EXPECT_TRUE(reader.ok()) << reader.error().text;
  if (reader) {
    EXPECT_EQ(tables_of(reader.value(), 1), held);
  }
  ::setfsuid(static_cast<uid_t>(own));
  for (const auto& entry : fs::recursive_directory_iterator(folder_)) {
    if (entry.is_directory()) fs::permissions(entry.path(), fs::perms(0755));
  }
}

TEST_F(CheckpointReaderTest, AManifestAloneIsNoCheckpoint) {
  train(2, momentum_model(), 4);
  const fs::path whole = CheckpointReader::open(checkpoints()).value().folder();
  const fs::path alone = checkpoint_folder(checkpoints(), 1'000);
  fs::create_directory(alone);
  fs::copy_file(whole / kManifestFile, alone / kManifestFile);
  const auto newest = CheckpointReader::open(checkpoints());
  ASSERT_TRUE(newest.ok()) << newest.error().text;
  EXPECT_EQ(newest.value().folder(), whole);
  const auto named = CheckpointReader::open(alone);
  ASSERT_TRUE(named.ok());
  EXPECT_NE(named.value().share(0, 1, 1).error().text.find("part-0-of-2"), std::string::npos);
}

TEST_F(CheckpointReaderTest, SaysWhereThereIsNone) {
  const auto none = CheckpointReader::open(folder_);
  ASSERT_FALSE(none.ok());
  EXPECT_EQ(none.error().text, "there is no complete checkpoint in " + folder_);
}

}  // namespace
}  // namespace ciranda::ps
