#include "core/ps/io/server_link.h"

#include <sys/socket.h>

#include <span>
#include <utility>

#include "core/base/assert.h"
#include "core/ps/io/receive_message.h"
#include "core/transport/link/message_link.h"

namespace ciranda::ps {
namespace {

bool is_of_rows(const Message& message) {
  return std::holds_alternative<PullRows>(message) || std::holds_alternative<PushRows>(message);
}

class LinkHere final : public ServerLink {
 public:
  LinkHere(Fd socket, int server, const WorkerMemory& memory)
      : socket_(std::move(socket)), server_(server), memory_(memory), packet_(kPacketBytesMax) {}

  Watched watched() const override { return {.socket = socket_.get(), .readable = true}; }
  bool is_remote() const override { return false; }

  Status send(const Message& message) override {
    std::vector<int> descriptors;
    if (std::holds_alternative<Declare>(message)) {
      CIRANDA_ASSERT(memory_.model_blob.fd.valid() && memory_.memory.fd.valid());
      descriptors = {memory_.model_blob.fd.get(), memory_.memory.fd.get()};
    } else if (std::holds_alternative<MoveGradients>(message)) {
      CIRANDA_ASSERT(memory_.gradients.fd.valid());
      descriptors = {memory_.gradients.fd.get()};
    } else if (std::holds_alternative<FetchState>(message) ||
               std::holds_alternative<FetchSteps>(message)) {
      descriptors = {memory_.fetched.fd.get()};
    } else if (is_of_rows(message)) {
      CIRANDA_ASSERT(static_cast<std::size_t>(server_) < memory_.rows.size());
      const WorkerMemory::Rows& rows = memory_.rows[static_cast<std::size_t>(server_)];
      if (rows.numbers_bytes > 0) descriptors = {rows.memory.fd.get()};
    }
    encoded_.clear();
    encode(message, encoded_);
    const Status sent = send_packet(socket_.get(), encoded_, descriptors);
    return sent ? sent : Status(lost("the server is gone"));
  }
  Status flush() override { return {}; }
  bool has_queued() const override { return false; }

  Result<std::optional<Message>> receive() override {
    std::vector<Fd> none;
    return receive_message(socket_.get(), packet_, none, "the server is gone");
  }
  Status check_answers(std::uint64_t) const override { return {}; }
  void end() noexcept override { ::shutdown(socket_.get(), SHUT_WR); }
  void close() noexcept override { socket_.reset(); }

 private:
  Fd socket_;
  const int server_;
  const WorkerMemory& memory_;
  std::vector<std::byte> packet_;   // scratch
  std::vector<std::byte> encoded_;  // scratch
};

class LinkElsewhere final : public ServerLink {
 public:
  LinkElsewhere(ProvenSocket socket, int server, bool authenticates, const WorkerMemory& memory)
      : link_(std::move(socket), kPacketBytesMax, authenticates),
        server_(server),
        memory_(memory) {}

  Watched watched() const override { return link_.watched(); }
  bool is_remote() const override { return true; }

  Status send(const Message& message) override {
    if (std::holds_alternative<MoveGradients>(message)) return {};  // each Push sends them
    encoded_.clear();
    encode(message, encoded_);
    std::vector<MessageLink::Outgoing> parts;
    if (std::holds_alternative<Declare>(message)) {
      CIRANDA_ASSERT(memory_.layout && memory_.memory.segment.data() != nullptr);
      parts.resize(2);
      parts[0].emplace_back(memory_.model_blob.segment.data(), memory_.model_blob_bytes);
      add(parts[1], memory_.memory.segment.data(), memory_.layout->parameters_of(server_));
    } else if (std::holds_alternative<Push>(message)) {
      add(parts.emplace_back(), memory_.gradient_segment().data(),
          memory_.layout->gradients_of(server_));
    } else if (is_of_rows(message)) {
      const std::size_t gradients =
          std::holds_alternative<PushRows>(message) ? rows().rows_bytes : 0;
      const std::size_t bytes = rows().numbers_bytes + gradients;
      if (bytes > 0) parts.emplace_back().emplace_back(rows().memory.segment.data(), bytes);
    }
    return link_.send(encoded_, std::move(parts));
  }
  Status flush() override { return link_.flush(); }
  bool has_queued() const override { return link_.has_queued(); }

  Result<std::optional<Message>> receive() override {
    if (!message_) {
      auto message = receive_message(link_);
      if (!message || !message.value()) return message;
      message_ = std::move(message).value();
      if (is_unasked(*message_)) {
        return Error{.code = ErrorCode::kMalformed,
                     .text = "a server sent data that this process had not asked for"};
      }
      link_.expect(places_of(*message_));
    }
    const auto complete = link_.receive_data();
    if (!complete) return complete.error();
    if (!complete.value()) return std::optional<Message>();
    return std::exchange(message_, std::nullopt);
  }
  Status check_answers(std::uint64_t limit_ms) const override {
    return ciranda::check_answers(link_.fd(), limit_ms);
  }
  void end() noexcept override { ::shutdown(link_.fd(), SHUT_WR); }
  void close() noexcept override { link_.close(); }

 private:
  using Ranges = std::vector<Layout::Range>;

  const WorkerMemory::Rows& rows() const { return memory_.rows[static_cast<std::size_t>(server_)]; }
  static void add(auto& places, std::byte* memory, const Ranges& ranges) {
    for (const auto& [at, bytes] : ranges) places.emplace_back(memory + at, bytes);
  }

  // Returns true if there is no memory for the data that follows the message.
  bool is_unasked(const Message& message) const {
    if (std::holds_alternative<Fetched>(message)) {
      return memory_.fetched.segment.data() == nullptr;
    }
    if (!std::holds_alternative<RowsRead>(message)) return false;
    return static_cast<std::size_t>(server_) >= memory_.rows.size() ||
           rows().memory.segment.data() == nullptr;
  }

  // Returns where the data that follows the message belongs.
  MessageLink::Incoming places_of(const Message& message) const {
    MessageLink::Incoming places;
    if (!memory_.layout) return places;
    if (std::holds_alternative<Ack>(message) || std::holds_alternative<Ready>(message)) {
      add(places, memory_.memory.segment.data(), memory_.layout->parameters_of(server_));
    } else if (std::holds_alternative<Fetched>(message)) {
      std::byte* const fetched = memory_.fetched.segment.data();
      if (memory_.fetched_table) {
        add(places, fetched, memory_.layout->table_of(server_, *memory_.fetched_table));
      } else {
        places.emplace_back(fetched, memory_.fetched_bytes);
      }
    } else if (std::holds_alternative<RowsRead>(message)) {
      places.emplace_back(rows().memory.segment.data() + rows().numbers_bytes, rows().rows_bytes);
    }
    return places;
  }

  MessageLink link_;
  const int server_;
  const WorkerMemory& memory_;
  std::vector<std::byte> encoded_;  // scratch
  std::optional<Message> message_;  // whose data is not complete
};

}  // namespace

Result<SharedMemory> SharedMemory::create(std::size_t bytes) {
  auto created = MemorySegment::create(bytes);
  if (!created) return created.error();
  return SharedMemory{.segment = std::move(created.value().segment),
                      .fd = std::move(created.value().fd)};
}

std::unique_ptr<ServerLink> make_link_here(Fd socket, int server, const WorkerMemory& memory) {
  return std::make_unique<LinkHere>(std::move(socket), server, memory);
}

std::unique_ptr<ServerLink> make_link_elsewhere(ProvenSocket socket, int server, bool authenticates,
                                                const WorkerMemory& memory) {
  return std::make_unique<LinkElsewhere>(std::move(socket), server, authenticates, memory);
}

}  // namespace ciranda::ps
