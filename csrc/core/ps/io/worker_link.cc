#include "core/ps/io/worker_link.h"

#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <utility>
#include <vector>

#include "core/base/assert.h"
#include "core/ps/decide/layout.h"
#include "core/ps/decide/model_codec.h"
#include "core/ps/io/receive_message.h"
#include "core/transport/link/message_link.h"
#include "core/transport/local/memory_segment.h"

namespace ciranda::ps {
namespace {

// Most answers that a worker may leave unread. Workers wait for each answer, so one with more does
// not read at all.
constexpr std::size_t kUnreadMax = 64;
// Most bytes of rows that a worker may ask for at once.
constexpr std::uint64_t kRowsBytesMax = std::uint64_t{1} << 30;

Error gone() {
  return lost("the worker is gone");
}

Error no_memory_came() {
  return {.code = ErrorCode::kMalformed,
          .text = "a worker's message came without its shared memory"};
}

// -------------------------------------------------------------------------------------------
// On one host

std::size_t whole_pages(std::uint64_t bytes) {
  constexpr std::uint64_t kPageBytes = 4096;
  return static_cast<std::size_t>((bytes + kPageBytes - 1) / kPageBytes * kPageBytes);
}

class LocalLink final : public WorkerLink {
 public:
  explicit LocalLink(Fd socket) : socket_(std::move(socket)), packet_(kPacketBytesMax) {}

  Watched watched() const override { return {.socket = socket_.get(), .readable = true}; }
  bool is_remote() const override { return false; }

  Result<std::optional<Message>> receive() override {
    auto message = receive_message(socket_.get(), packet_, descriptors_, "the worker is gone");
    if (!message || !message.value()) return message;
    declares_ = std::holds_alternative<Declare>(*message.value());
    moves_ = std::holds_alternative<MoveGradients>(*message.value());
    has_rows_ = std::holds_alternative<PullRows>(*message.value()) ||
                std::holds_alternative<PushRows>(*message.value());
    return message;
  }

  ServerProtocol::Attached attached() override {
    return {.model_blob = [this](std::uint64_t bytes) -> Result<std::vector<std::byte>> {
              const auto model_blob = take_memory(bytes);
              if (!model_blob) return model_blob.error();
              CIRANDA_ASSERT(model_blob.value().bytes() >= bytes);
              const std::byte* begin = model_blob.value().data();
              return std::vector<std::byte>(begin, begin + bytes);
            },
            .memory = [this](std::uint64_t bytes) -> Result<std::byte*> {
              if (has_rows_) return row_memory(static_cast<std::size_t>(bytes));
              auto memory = take_memory(bytes);
              if (!memory) return memory.error();
              CIRANDA_ASSERT(memory.value().bytes() >= bytes);
              MemorySegment& kept = declares_ ? memory_ : moves_ ? gradients_ : fetched_;
              kept = std::move(memory).value();
              return kept.data();
            }};
  }

  // Fails rather than wait for a worker that does not read its answers.
  Status send(const Message& message) override {
    fetched_ = {};
    encoded_.clear();
    encode(message, encoded_);
    ssize_t sent = 0;
    do {
      sent = ::send(socket_.get(), encoded_.data(), encoded_.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    } while (sent < 0 && errno == EINTR);
    return sent < 0 ? Status(gone()) : Status();
  }
  Status flush() override { return {}; }
  void end() override { ::shutdown(socket_.get(), SHUT_WR); }

 private:
  // Maps the next of the memfds that came with the packet.
  Result<MemorySegment> take_memory(std::uint64_t bytes) {
    if (descriptors_.empty()) return no_memory_came();
    Fd fd = std::move(descriptors_.front());
    descriptors_.erase(descriptors_.begin());
    return MemorySegment::open(std::move(fd), whole_pages(bytes));
  }

  // Maps the memory of rows, unless it is mapped already: a worker reuses it for many messages. The
  // inode tells, because no other file has the same one while this file is mapped.
  Result<std::byte*> row_memory(std::size_t bytes) {
    if (descriptors_.empty()) return no_memory_came();
    struct stat file {};
    if (::fstat(descriptors_.front().get(), &file) != 0) {
      return Error::from_errno("fstat of a worker's memory", errno);
    }
    if (!row_file_ || *row_file_ != std::pair(file.st_dev, file.st_ino) || rows_.bytes() < bytes) {
      auto rows = MemorySegment::open_whole(descriptors_.front(), bytes);
      if (!rows) return rows.error();
      rows_ = std::move(rows).value();
      row_file_ = {file.st_dev, file.st_ino};
    }
    CIRANDA_ASSERT(rows_.bytes() >= bytes);
    return rows_.data();
  }

  Fd socket_;
  std::vector<std::byte> packet_;   // scratch
  std::vector<std::byte> encoded_;  // scratch
  std::vector<Fd> descriptors_;     // of the latest packet
  bool declares_ = false;           // the latest packet is Declare
  bool moves_ = false;              // or MoveGradients
  bool has_rows_ = false;           // or PullRows or PushRows
  MemorySegment memory_;            // once declared
  MemorySegment gradients_;         // once moved
  MemorySegment fetched_;           // until the answer
  MemorySegment rows_;
  std::optional<std::pair<dev_t, ino_t>> row_file_ = {};  // device and inode of rows_
};

// -------------------------------------------------------------------------------------------
// Between hosts

// Returns zeroed pages, which take no memory until they are touched; null if the system has no
// room.
using Pages = std::shared_ptr<std::byte>;
Pages make_pages(std::uint64_t bytes) {
  void* const at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) return nullptr;
  return {static_cast<std::byte*>(at), [bytes](std::byte* pages) { ::munmap(pages, bytes); }};
}

// The worker's memory has the same layout here as at the worker, but only this server's share is
// ever touched. A push is received into that memory, and an answer is sent from there. Both are
// safe, because a worker sends the next push after the answer.
class RemoteLink final : public WorkerLink {
 public:
  RemoteLink(ProvenSocket socket, int server, int servers, bool authenticates)
      : link_(std::move(socket), kPacketBytesMax, authenticates),
        server_(server),
        servers_(servers) {}

  Watched watched() const override { return link_.watched(); }
  bool is_remote() const override { return true; }

  Result<std::optional<Message>> receive() override {
    for (;;) {
      if (!message_) {
        auto message = receive_message(link_);
        if (!message || !message.value()) return message;
        message_ = std::move(message).value();
        CIRANDA_TRY(expect_first());
      }
      const auto complete = link_.receive_data();
      if (!complete) return complete.error();
      if (!complete.value()) return std::optional<Message>();
      if (!std::exchange(reads_model_blob_, false)) return std::exchange(message_, std::nullopt);
      CIRANDA_TRY(expect_parameters());
    }
  }

  ServerProtocol::Attached attached() override {
    return {.model_blob = [this](std::uint64_t) -> Result<std::vector<std::byte>> {
              return std::exchange(model_blob_, {});
            },
            .memory = [this](std::uint64_t bytes) -> Result<std::byte*> {
              if (memory_ && !std::exchange(declared_, true)) {
                CIRANDA_ASSERT(bytes == layout_->memory_bytes());  // one model for all workers
                return memory_.get();
              }
              if (fetched_ && rows_bytes_ > 0) return fetched_.get();  // made by expect_rows()
              fetched_ = make_pages(bytes);
              if (!fetched_) return no_memory(bytes);
              return fetched_.get();
            }};
  }

  Status send(const Message& message) override {
    if (link_.queued_messages() >= kUnreadMax) return gone();
    encoded_.clear();
    encode(message, encoded_);
    if (std::holds_alternative<Ack>(message) || std::holds_alternative<Ready>(message)) {
      CIRANDA_ASSERT(layout_ && memory_);  // only workers that have declared get these
      return link_.send(encoded_, {places(memory_, layout_->parameters_of(server_))}, memory_);
    }
    const bool answers = std::holds_alternative<Fetched>(message) ||
                         std::holds_alternative<RowsRead>(message) ||
                         std::holds_alternative<RowsPushed>(message);
    if (answers) asked_ = false;
    if (std::holds_alternative<Fetched>(message)) {
      Pages fetched = std::exchange(fetched_, nullptr);
      auto data = places(fetched, fetched_ranges_);
      return link_.send(encoded_, {std::move(data)}, std::move(fetched));
    }
    if (std::holds_alternative<RowsRead>(message)) {
      Pages rows = std::exchange(fetched_, nullptr);
      MessageLink::Outgoing data{{rows.get() + numbers_bytes_, std::exchange(rows_bytes_, 0)}};
      return link_.send(encoded_, {std::move(data)}, std::move(rows));
    }
    rows_bytes_ = 0;
    return link_.send(encoded_);
  }
  Status flush() override {
    Status flushed = link_.flush();
    if (flushed && ends_ && !link_.has_queued()) ::shutdown(link_.fd(), SHUT_WR);
    return flushed;
  }
  void end() override {
    ends_ = true;
    (void)flush();
  }

 private:
  using Ranges = std::vector<Layout::Range>;

  static Error no_memory(std::uint64_t bytes) {
    return {.code = ErrorCode::kSystem,
            .text = "this host has no memory for a worker's " + std::to_string(bytes) +
                    " bytes; start more servers"};
  }

  static MessageLink::Outgoing places(const Pages& memory, const Ranges& ranges) {
    MessageLink::Outgoing out;
    for (const auto& [at, bytes] : ranges) out.emplace_back(memory.get() + at, bytes);
    return out;
  }
  void expect(const Ranges& ranges) {
    CIRANDA_ASSERT(layout_ && memory_);
    MessageLink::Incoming in;
    for (const auto& [at, bytes] : ranges) in.emplace_back(memory_.get() + at, bytes);
    link_.expect(std::move(in));
  }

  bool asks() const {
    return std::holds_alternative<PullRows>(*message_) ||
           std::holds_alternative<PushRows>(*message_) ||
           std::holds_alternative<FetchState>(*message_) ||
           std::holds_alternative<FetchSteps>(*message_);
  }

  // Expects the data that directly follows the message.
  Status expect_first() {
    if (const auto* what = std::get_if<Declare>(&*message_)) {
      if (memory_) {
        return Error{.code = ErrorCode::kInvalidArgument,
                     .text =
                         "this worker has declared its parameters already; servers hold the "
                         "parameters of one model"};
      }
      model_blob_.resize(what->model_bytes);
      link_.expect({std::span(model_blob_)});
      reads_model_blob_ = true;
      return {};
    }
    if (std::holds_alternative<Push>(*message_)) {
      if (!memory_) {
        return Error{.code = ErrorCode::kMalformed,
                     .text = "a worker pushed before it had declared its parameters"};
      }
      expect(layout_->gradients_of(server_));
      return {};
    }
    if (std::holds_alternative<MoveGradients>(*message_)) {
      return Error{
          .code = ErrorCode::kMalformed,
          .text = "a worker of another host sent a message that only workers of this host send"};
    }
    if (asks() && std::exchange(asked_, true)) {
      return Error{
          .code = ErrorCode::kMalformed,
          .text = "a worker asked for rows or state before its previous question was answered"};
    }
    if (const auto* wanted = std::get_if<PullRows>(&*message_)) {
      return expect_rows(wanted->table, wanted->count, /*and_gradients=*/false);
    }
    if (const auto* pushed = std::get_if<PushRows>(&*message_)) {
      return expect_rows(pushed->table, pushed->count, /*and_gradients=*/true);
    }
    if (const auto* wanted = std::get_if<FetchState>(&*message_)) {
      fetched_ranges_.clear();
      if (layout_ && wanted->table < tables_) {
        fetched_ranges_ = layout_->table_of(server_, wanted->table);
      }
    } else if (std::holds_alternative<FetchSteps>(*message_)) {
      fetched_ranges_ = {{.at = 0, .bytes = steps_bytes_}};
    }
    link_.expect({});
    return {};
  }

  // Makes memory for `count` row numbers and, behind them, as many rows. Expects the numbers and,
  // `and_gradients`, the gradients of the rows.
  Status expect_rows(std::uint32_t table, std::uint64_t count, bool and_gradients) {
    if (table >= columns_.size()) {
      return Error{.code = ErrorCode::kMalformed,
                   .text = "there is no table " + std::to_string(table) + " of rows"};
    }
    numbers_bytes_ = count * sizeof(std::uint64_t);
    rows_bytes_ = count * columns_[table] * sizeof(float);
    if (rows_bytes_ > kRowsBytesMax) return no_memory(rows_bytes_);
    fetched_ = make_pages(std::max<std::uint64_t>(1, numbers_bytes_ + rows_bytes_));
    if (!fetched_) return no_memory(numbers_bytes_ + rows_bytes_);
    const std::uint64_t comes = numbers_bytes_ + (and_gradients ? rows_bytes_ : 0);
    MessageLink::Incoming in;
    if (comes > 0) in.emplace_back(fetched_.get(), static_cast<std::size_t>(comes));
    link_.expect(std::move(in));
    return {};
  }

  // Expects the parameters of a Declare, once model_blob_ has been received.
  Status expect_parameters() {
    const auto model = decode_model(model_blob_);
    if (!model) return model.error();
    layout_.emplace(model.value(), servers_);
    tables_ = model.value().tables.size();
    steps_bytes_ = slot_count(model.value()) * sizeof(std::int64_t);
    for (const RowTable& rows : model.value().row_tables) columns_.push_back(rows.columns);
    memory_ = make_pages(layout_->memory_bytes());
    if (!memory_) return no_memory(layout_->memory_bytes());
    expect(layout_->parameters_of(server_));
    return {};
  }

  MessageLink link_;
  const int server_;
  const int servers_;
  std::vector<std::byte> encoded_;  // scratch
  std::optional<Message> message_;  // whose data is not complete
  bool reads_model_blob_ = false;
  std::vector<std::byte> model_blob_;
  std::optional<Layout> layout_;  // once declared
  std::size_t tables_ = 0;
  std::uint64_t steps_bytes_ = 0;
  Pages memory_;
  bool declared_ = false;
  bool asked_ = false;  // for rows or state, and not answered yet
  Pages fetched_;       // until the answer
  Ranges fetched_ranges_;
  std::vector<std::uint64_t> columns_;  // by table of rows
  std::uint64_t numbers_bytes_ = 0;     // in fetched_
  std::uint64_t rows_bytes_ = 0;        // behind these; 0: no rows
  bool ends_ = false;
};

}  // namespace

std::unique_ptr<WorkerLink> make_local_link(Fd socket) {
  return std::make_unique<LocalLink>(std::move(socket));
}

std::unique_ptr<WorkerLink> make_remote_link(ProvenSocket socket, int server, int servers,
                                             bool authenticates) {
  return std::make_unique<RemoteLink>(std::move(socket), server, servers, authenticates);
}

}  // namespace ciranda::ps
