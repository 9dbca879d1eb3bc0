#include "core/ps/io/client.h"

#include <cstdio>
#include <utility>

namespace ciranda::ps {
namespace {

std::unique_ptr<Timeline> make_timeline(const ClientOptions& options) {
  if (options.timeline_path.empty()) return nullptr;
  auto timeline = std::make_unique<Timeline>(options.address.worker, options.job_id);
  if (const Status on = timeline->start(options.timeline_path); !on) {
    std::fprintf(stderr, "ciranda: %s\n", on.error().text.c_str());
  }
  return timeline;
}

}  // namespace

Client::Client(ClientOptions options)
    : options_(std::move(options)),
      timeline_(make_timeline(options_)),
      conversation_(options_, memory_, timeline_.get()),
      parameters_(conversation_, beats_, memory_, timeline_.get()),
      rows_(conversation_, parameters_, memory_.rows),
      tasks_(conversation_) {}

Result<std::unique_ptr<Client>> Client::connect(ClientOptions options) {
  std::unique_ptr<Client> client(new Client(std::move(options)));
  {
    const MutexLock lock(client->conversation_.mutex());
    CIRANDA_TRY(client->conversation_.enter());
  }
  CIRANDA_TRY(client->beats_.start("ciranda-ps-beat", [&conversation = client->conversation_] {
    const MutexLock lock(conversation.mutex());
    return conversation.attend();
  }));
  return client;
}

Client::~Client() {
  leave();
}

void Client::leave() {
  beats_.stop();
  const MutexLock lock(conversation_.mutex());
  if (!conversation_.check()) return;
  conversation_.leave();
  if (!timeline_) return;
  if (const Status written = timeline_->stop(); !written) {
    std::fprintf(stderr, "ciranda: %s\n", written.error().text.c_str());
  }
}

void Client::close_in_forked_child() noexcept {
  conversation_.close_in_forked_child();
  beats_.close_in_forked_child();
}

Result<double> Client::average(const std::string& name, double value) {
  const MutexLock lock(conversation_.mutex());
  CIRANDA_TRY(conversation_.settle());
  CIRANDA_TRY(conversation_.ask(0, Average{.name = name, .value = value}));
  const auto averaged = conversation_.hear<Averaged>(0);
  if (!averaged) return averaged.error();
  return averaged.value().mean;
}

Result<std::vector<Stats>> Client::stats() {
  const MutexLock lock(conversation_.mutex());
  CIRANDA_TRY(conversation_.settle());
  return conversation_.ask_stats();
}

std::optional<int> Client::lost_server() const {
  const MutexLock lock(conversation_.mutex());
  return conversation_.lost_server();
}

}  // namespace ciranda::ps
