// What could break: a record that a crash has torn, or a disk has changed, that is taken for one.
#include "core/ps/io/record_file.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

namespace ciranda::ps {
namespace {

using Bytes = std::vector<std::byte>;

Bytes bytes_of(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

class RecordFile : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string folder = ::testing::TempDir() + "ciranda-records-XXXXXX";
    ASSERT_NE(::mkdtemp(folder.data()), nullptr);
    folder_ = folder;
    path_ = folder + "/records";
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  // Three records; gives where each ends.
  std::vector<std::uint64_t> write() {
    auto writer = RecordWriter::create(path_);
    EXPECT_TRUE(writer.ok());
    std::vector<std::uint64_t> ends;
    for (const char* note : {"one", "", "three"}) {
      const Bytes left = bytes_of("left of "), right = bytes_of(note);
      EXPECT_TRUE(writer.value().append(right, {left, {}, right}).ok());
      ends.push_back(writer.value().bytes());
    }
    EXPECT_TRUE(writer.value().sync().ok());
    EXPECT_EQ(std::filesystem::file_size(path_), ends.back());
    return ends;
  }
  // How many whole records there are, and whether nothing comes after.
  std::pair<std::size_t, bool> read() const {
    auto reader = RecordReader::open(path_);
    if (!reader) return {0, false};
    for (std::size_t count = 0;; ++count) {
      auto record = reader.value().next();
      EXPECT_TRUE(record.ok());
      if (!record.value()) return {count, reader.value().at() == reader.value().size()};
    }
  }
  std::string content() const {
    std::ifstream in(path_, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  void set_content(const std::string& content) const {
    std::ofstream(path_, std::ios::binary) << content;
  }

  std::string folder_;
  std::string path_;
};

TEST_F(RecordFile, RecordsComeBackAsTheyWere) {
  write();
  auto reader = RecordReader::open(path_);
  ASSERT_TRUE(reader.ok());
  for (const char* note : {"one", "", "three"}) {
    const auto record = reader.value().next();
    ASSERT_TRUE(record.ok() && record.value());
    EXPECT_EQ(record.value()->note, bytes_of(note));
    EXPECT_EQ(record.value()->data, bytes_of(std::string("left of ") + note));
  }
  EXPECT_EQ(read(), std::pair(std::size_t{3}, true));
  EXPECT_EQ(std::filesystem::status(path_).permissions(),
            std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
}

TEST_F(RecordFile, WhatIsCutOffIsNone) {
  const std::vector<std::uint64_t> ends = write();
  const std::string whole = content();
  for (std::size_t size = 0; size < whole.size(); ++size) {
    set_content(whole.substr(0, size));
    const auto [records, at_end] = read();
    const auto expected = static_cast<std::size_t>(
        std::ranges::count_if(ends, [&](auto end) { return end <= size; }));
    EXPECT_EQ(records, expected) << size;
    EXPECT_EQ(at_end, size == 48 || std::ranges::count(ends, size) == 1) << size;
  }
}

TEST_F(RecordFile, WhatIsChangedOrMovedIsNone) {
  const std::vector<std::uint64_t> ends = write();
  const std::string whole = content();
  for (std::size_t at = 0; at < whole.size(); ++at) {
    std::string changed = whole;
    changed[at] = static_cast<char>(changed[at] ^ 0x10);
    set_content(changed);
    const auto before = at < 48 ? 0
                                : static_cast<std::size_t>(std::ranges::count_if(
                                      ends, [&](auto end) { return end <= at; }));
    EXPECT_EQ(read(), std::pair(before, false)) << at;
  }
  // The last where the second was.
  set_content(whole.substr(0, ends[0]) + whole.substr(ends[1]));
  EXPECT_EQ(read().first, 1u);
  // Those of another file.
  write();
  set_content(content().substr(0, 48) + whole.substr(48));
  EXPECT_EQ(read().first, 0u);
}

TEST_F(RecordFile, WritingGoesOnBehindTheLastWholeOne) {
  const std::vector<std::uint64_t> ends = write();
  std::filesystem::resize_file(path_, ends[2] - 1);
  auto reader = RecordReader::open(path_);
  ASSERT_TRUE(reader.ok());
  while (reader.value().next().value()) {
  }
  auto writer = std::move(reader).value().resume();
  ASSERT_TRUE(writer.ok());
  EXPECT_EQ(writer.value().bytes(), ends[1]);
  ASSERT_TRUE(writer.value().append(bytes_of("third again"), {}).ok());
  EXPECT_EQ(read(), std::pair(std::size_t{3}, true));
}

TEST_F(RecordFile, OtherFilesAreRefused) {
  EXPECT_EQ(RecordReader::open(path_).error().code, ErrorCode::kSystem);
  set_content(std::string(100, 'x'));
  EXPECT_EQ(RecordReader::open(path_).error().text, path_ + " is not a file of records");
  EXPECT_NE(RecordWriter::create(folder_ + "/none/records").error().text.find("cannot create"),
            std::string::npos);
}

// Records that cannot be written whole are an error, as on a full disk.
TEST_F(RecordFile, AFullDiskIsAnError) {
  auto writer = RecordWriter::create("/dev/full");
  EXPECT_EQ(writer.error().text, "cannot write /dev/full: No space left on device");
}

}  // namespace
}  // namespace ciranda::ps
