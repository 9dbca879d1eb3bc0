#include "core/wire/connection_keys.h"

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "core/wire/codec.h"

namespace ciranda {
namespace {

// The cookie's message is shorter than any proof's, so a cookie is never a valid proof.
constexpr std::string_view kCookieLabel = "ciranda cookie";

std::span<const std::byte> text_bytes(std::string_view text) {
  return std::as_bytes(std::span(text));
}

std::vector<std::byte> info_of(Purpose purpose, Epoch epoch) {
  std::vector<std::byte> info;
  Writer writer(info);
  writer.text("ciranda channel ");
  writer.text(purpose_name(purpose));
  writer.u64(epoch);
  return info;
}

}  // namespace

std::string_view purpose_name(Purpose purpose) {
  constexpr std::string_view kNames[kPurposeCount] = {"control", "data", "rendezvous", "service"};
  return kNames[static_cast<std::size_t>(purpose)];
}

std::string caller_name(Purpose purpose, Rank caller) {
  return (purpose == Purpose::kService ? "worker " : "rank ") + std::to_string(caller);
}

std::string called_name(Purpose purpose, Rank called) {
  return (purpose == Purpose::kService ? "server " : "rank ") + std::to_string(called);
}

Result<ConnectionKeys> ConnectionKeys::derive(const Secret& job_key, const JobId& job,
                                              Epoch epoch) {
  const auto key_of = [&](Purpose purpose) { return job_key.derive(job, info_of(purpose, epoch)); };
  auto control = key_of(Purpose::kControl);
  if (!control) return control.error();
  auto data = key_of(Purpose::kData);
  if (!data) return data.error();
  auto rendezvous = key_of(Purpose::kRendezvous);
  if (!rendezvous) return rendezvous.error();
  auto service = key_of(Purpose::kService);
  if (!service) return service.error();
  return ConnectionKeys{.job = job,
                        .epoch = epoch,
                        .keys = {std::move(control).value(), std::move(data).value(),
                                 std::move(rendezvous).value(), std::move(service).value()}};
}

Result<std::unique_ptr<ConnectionKeys>> ConnectionKeys::of_job(const Secret& job_key,
                                                               const std::string& job_id,
                                                               Epoch epoch, bool with_tls) {
  const MacTag tag = hmac_sha256(job_key, {text_bytes(job_id)});
  JobId job;
  std::ranges::copy(std::span(tag).first<sizeof job>(), job.begin());
  auto keys = derive(job_key, job, epoch);
  if (!keys) return keys.error();
  if (with_tls) {
    auto tls = Tls::create(job_key, job);
    if (!tls) return tls.error();
    keys.value().tls = std::move(tls).value();
  }
  return std::make_unique<ConnectionKeys>(std::move(keys).value());
}

Status ConnectionKeys::narrow_to(const Secret& job_key, const MeetingId& meeting) {
  std::vector<std::byte> info = info_of(Purpose::kData, epoch);
  info.insert(info.end(), meeting.begin(), meeting.end());
  auto data = job_key.derive(job, info);
  if (!data) return data.error();
  keys[static_cast<std::size_t>(Purpose::kData)] = std::move(data).value();
  return {};
}

Cookie cookie_of(const ConnectionKeys& keys, Rank to) {
  std::vector<std::byte> whose;
  Writer(whose).u32(static_cast<std::uint32_t>(to));
  const MacTag tag = hmac_sha256(keys.of(Purpose::kControl), {text_bytes(kCookieLabel), whose});
  Cookie cookie;
  std::ranges::copy(std::span(tag).first<cookie.size()>(), cookie.begin());
  return cookie;
}

}  // namespace ciranda
