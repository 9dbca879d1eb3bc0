#include "core/wire/handshake.h"

#include <algorithm>
#include <string>

#include "core/wire/codec.h"

namespace ciranda {
namespace {

// The first byte is not ASCII, so a peer that speaks a text protocol gives up at once.
constexpr std::array<std::byte, 8> kMagic = {std::byte{0xc1}, std::byte{'c'}, std::byte{'i'},
                                             std::byte{'r'},  std::byte{'a'}, std::byte{'n'},
                                             std::byte{'d'},  std::byte{'a'}};

// The labels of the two proofs have one length, so neither can run into the bytes behind it. A
// proof of one side is never a valid proof of the other.
constexpr std::string_view kClientLabel = "ciranda client proof";
constexpr std::string_view kServerLabel = "ciranda server proof";
static_assert(kClientLabel.size() == kServerLabel.size());
constexpr std::string_view kToServer = "ciranda client to server";
constexpr std::string_view kToClient = "ciranda server to client";

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

std::string hex(std::span<const std::byte> bytes) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  for (const std::byte byte : bytes) {
    text += kDigits[std::to_integer<std::size_t>(byte >> 4)];
    text += kDigits[std::to_integer<std::size_t>(byte & std::byte{15})];
  }
  return text;
}

std::string range(Versions versions) {
  return std::to_string(versions.min) + " to " + std::to_string(versions.max);
}

Error refusal(std::string text, Rank rank = kNoRank) {
  return {.code = ErrorCode::kInvalidArgument, .text = std::move(text), .rank = rank};
}

std::array<std::byte, kHelloBytes> encoded(const Hello& hello) {
  std::vector<std::byte> out;
  Writer writer(out);
  writer.bytes(kMagic);
  writer.u16(hello.versions.min);
  writer.u16(hello.versions.max);
  writer.u8(static_cast<std::uint8_t>(hello.purpose));
  writer.u8(0);
  writer.u16(hello.stream);
  writer.bytes(hello.job);
  writer.u32(static_cast<std::uint32_t>(hello.from));
  writer.u32(static_cast<std::uint32_t>(hello.to));
  writer.u64(hello.epoch);
  writer.u64(hello.incarnation);
  writer.bytes(hello.nonce);
  CIRANDA_ASSERT(out.size() < kHelloBytes);
  std::array<std::byte, kHelloBytes> fixed{};
  std::ranges::copy(out, fixed.begin());
  return fixed;
}

Rank read_rank(Reader& reader, const char* field) {
  const std::uint32_t rank = reader.u32(field);
  if (rank >= kRanksMax) reader.fail(field, "is out of range");
  return static_cast<Rank>(rank);
}

Result<Hello> decoded(std::span<const std::byte> bytes) {
  CIRANDA_ASSERT(bytes.size() == kHelloBytes);
  Reader reader(bytes);
  reader.text("magic", kMagic.size());  // receive() has checked it
  Hello hello;
  hello.versions = {.min = reader.u16("version_min"), .max = reader.u16("version_max")};
  hello.purpose = static_cast<Purpose>(reader.u8("purpose", kPurposeCount - 1));
  reader.zeros("reserved", 1);
  hello.stream = reader.u16("stream");
  if (hello.stream >= kPairStreamsMax) reader.fail("stream", "is out of range");
  reader.bytes("job", hello.job);
  hello.from = read_rank(reader, "from");
  hello.to = read_rank(reader, "to");
  hello.epoch = reader.u64("epoch");
  hello.incarnation = reader.u64("incarnation");
  reader.bytes("nonce", hello.nonce);
  reader.zeros("padding", reader.remaining());
  if (!reader.ok()) {
    Error error = reader.error();
    error.text = "the caller's hello is malformed: " + error.text;
    return error;
  }
  return hello;
}

bool begins_like_ours(std::span<const std::byte> bytes) {
  const std::size_t size = std::min(bytes.size(), kMagic.size());
  return std::ranges::equal(bytes.first(size), std::span(kMagic).first(size));
}

// Returns the other protocol that begins with these bytes; empty if none is known.
std::string_view other_protocol(std::span<const std::byte> bytes) {
  struct Look {
    std::string_view first;
    std::string_view protocol;
  };
  constexpr Look kLooks[] = {{"GET ", "HTTP"}, {"POST", "HTTP"}, {"HEAD", "HTTP"},
                             {"PUT ", "HTTP"}, {"OPTI", "HTTP"}, {"PRI ", "HTTP"},
                             {"CONN", "HTTP"}, {"SSH-", "SSH"},  {"\x16\x03", "TLS"}};
  for (const auto& [first, protocol] : kLooks) {
    const auto prefix = bytes_of(first);
    if (bytes.size() >= prefix.size() && std::ranges::equal(bytes.first(prefix.size()), prefix)) {
      return protocol;
    }
  }
  return {};
}

Error not_ours(std::span<const std::byte> bytes) {
  const std::string_view protocol = other_protocol(bytes);
  std::string looks;
  if (!protocol.empty()) looks = ", they look like " + std::string(protocol);
  if (protocol == "TLS") looks += "; if it is a rank, " + std::string(kTlsForAllOrNone);
  return {.code = ErrorCode::kMalformed,
          .text = "the caller's first bytes are not ciranda's" + looks};
}

Status usable(const ConnectionKeys& keys) {
  if (keys.of(Purpose::kControl).intact()) return {};
  return Error{.code = ErrorCode::kForked,
               .text = "a forked child holds no key of the job; only the rank itself connects"};
}

MacTag client_proof(const Secret& key, std::span<const std::byte> hello, const Nonce& server) {
  return hmac_sha256(key, {bytes_of(kClientLabel), hello, server});
}

MacTag server_proof(const Secret& key, std::span<const std::byte> hello, const Nonce& server,
                    const MacTag& client, std::span<const std::byte> welcome) {
  return hmac_sha256(key, {bytes_of(kServerLabel), hello, server, client, welcome});
}

struct SessionKeys {
  Secret to_server;
  Secret to_client;
};
Result<SessionKeys> session_keys(const Secret& key, const Nonce& client, const Nonce& server) {
  std::array<std::byte, 2 * sizeof(Nonce)> salt;
  std::ranges::copy(server, std::ranges::copy(client, salt.begin()).out);
  auto to_server = key.derive(salt, bytes_of(kToServer));
  if (!to_server) return to_server.error();
  auto to_client = key.derive(salt, bytes_of(kToClient));
  if (!to_client) return to_client.error();
  return SessionKeys{std::move(to_server).value(), std::move(to_client).value()};
}

}  // namespace

Status check_not_another_protocol(std::span<const std::byte> bytes) {
  if (other_protocol(bytes).empty()) return {};
  return not_ours(bytes);
}

void Intake::expect(std::size_t size) {
  CIRANDA_ASSERT(size <= buffer_.size());
  size_ = size;
  have_ = 0;
}

void Intake::take(std::span<const std::byte> bytes) {
  CIRANDA_ASSERT(bytes.size() <= missing());
  std::ranges::copy(bytes, buffer_.begin() + static_cast<std::ptrdiff_t>(have_));
  have_ += bytes.size();
}

ServerHandshake::ServerHandshake(const ConnectionKeys& keys, const Side& side, const Nonce& nonce)
    : keys_(keys), side_(side), nonce_(nonce) {
  input_.expect(kHelloBytes);
}

Status ServerHandshake::receive(std::span<const std::byte> bytes, std::vector<std::byte>& out) {
  input_.take(bytes);
  Status status = hello_.has_value() || begins_like_ours(input_.bytes())
                      ? Status()
                      : Status(not_ours(input_.bytes()));
  if (status.ok() && wanted() == 0) status = hello_.has_value() ? take_proof(out) : take_hello(out);
  if (!status.ok()) input_.expect(0);
  return status;
}

Status ServerHandshake::take_hello(std::vector<std::byte>& out) {
  auto hello = decoded(input_.bytes());
  if (!hello) return hello.error();
  CIRANDA_TRY(judge(hello.value()));
  hello_ = hello.value();
  std::ranges::copy(input_.bytes(), hello_bytes_.begin());
  Writer(out).bytes(nonce_);
  input_.expect(kProofBytes);
  return {};
}

Status ServerHandshake::judge(const Hello& hello) const {
  const std::string who = "a caller that says it is " + caller_name(hello.purpose, hello.from);
  const Purpose own = side_.is_server ? Purpose::kService : Purpose::kControl;
  const std::string self = called_name(own, side_.self);
  if (hello.job != keys_.job) {
    return refusal(who + " belongs to job " + hex(hello.job) + ", this is job " + hex(keys_.job));
  }
  if (hello.epoch != keys_.epoch) {
    return refusal(who + " comes from epoch " + std::to_string(hello.epoch) + ", this is epoch " +
                       std::to_string(keys_.epoch),
                   hello.from);
  }
  const bool wants_server = hello.purpose == Purpose::kService;
  if (hello.to != side_.self || wants_server != side_.is_server) {
    return refusal(who + " looks for " + called_name(hello.purpose, hello.to) + ", this is " +
                       self + "; two addresses are mixed up",
                   hello.from);
  }
  if (hello.from == side_.self && !side_.is_server) {
    return refusal(
        "a caller says it is " + self +
            ", which is this rank: this rank was started twice, or its own bytes came back",
        hello.from);
  }
  // A parameter server checks the worker's number after the handshake (Membership::check).
  if (hello.from >= side_.ranks && !side_.is_server) {
    return refusal(who + " is not one of this job's " + std::to_string(side_.ranks) +
                       " ranks; start every rank with the same size",
                   hello.from);
  }
  return {};
}

Status ServerHandshake::take_proof(std::vector<std::byte>& out) {
  CIRANDA_TRY(usable(keys_));
  const Secret& key = keys_.of(hello_->purpose);
  const MacTag client = client_proof(key, hello_bytes_, nonce_);
  if (!equal_in_constant_time(client, input_.bytes())) {
    return refusal("a caller that says it is " + caller_name(hello_->purpose, hello_->from) +
                   " does not hold this job's key, or replays recorded bytes");
  }
  auto session = session_keys(key, hello_->nonce, nonce_);
  if (!session) return session.error();
  const Versions theirs = hello_->versions;
  const bool understood = theirs.min <= side_.versions.max && theirs.max >= side_.versions.min;
  // If no version fits, the server's newest one tells the client why the connection ends.
  const std::uint16_t version =
      understood ? std::min(theirs.max, side_.versions.max) : side_.versions.max;
  std::vector<std::byte> welcome;
  Writer writer(welcome);
  writer.u64(version);
  writer.u64(side_.incarnation);
  Writer(out).bytes(welcome);
  Writer(out).bytes(server_proof(key, hello_bytes_, nonce_, client, welcome));
  input_.expect(0);
  if (!understood) {
    return Error{.code = ErrorCode::kUnsupported,
                 .text = caller_name(hello_->purpose, hello_->from) + " speaks protocol " +
                         range(theirs) + ", this side " + range(side_.versions) +
                         "; install the same ciranda on every host",
                 .rank = hello_->from};
  }
  session_.emplace(Session{.peer = hello_->from,
                           .peer_incarnation = hello_->incarnation,
                           .purpose = hello_->purpose,
                           .stream = hello_->stream,
                           .version = version,
                           .send_key = std::move(session.value().to_client),
                           .receive_key = std::move(session.value().to_server)});
  return {};
}

ClientHandshake::ClientHandshake(const ConnectionKeys& keys, const Hello& hello)
    : keys_(keys), hello_(hello) {
  CIRANDA_ASSERT(hello.from >= 0 && hello.to >= 0);
  CIRANDA_ASSERT(hello.from != hello.to || hello.purpose == Purpose::kService);
  CIRANDA_ASSERT(hello.stream < kPairStreamsMax);
  hello_.job = keys.job;
  hello_.epoch = keys.epoch;
  hello_bytes_ = encoded(hello_);
  input_.expect(sizeof(Nonce));
}

Status ClientHandshake::receive(std::span<const std::byte> bytes, std::vector<std::byte>& out) {
  input_.take(bytes);
  // A random nonce begins with these seven bytes with a probability of 2^-56.
  if (!server_nonce_.has_value() && std::ranges::equal(input_.bytes(), kTlsRefusal)) {
    return refusal(std::string(kTlsForAllOrNone), hello_.to);
  }
  if (wanted() > 0) return {};
  if (server_nonce_.has_value()) {
    Status status = take_welcome();
    input_.expect(0);
    return status;
  }
  CIRANDA_TRY(usable(keys_));
  server_nonce_.emplace();
  std::ranges::copy(input_.bytes(), server_nonce_->begin());
  proof_ = client_proof(keys_.of(hello_.purpose), hello_bytes_, *server_nonce_);
  Writer(out).bytes(proof_);
  input_.expect(kWelcomeBytes);
  return {};
}

Status ClientHandshake::take_welcome() {
  const std::span<const std::byte> welcome = input_.bytes().first(kWelcomeBytes - kProofBytes);
  const std::span<const std::byte> proof = input_.bytes().subspan(welcome.size());
  const Secret& key = keys_.of(hello_.purpose);
  if (!equal_in_constant_time(server_proof(key, hello_bytes_, *server_nonce_, proof_, welcome),
                              proof)) {
    return refusal("the process that answers as " + called_name(hello_.purpose, hello_.to) +
                       " does not hold this job's key",
                   hello_.to);
  }
  Reader reader(welcome);
  const std::uint64_t version = reader.u64("version");
  const Incarnation incarnation = reader.u64("incarnation");
  CIRANDA_ASSERT(reader.ok());
  if (version < hello_.versions.min || version > hello_.versions.max) {
    return Error{.code = ErrorCode::kUnsupported,
                 .text = called_name(hello_.purpose, hello_.to) + " speaks protocol " +
                         std::to_string(version) + ", this side " + range(hello_.versions) +
                         "; install the same ciranda on every host",
                 .rank = hello_.to};
  }
  auto session = session_keys(key, hello_.nonce, *server_nonce_);
  if (!session) return session.error();
  session_.emplace(Session{.peer = hello_.to,
                           .peer_incarnation = incarnation,
                           .purpose = hello_.purpose,
                           .stream = hello_.stream,
                           .version = static_cast<std::uint16_t>(version),
                           .send_key = std::move(session.value().to_server),
                           .receive_key = std::move(session.value().to_client)});
  return {};
}

}  // namespace ciranda
