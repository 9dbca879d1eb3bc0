#include "core/transport/link/data_links.h"

#include "core/base/assert.h"
#include "core/base/clock.h"

namespace ciranda {

DataLinks::DataLinks(Directory directory, std::unique_ptr<ConnectionThread> connection_thread)
    : directory_(std::move(directory)),
      connection_thread_(std::move(connection_thread)),
      slots_(directory_.ranks.size() * static_cast<std::size_t>(directory_.streams)) {
  CIRANDA_ASSERT(directory_.streams >= 1 && connection_thread_ != nullptr);
}

DataLinks::Slot* DataLinks::slot(Rank peer, int stream) {
  CIRANDA_ASSERT(peer >= 0 && static_cast<std::size_t>(peer) < directory_.ranks.size());
  if (stream >= directory_.streams) return nullptr;
  return &slots_[static_cast<std::size_t>(peer) * static_cast<std::size_t>(directory_.streams) +
                 static_cast<std::size_t>(stream)];
}

DataLink* DataLinks::find(Rank peer, int stream) {
  Slot* const found = slot(peer, stream);
  CIRANDA_ASSERT(found != nullptr && peer != directory_.self.from);
  if (found->link || found->wanted || !connection_thread_) return found->link.get();
  found->wanted = true;
  ++missing_;
  if (peer < directory_.self.from) {
    Hello hello = directory_.self;
    hello.to = peer;
    hello.stream = static_cast<std::uint16_t>(stream);
    connection_thread_->dial(hello, directory_.ranks[static_cast<std::size_t>(peer)],
                             monotonic_ns() + directory_.timeout_ms * 1'000'000);
  }
  return nullptr;
}

Result<bool> DataLinks::advance() {
  if (missing_ == 0) return false;
  CIRANDA_ASSERT(missing_ > 0 && connection_thread_ != nullptr);
  auto proven = connection_thread_->take();
  if (!proven) return proven.error();
  bool any = false;
  for (ProvenSocket& socket : proven.value()) {
    const Session& session = socket.session;
    Slot* const place = session.purpose == Purpose::kData && session.peer != directory_.self.from
                            ? slot(session.peer, session.stream)
                            : nullptr;
    if (place == nullptr || place->link) continue;  // not a data link, or a second one
    if (place->wanted) --missing_;
    CIRANDA_ASSERT(missing_ >= 0);
    (void)pace_when_far(socket.stream.fd());
    place->link = std::make_unique<DataLink>(std::move(socket));
    any = true;
  }
  return any;
}

std::vector<Rank> DataLinks::unanswered() {
  return missing_ > 0 ? connection_thread_->take_unanswered() : std::vector<Rank>();
}

void DataLinks::watched(std::vector<Watched>& out) const {
  if (missing_ > 0) out.push_back({.socket = connection_thread_->fd(), .readable = true});
}

void DataLinks::close_all() {
  connection_thread_.reset();
  missing_ = 0;
  for (Slot& each : slots_) each.link.reset();
}

void DataLinks::close_in_forked_child() noexcept {
  if (ConnectionThread* const of_parent = connection_thread_.release())
    of_parent->close_in_forked_child();
  for (Slot& each : slots_) {
    if (each.link) each.link->stream.close();
  }
}

}  // namespace ciranda
