// What could break: somebody without the job's key is believed, or reads or changes what passes.
#include "core/wire/tls.h"

#include <gtest/gtest.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <deque>
#include <random>
#include <string>

#include "wire/keys.h"

namespace ciranda {
namespace {

using test::job_of;
using test::keys_of;
using test::secret_of;

using Bytes = std::vector<std::byte>;

Bytes random_bytes(std::size_t count, unsigned seed = 1) {
  std::mt19937 random(seed);
  Bytes bytes(count);
  for (std::byte& each : bytes) each = static_cast<std::byte>(random());
  return bytes;
}

Bytes take_outgoing(TlsSession& session) {
  const Bytes bytes(session.outgoing().begin(), session.outgoing().end());
  session.sent(bytes.size());
  return bytes;
}

Bytes sealed(TlsSession& session, std::span<const std::byte> bytes) {
  EXPECT_TRUE(session.seal(bytes).ok());
  return take_outgoing(session);
}

// All that `records` hold, given to the session in pieces of at most `piece_bytes`.
Result<Bytes> opened(TlsSession& session, std::span<const std::byte> records,
                     std::size_t piece_bytes = SIZE_MAX) {
  Bytes all;
  std::byte buffer[1000];
  while (!records.empty()) {
    std::span<const std::byte> piece = records.first(std::min(piece_bytes, records.size()));
    records = records.subspan(piece.size());
    for (;;) {
      auto count = session.open(piece, buffer);
      if (!count) return count.error();
      if (count.value() == 0) break;
      all.insert(all.end(), buffer, buffer + count.value());
    }
    EXPECT_TRUE(piece.empty());
  }
  return all;
}

// Both ends, whose bytes pass each other in pieces.
struct Ends {
  explicit Ends(const Tls& tls) : Ends(tls, tls) {}
  Ends(const Tls& of_client, const Tls& of_server, std::size_t piece_bytes = SIZE_MAX)
      : client(of_client.client().value()), server(of_server.server().value()) {
    Bytes to_client, to_server;
    for (bool more = true; more && client_status.ok() && server_status.ok();) {
      more = step(*client, client_status, to_client, to_server, piece_bytes);
      more = step(*server, server_status, to_server, to_client, piece_bytes) || more;
    }
    // What was said before an end.
    if (!server_status.ok() && client_status.ok()) {
      step(*client, client_status, to_client, to_server, SIZE_MAX);
    }
  }

  static bool step(TlsSession& session, Status& status, Bytes& in, Bytes& out,
                   std::size_t piece_bytes) {
    if (session.established()) return false;
    std::span<const std::byte> piece = std::span(in).first(std::min(piece_bytes, in.size()));
    status = session.shake_hands(piece);
    EXPECT_TRUE(piece.empty() || !status.ok());
    in.erase(in.begin(),
             in.begin() + static_cast<std::ptrdiff_t>(std::min(piece_bytes, in.size())));
    const Bytes said = take_outgoing(session);
    out.insert(out.end(), said.begin(), said.end());
    return !in.empty() || !said.empty();
  }
  bool established() const { return client->established() && server->established(); }

  std::unique_ptr<TlsSession> client, server;
  Status client_status, server_status;
};

std::unique_ptr<Tls> tls_of(int key = 1, int job = 2,
                            std::uint64_t records_per_key = Tls::kRecordsPerKey) {
  return Tls::create(secret_of(key), job_of(job), records_per_key).value();
}

bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

TEST(Tls, TheKeyIsProofEnough) {
  const auto tls = tls_of();
  for (const std::size_t piece_bytes : {std::size_t{1}, std::size_t{7}, SIZE_MAX}) {
    Ends ends(*tls, *tls, piece_bytes);
    ASSERT_TRUE(ends.established()) << piece_bytes;
    for (const std::size_t count : {1u, 48u, 16'384u, 16'385u, 100'000u}) {
      const Bytes said = random_bytes(count);
      const Bytes records = sealed(*ends.client, said);
      EXPECT_EQ(opened(*ends.server, records, piece_bytes).value(), said);
      EXPECT_EQ(opened(*ends.client, sealed(*ends.server, said), piece_bytes).value(), said);
      if (count >= 48) {
        EXPECT_EQ(std::search(records.begin(), records.end(), said.begin(), said.begin() + 16),
                  records.end());
      }
    }
  }
}

TEST(Tls, AnotherKeyOrJobIsRefusedByBothSides) {
  const auto tls = tls_of();
  const Ends other_key(*tls_of(9), *tls);
  EXPECT_FALSE(other_key.established());
  ASSERT_FALSE(other_key.server_status.ok());
  EXPECT_TRUE(contains(other_key.server_status.error().text, "does not hold this job's key"))
      << other_key.server_status.error().text;
  ASSERT_FALSE(other_key.client_status.ok());
  EXPECT_TRUE(contains(other_key.client_status.error().text, "it refused TLS"))
      << other_key.client_status.error().text;

  const Ends other_job(*tls_of(1, 9), *tls);
  ASSERT_FALSE(other_job.server_status.ok());
  EXPECT_TRUE(contains(other_job.server_status.error().text, "belongs to another job"));
  EXPECT_FALSE(other_job.client_status.ok());
}

TEST(Tls, EveryConnectionHasKeysOfItsOwn) {
  const auto tls = tls_of();
  const Bytes said = random_bytes(1000);
  Ends first(*tls), second(*tls);
  const Bytes overheard = sealed(*first.client, said);
  EXPECT_NE(overheard, sealed(*second.client, said));
  EXPECT_NE(overheard, sealed(*first.server, said)) << "nor can it be sent back";
  EXPECT_FALSE(opened(*second.server, overheard).ok());
}

TEST(Tls, EveryChangedByteEndsTheConnection) {
  const auto tls = tls_of();
  const Bytes said = random_bytes(40);
  for (std::size_t at = 0; at < said.size() + 22; ++at) {
    Ends ends(*tls);
    Bytes records = sealed(*ends.client, said);
    ASSERT_EQ(records.size(), said.size() + 22);
    records[at] ^= std::byte{1};
    records.resize(1000);  // where the length was changed, more must be there
    const auto result = opened(*ends.server, records);
    ASSERT_FALSE(result.ok()) << at;
    EXPECT_EQ(result.error().code, ErrorCode::kMalformed) << at;
    EXPECT_TRUE(contains(result.error().text, "changed on its way")) << at;
  }
}

TEST(Tls, RecordsThatAreRepeatedOrLeftOutEndTheConnection) {
  const auto tls = tls_of();
  const Bytes said = random_bytes(40);
  Ends repeated(*tls), left_out(*tls);
  const Bytes record = sealed(*repeated.client, said);
  ASSERT_TRUE(opened(*repeated.server, record).ok());
  EXPECT_FALSE(opened(*repeated.server, record).ok());
  (void)sealed(*left_out.client, said);
  EXPECT_FALSE(opened(*left_out.server, sealed(*left_out.client, said)).ok());
}

TEST(Tls, KeysAreRenewedBeforeTheyWearOut) {
  constexpr std::size_t kRecordBytes = 100 + 22, kUpdateBytes = 5 + 22;
  const auto tls = tls_of(1, 2, /*records_per_key=*/3);
  Ends ends(*tls);
  for (std::size_t i = 1; i <= 20; ++i) {
    const Bytes said = random_bytes(100, static_cast<unsigned>(i));
    const Bytes record = sealed(*ends.client, said);
    EXPECT_EQ(record.size(), kRecordBytes + (i % 3 == 0 ? kUpdateBytes : 0)) << i;
    ASSERT_EQ(opened(*ends.server, record).value(), said) << i;
  }
}

TEST(Tls, ARankWithoutTlsIsToldAndUnderstands) {
  const ConnectionKeys keys = keys_of();
  const auto server = tls_of()->server().value();
  ClientHandshake client(keys, {.from = 1, .to = 0});
  std::span<const std::byte> hello = client.hello();
  const Status judged = server->shake_hands(hello);
  ASSERT_FALSE(judged.ok());
  EXPECT_TRUE(contains(judged.error().text, kTlsForAllOrNone)) << judged.error().text;
  Bytes reply;
  const Status told = client.receive(take_outgoing(*server), reply);
  ASSERT_FALSE(told.ok());
  EXPECT_EQ(told.error().text, kTlsForAllOrNone);
  EXPECT_EQ(told.error().rank, 0);
  EXPECT_TRUE(reply.empty());
}

TEST(Tls, StrangersHearNothingOrAnAlert) {
  const auto tls = tls_of();
  for (const std::string_view said : {"GET / HTTP/1.1\r\n\r\n", "SSH-2.0-x\r\n", "x"}) {
    const auto server = tls->server().value();
    auto bytes = std::as_bytes(std::span(said));
    EXPECT_FALSE(server->shake_hands(bytes).ok()) << said;
    EXPECT_TRUE(server->outgoing().empty()) << said;
  }
  for (unsigned seed = 0; seed < 200; ++seed) {
    Bytes said = random_bytes(300, seed);
    std::ranges::copy(std::as_bytes(std::span("\x16\x03\x01\x01\x20\x01")).first(6), said.begin());
    const auto server = tls->server().value();
    std::span<const std::byte> bytes = said;
    EXPECT_FALSE(server->shake_hands(bytes).ok()) << "seed " << seed;
    EXPECT_LE(server->outgoing().size(), 7u) << "seed " << seed;
  }
}

TEST(Tls, AStrangerMayNotSayMuch) {
  const auto server = tls_of()->server().value();
  Bytes said(TlsSession::kHandshakeBytesMax + 1);
  // A record of 16 KiB: a hello of which more is to come.
  std::ranges::copy(std::as_bytes(std::span("\x16\x03\x01\x40\x00\x01\x00\x3f\xfc")).first(9),
                    said.begin());
  std::span<const std::byte> bytes = std::span(said).first(said.size() - 1);
  EXPECT_TRUE(server->shake_hands(bytes).ok());
  bytes = std::span(said).last(1);
  const Status status = server->shake_hands(bytes);
  ASSERT_FALSE(status.ok());
  EXPECT_TRUE(contains(status.error().text, "too many bytes")) << status.error().text;
}

// A certificate that anybody could make.
class SelfSigned {
 public:
  SelfSigned() : key_(EVP_EC_gen("P-256")), certificate_(X509_new()) {
    X509_gmtime_adj(X509_getm_notBefore(certificate_), 0);
    X509_gmtime_adj(X509_getm_notAfter(certificate_), 60);
    X509_set_pubkey(certificate_, key_);
    EXPECT_GT(X509_sign(certificate_, key_, EVP_sha256()), 0);
  }
  ~SelfSigned() {
    X509_free(certificate_);
    EVP_PKEY_free(key_);
  }
  void use(SSL* ssl) const {
    EXPECT_EQ(SSL_use_certificate(ssl, certificate_), 1);
    EXPECT_EQ(SSL_use_PrivateKey(ssl, key_), 1);
  }

 private:
  EVP_PKEY* key_;
  X509* certificate_;
};

TEST(Tls, ACertificateIsNoProof) {
  const SelfSigned self_signed;
  const std::unique_ptr<SSL_CTX, void (*)(SSL_CTX*)> context(SSL_CTX_new(TLS_method()),
                                                             SSL_CTX_free);
  const std::unique_ptr<SSL, void (*)(SSL*)> server(SSL_new(context.get()), SSL_free);
  self_signed.use(server.get());
  BIO* const in = BIO_new(BIO_s_mem());
  BIO* const out = BIO_new(BIO_s_mem());
  SSL_set_bio(server.get(), in, out);
  SSL_set_accept_state(server.get());
  const auto tls = tls_of();
  const auto client = tls->client().value();
  std::span<const std::byte> nothing;
  ASSERT_TRUE(client->shake_hands(nothing).ok());
  const Bytes hello = take_outgoing(*client);
  ASSERT_EQ(BIO_write(in, hello.data(), static_cast<int>(hello.size())),
            static_cast<int>(hello.size()));
  EXPECT_LT(SSL_do_handshake(server.get()), 1);
  char* said = nullptr;
  const long bytes = BIO_get_mem_data(out, &said);
  ASSERT_GT(bytes, 100) << "the server went on with its certificate";
  auto answer = std::as_bytes(std::span(said, static_cast<std::size_t>(bytes)));
  const Status status = client->shake_hands(answer);
  ASSERT_FALSE(status.ok());
  EXPECT_FALSE(client->established());
  EXPECT_TRUE(contains(status.error().text, "does not prove this job's key"))
      << status.error().text;
}

TEST(Tls, AForkedChildHasNoKey) {
  const auto tls = tls_of();
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const auto session = tls->client();
    ::_exit(!session.ok() && session.error().code == ErrorCode::kForked ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

}  // namespace
}  // namespace ciranda
