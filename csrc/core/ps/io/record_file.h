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

// A file of records that a crash may cut anywhere. It begins with a key by chance; each record has
// its sizes before it and a tag behind it (MessageMac, of its number in the file, its sizes and its
// bytes), so that a record that is torn, changed, in another place or left from another file is not
// taken for one. docs/protocol.md has the bytes. Not thread-safe.

class RecordWriter {
 public:
  using Data = std::vector<std::span<const std::byte>>;

  // A new file, for this user alone.
  static Result<RecordWriter> create(const std::string& path);

  // A note, and data that lies in pieces. An error names the file; what is there of the record then
  // is none.
  Status append(std::span<const std::byte> note, const Data& data);
  // Everything is on the disk when it returns.
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
  // To be read only. kMalformed: it is no such file, or its beginning is torn.
  static Result<RecordReader> open(const std::string& path);

  struct Record {
    std::vector<std::byte> note;
    std::vector<std::byte> data;
  };
  // The next record; nothing at the end, and at what is not whole. An error: the file cannot be
  // read.
  Result<std::optional<Record>> next();
  // Bytes of the file, and those before the record that is read next.
  std::uint64_t size() const { return size_; }
  std::uint64_t at() const { return at_; }
  // Takes away what follows, and goes on writing there.
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
