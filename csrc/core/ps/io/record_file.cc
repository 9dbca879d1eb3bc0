#include "core/ps/io/record_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

#include "core/base/assert.h"
#include "core/transport/dial/job_key.h"

namespace ciranda::ps {
namespace {

constexpr std::string_view kMagic = "ciranda records1";
constexpr std::uint64_t kBeginBytes = kMagic.size() + Secret::kBytes;
constexpr std::string_view kLabel = "record";
constexpr std::size_t kSizesBytes = 16;
constexpr std::size_t kTagBytes = sizeof(MessageMac::Tag);
constexpr std::size_t kPieceBytesMax = std::size_t{1} << 30;
constexpr std::size_t kPiecesAtOnce = 512;

using Pieces = std::vector<std::span<const std::byte>>;
using Sizes = std::array<std::uint64_t, 2>;  // bytes of note and data; little-endian

// Appends `piece`, cut so that one system call can take each part.
void add(Pieces& pieces, std::span<const std::byte> piece) {
  while (piece.size() > kPieceBytesMax) {
    pieces.push_back(piece.first(kPieceBytesMax));
    piece = piece.subspan(kPieceBytesMax);
  }
  if (!piece.empty()) pieces.push_back(piece);
}

Error cannot(const char* what, const std::string& path) {
  return Error::from_errno("cannot " + std::string(what) + " " + path, errno);
}

Status write_all(int file, Pieces pieces, const std::string& path) {
  std::size_t next = 0;
  while (next < pieces.size()) {
    std::array<iovec, kPiecesAtOnce> vectors;
    std::size_t count = 0;
    for (; count < kPiecesAtOnce && next + count < pieces.size(); ++count) {
      const auto& piece = pieces[next + count];
      vectors[count] = {const_cast<std::byte*>(piece.data()), piece.size()};
    }
    const ssize_t written = ::writev(file, vectors.data(), static_cast<int>(count));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return cannot("write", path);
    auto left = static_cast<std::size_t>(written);
    while (left > 0 && left >= pieces[next].size()) left -= pieces[next++].size();
    if (left > 0) pieces[next] = pieces[next].subspan(left);
  }
  return {};
}

Status read_all(int file, std::uint64_t at, std::span<std::byte> into, const std::string& path) {
  while (!into.empty()) {
    const std::size_t some = std::min(into.size(), kPieceBytesMax);
    const ssize_t count = ::pread(file, into.data(), some, static_cast<off_t>(at));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return cannot("read", path);
    if (count == 0) return Error{.code = ErrorCode::kSystem, .text = path + " has become shorter"};
    at += static_cast<std::uint64_t>(count);
    into = into.subspan(static_cast<std::size_t>(count));
  }
  return {};
}

}  // namespace

RecordWriter::RecordWriter(std::string path, Fd file, MessageMac mac, std::uint64_t bytes,
                           std::uint64_t number)
    : path_(std::move(path)),
      file_(std::move(file)),
      mac_(std::move(mac)),
      bytes_(bytes),
      number_(number) {}

Result<RecordKey> RecordKey::make() {
  std::array<std::byte, Secret::kBytes> bytes;
  fill_random(bytes);
  std::array<std::byte, Secret::kBytes> taken = bytes;  // take() wipes it
  const auto secret = Secret::take(taken);
  if (!secret) return secret.error();
  return RecordKey{.bytes = bytes, .mac = MessageMac(secret.value(), kLabel)};
}

Result<RecordWriter> RecordWriter::create(const std::string& path) {
  auto key = RecordKey::make();
  if (!key) return key.error();
  return create(path, std::move(key).value());
}

Result<RecordWriter> RecordWriter::create(const std::string& path, RecordKey key) {
  Fd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  if (!file.valid()) return cannot("create", path);
  CIRANDA_TRY(write_all(file.get(), {std::as_bytes(std::span(kMagic)), key.bytes}, path));
  return RecordWriter(path, std::move(file), std::move(key.mac), kBeginBytes, 0);
}

Status RecordWriter::append(std::span<const std::byte> note, const Data& data) {
  CIRANDA_ASSERT(file_.valid() && bytes_ >= kBeginBytes);
  Sizes sizes = {note.size(), 0};
  Pieces pieces = {std::as_bytes(std::span(sizes))};
  add(pieces, note);
  for (const auto& piece : data) {
    sizes[1] += piece.size();
    add(pieces, piece);
  }
  const MessageMac::Tag tag = mac_.tag(number_, pieces);
  pieces.push_back(tag);
  CIRANDA_TRY(write_all(file_.get(), std::move(pieces), path_));
  ++number_;
  bytes_ += kSizesBytes + sizes[0] + sizes[1] + kTagBytes;
  return {};
}

Status RecordWriter::sync() {
  CIRANDA_ASSERT(file_.valid());
  return ::fdatasync(file_.get()) == 0 ? Status() : Status(cannot("write", path_));
}

// -------------------------------------------------------------------------------------------

RecordReader::RecordReader(std::string path, Fd file, const Secret& key, std::uint64_t size)
    : path_(std::move(path)),
      file_(std::move(file)),
      mac_(key, kLabel),
      size_(size),
      at_(kBeginBytes) {}

Result<RecordReader> RecordReader::open(const std::string& path) {
  Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat facts {};
  if (!file.valid() || ::fstat(file.get(), &facts) != 0) return cannot("open", path);
  std::array<std::byte, kBeginBytes> begin{};
  const auto size = static_cast<std::uint64_t>(facts.st_size);
  if (size >= kBeginBytes) CIRANDA_TRY(read_all(file.get(), 0, begin, path));
  if (size < kBeginBytes || std::memcmp(begin.data(), kMagic.data(), kMagic.size()) != 0) {
    return Error{.code = ErrorCode::kMalformed, .text = path + " is not a file of records"};
  }
  const auto key = Secret::take(std::span(begin).last<Secret::kBytes>());
  if (!key) return key.error();
  return RecordReader(path, std::move(file), key.value(), size);
}

Result<std::optional<RecordReader::Record>> RecordReader::next() {
  CIRANDA_ASSERT(at_ >= kBeginBytes && at_ <= size_);  // by open(), and the room for each record
  std::optional<Record> none;
  const std::uint64_t left = size_ - at_;
  if (left < kSizesBytes + kTagBytes) return none;
  Sizes sizes{};
  CIRANDA_TRY(read_all(file_.get(), at_, std::as_writable_bytes(std::span(sizes)), path_));
  const std::uint64_t room = left - kSizesBytes - kTagBytes;
  if (sizes[0] > room || sizes[1] > room - sizes[0]) return none;
  Record record{.note = std::vector<std::byte>(sizes[0]), .data = std::vector<std::byte>(sizes[1])};
  MessageMac::Tag tag;
  std::uint64_t at = at_ + kSizesBytes;
  for (const std::span<std::byte> part :
       {std::span(record.note), std::span(record.data), std::span<std::byte>(tag)}) {
    CIRANDA_TRY(read_all(file_.get(), at, part, path_));
    at += part.size();
  }
  Pieces pieces = {std::as_bytes(std::span(sizes))};
  add(pieces, record.note);
  add(pieces, record.data);
  if (!equal_in_constant_time(tag, mac_.tag(number_, pieces))) {
    return none;
  }
  CIRANDA_ASSERT(at > at_ && at <= size_);
  ++number_;
  at_ = at;
  return std::optional(std::move(record));
}

Result<RecordWriter> RecordReader::resume() && {
  file_ = Fd(::open(path_.c_str(), O_WRONLY | O_CLOEXEC));
  if (!file_.valid()) return cannot("write", path_);
  if (::ftruncate(file_.get(), static_cast<off_t>(at_)) != 0 ||
      ::lseek(file_.get(), static_cast<off_t>(at_), SEEK_SET) < 0) {
    return cannot("write", path_);
  }
  return RecordWriter(std::move(path_), std::move(file_), std::move(mac_), at_, number_);
}

}  // namespace ciranda::ps
