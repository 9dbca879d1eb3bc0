#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/base/fd.h"
#include "core/base/result.h"
#include "core/base/secret.h"

namespace ciranda::ps {

// A file of records that a crash may cut at any byte. The file begins with a random key. Each
// record has its sizes before it and a tag behind it (a MessageMac over its number in the file, its
// sizes and its bytes). A reader therefore rejects a record that is torn, changed, misplaced or
// left from another file. docs/protocol.md has the bytes. Not thread-safe. Blocks for the disk.

// The random key of a new file of records.
struct RecordKey {
  static Result<RecordKey> make();

  std::array<std::byte, Secret::kBytes> bytes;
  MessageMac mac;
};

class RecordWriter {
 public:
  using Data = std::vector<std::span<const std::byte>>;

  // Creates the file, or empties it; a new file is readable by this user alone. A forked child
  // passes a key that its parent has made: another thread of the parent may have held a lock of
  // libcrypto, which nobody releases in the child.
  static Result<RecordWriter> create(const std::string& path);
  static Result<RecordWriter> create(const std::string& path, RecordKey key);

  // Appends a record: a note, and data in pieces. An error names the file; readers ignore the
  // unfinished record.
  Status append(std::span<const std::byte> note, const Data& data);
  // Blocks until everything is on the disk.
  Status sync();
  std::uint64_t bytes() const { return bytes_; }

 private:
  friend class RecordReader;
  RecordWriter(std::string path, Fd file, MessageMac mac, std::uint64_t bytes,
               std::uint64_t number);

  std::string path_;
  Fd file_;
  MessageMac mac_;
  std::uint64_t bytes_;
  std::uint64_t number_;  // of the next record
};

class RecordReader {
 public:
  // Opens the file for reading. kMalformed if it is no file of records, or its beginning is torn.
  static Result<RecordReader> open(const std::string& path);

  struct Record {
    std::vector<std::byte> note;
    std::vector<std::byte> data;
  };
  // Returns the next record, or nothing at the end and at a record that is not whole. An error
  // means that the file cannot be read.
  Result<std::optional<Record>> next();
  // Size of the file, and offset of the next record, in bytes.
  std::uint64_t size() const { return size_; }
  std::uint64_t at() const { return at_; }
  // Truncates the file at at(), and returns a writer that appends there.
  Result<RecordWriter> resume() &&;

 private:
  RecordReader(std::string path, Fd file, const Secret& key, std::uint64_t size);

  std::string path_;
  Fd file_;
  MessageMac mac_;
  std::uint64_t size_;
  std::uint64_t at_;
  std::uint64_t number_ = 0;
};

}  // namespace ciranda::ps
