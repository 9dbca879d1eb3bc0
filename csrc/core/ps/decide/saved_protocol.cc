#include "core/ps/decide/saved_protocol.h"

#include <utility>

#include "core/base/assert.h"
#include "core/ps/decide/ledger.h"
#include "core/ps/decide/messages.h"
#include "core/ps/decide/model_codec.h"
#include "core/ps/decide/refusal.h"
#include "core/ps/decide/vector_works.h"
#include "core/wire/codec.h"
#include "core/wire/types.h"

namespace ciranda::ps {
namespace {

constexpr std::size_t kSavedTasksBytesMax = 2 * kLedgerBytesMax;
constexpr std::uint32_t kStateVersion = 3;

void write(Writer& out, const SavedProtocol::Member& member) {
  out.varint(member.life);
  out.u64(member.process);
  out.u8(member.left ? 1 : 0);
  out.varint(member.pushes);
  out.varint(member.held_ns);
}

void read(Reader& in, SavedProtocol::Member& each) {
  each.life = in.varint("state.life", UINT64_MAX);
  each.process = in.u64("state.process");
  each.left = in.u8("state.left", 1) != 0;
  each.pushes = in.varint("state.pushes", UINT64_MAX);
  each.held_ns = in.varint("state.held_ns", UINT64_MAX);
}

}  // namespace

void encode(const SavedProtocol& saved, std::vector<std::byte>& out) {
  CIRANDA_ASSERT(saved.server < saved.servers && saved.works.size() <= kWorksMax);
  Writer writer(out);
  writer.u32(kStateVersion);
  writer.varint(saved.job_id.size());
  writer.text(saved.job_id);
  writer.varint(static_cast<std::uint64_t>(saved.server));
  writer.varint(static_cast<std::uint64_t>(saved.servers));
  writer.varint(saved.members.size());
  for (const SavedProtocol::Member& each : saved.members) write(writer, each);
  writer.u8(saved.coordinator ? 1 : 0);
  if (saved.coordinator) write(writer, *saved.coordinator);
  writer.varint(saved.tasks.size());
  writer.bytes(saved.tasks);
  writer.varint(saved.works.size());
  for (const VectorsWorked& each : saved.works) {
    write(writer, each.work);
    for (const double dot : each.dots) writer.f64(dot);
  }
  writer.varint(saved.lost);
  std::vector<std::byte> model_blob;
  encode(saved.model, model_blob);
  writer.varint(model_blob.size());
  writer.bytes(model_blob);
  writer.bytes(saved.shard);
}

Result<SavedProtocol> decode_saved_protocol(std::span<const std::byte> saved) {
  Reader in(saved);
  SavedProtocol protocol;
  const std::uint32_t version = in.u32("state.version");
  if (in.ok() && version != kStateVersion) {
    return refused(ErrorCode::kMismatch, "it was written by another version of ciranda");
  }
  protocol.job_id = in.text("state.job", in.count("state.job", kJobIdBytesMax, 1));
  protocol.server = static_cast<int>(in.varint("state.server", kServersMax - 1));
  protocol.servers = static_cast<int>(in.varint("state.servers", kServersMax));
  protocol.members.resize(in.count("state.workers", kLocalRanksMax, 12));
  for (SavedProtocol::Member& each : protocol.members) read(in, each);
  if (in.u8("state.has_coordinator", 1) != 0) {
    protocol.coordinator = SavedProtocol::Member{};
    read(in, *protocol.coordinator);
  }
  protocol.tasks.resize(in.count("state.tasks", kSavedTasksBytesMax, 1));
  in.bytes("state.tasks", protocol.tasks);
  protocol.works.resize(in.count("state.works", kWorksMax, 3));
  for (VectorsWorked& each : protocol.works) {
    read(in, each.work);
    each.dots.resize(each.work.dots.size());
    for (double& dot : each.dots) dot = in.f64("state.dot");
  }
  protocol.lost = in.varint("state.lost", UINT64_MAX);
  std::vector<std::byte> model_blob(in.count("state.model", kModelBytesMax, 1));
  in.bytes("state.model", model_blob);
  if (in.ok() && protocol.server >= protocol.servers)
    in.fail("state.server", "is not one of the servers");
  if (!in.ok()) return in.error();
  auto model = decode_model(model_blob);
  if (!model) return model.error();
  protocol.model = std::move(model).value();
  const auto rest = saved.subspan(in.offset());
  protocol.shard.assign(rest.begin(), rest.end());
  return protocol;
}

Status check(const SavedProtocol& saved, const ServerProtocolOptions& options) {
  const auto mismatch = [](std::string why) {
    return refused(ErrorCode::kMismatch, std::move(why));
  };
  if (saved.job_id != options.job_id && !options.resumes) {
    return mismatch("it belongs to job '" + saved.job_id + "', and this job is '" + options.job_id +
                    "'; give --resume to continue it");
  }
  const auto workers = static_cast<int>(saved.members.size());
  if (saved.server != options.server || saved.servers != options.servers ||
      workers != options.workers) {
    return mismatch("it belongs to server " + std::to_string(saved.server) + " of " +
                    std::to_string(saved.servers) + " with " + std::to_string(workers) +
                    " workers, and this server is server " + std::to_string(options.server) +
                    " of " + std::to_string(options.servers) + " with " +
                    std::to_string(options.workers));
  }
  if (saved.coordinator.has_value() == options.has_coordinator) return {};
  return mismatch(saved.coordinator
                      ? "it belongs to a job with a coordinator, and this job has none"
                      : "it belongs to a job without a coordinator, and this job has one");
}

Result<std::unique_ptr<Shard>> make_shard(const SavedProtocol& saved) {
  auto shard = std::make_unique<Shard>(saved.model, saved.servers, saved.server,
                                       static_cast<int>(saved.members.size()));
  if (!shard->has_memory()) {
    return refused(ErrorCode::kSystem, "there is no memory for " +
                                           std::to_string(shard->held_bytes()) +
                                           " bytes of parameters and state");
  }
  CIRANDA_TRY(shard->restore(saved.shard));
  for (std::size_t i = 0; i < saved.members.size(); ++i) {
    shard->set_pushes(static_cast<Worker>(i), saved.members[i].pushes);
  }
  return shard;
}

}  // namespace ciranda::ps
