// What a server keeps of its desk, and how it is made again.
#include <string>
#include <utility>

#include "core/ps/desk.h"
#include "core/wire/codec.h"

namespace ciranda::ps {
namespace {

constexpr std::uint32_t kStateVersion = 1;

}  // namespace

void Desk::keep_journal(Journal* journal) {
  journal_ = journal;
  if (shard_) shard_->keep_journal(journal);
}

void Desk::save(std::vector<std::byte>& out) const {
  Writer writer(out);
  writer.u32(kStateVersion);
  writer.varint(options_.job_id.size());
  writer.text(options_.job_id);
  writer.varint(static_cast<std::uint64_t>(options_.server));
  writer.varint(static_cast<std::uint64_t>(options_.servers));
  writer.varint(members_.size());
  for (const Member& each : members_) {
    writer.varint(each.life);
    writer.u64(each.process);
    writer.u8(each.left ? 1 : 0);
    writer.varint(each.stats.pushes);
    writer.varint(each.stats.held_ns);
  }
  writer.varint(lost_);
  std::vector<std::byte> letter;
  encode(shard_->model(), letter);
  writer.varint(letter.size());
  writer.bytes(letter);
  shard_->save(out);
}

Status Desk::restore(std::span<const std::byte> saved, std::uint64_t now_ns) {
  Reader in(saved);
  const std::uint32_t version = in.u32("state.version");
  const std::string job(in.text("state.job", in.count("state.job", kJobIdBytesMax, 1)));
  const auto server = static_cast<int>(in.varint("state.server", kServersMax - 1));
  const auto servers = static_cast<int>(in.varint("state.servers", kServersMax));
  const std::size_t workers = in.count("state.workers", kLocalRanksMax, 12);
  if (!in.ok()) return in.error();
  const auto mismatch = [](std::string why) {
    return Error{.code = ErrorCode::kMismatch, .text = std::move(why)};
  };
  if (version != kStateVersion) {
    return mismatch("it was kept by another version of ciranda");
  }
  if (job != options_.job_id) {
    return mismatch("it is of job '" + job + "', and this one is '" + options_.job_id + "'");
  }
  if (server != options_.server || servers != options_.servers || workers != members_.size()) {
    return mismatch("it is of server " + std::to_string(server) + " of " + std::to_string(servers) +
                    " with " + std::to_string(workers) + " workers, and this one is server " +
                    std::to_string(options_.server) + " of " + std::to_string(options_.servers) +
                    " with " + std::to_string(members_.size()));
  }
  for (Member& each : members_) {
    each.life = in.varint("state.life", UINT64_MAX);
    each.process = in.u64("state.process");
    each.left = in.u8("state.left", 1) != 0;
    each.stats.pushes = in.varint("state.pushes", UINT64_MAX);
    each.stats.held_ns = in.varint("state.held_ns", UINT64_MAX);
  }
  lost_ = in.varint("state.lost", UINT64_MAX);
  std::vector<std::byte> letter(in.count("state.model", kModelBytesMax, 1));
  in.bytes("state.model", letter);
  if (!in.ok()) return in.error();
  auto model = decode_model(letter);
  if (!model) return model.error();
  shard_ = std::make_unique<Shard>(std::move(model).value(), options_.servers, options_.server,
                                   options_.workers);
  if (!shard_->has_memory()) {
    return Error{.code = ErrorCode::kSystem,
                 .text = "there is no memory for " + std::to_string(shard_->held_bytes()) +
                         " bytes of parameters and state"};
  }
  CIRANDA_TRY(shard_->restore(saved.subspan(in.offset())));
  for (std::size_t each = 0; each < members_.size(); ++each) {
    if (members_[each].left) leave_shard(static_cast<Worker>(each));
  }
  expected_ns_ = now_ns + options_.lease_ns;
  return {};
}

// Nobody is there who could be answered.
void Desk::leave_shard(Worker worker) {
  std::vector<Ack> none;
  shard_->leave(worker, none);
}

Status Desk::repeat(const Change& change, std::span<const std::byte> data) {
  if (change.kind == Change::Kind::kApplied || change.kind == Change::Kind::kSkipped) {
    CIRANDA_TRY(shard_->repeat(change, data));
    for (const Push& push : change.pushes) ++member(push.worker).stats.pushes;
    return {};
  }
  if (change.worker >= options_.workers) {
    return Error{.code = ErrorCode::kMalformed, .text = "a change is of no worker of this job"};
  }
  Member& worker = member(change.worker);
  worker.left = change.kind == Change::Kind::kLeft;
  if (worker.left) {
    leave_shard(change.worker);
  } else {
    worker.life = change.life;
    worker.process = change.process;
  }
  return {};
}

}  // namespace ciranda::ps
