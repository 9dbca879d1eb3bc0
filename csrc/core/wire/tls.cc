#include "core/wire/tls.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>

#include <algorithm>
#include <cstring>
#include <string>

namespace ciranda {
namespace {

constexpr std::string_view kKeyLabel = "ciranda tls";
constexpr const char* kSuite = "TLS_AES_128_GCM_SHA256";
constexpr unsigned char kSuiteNumber[] = {0x13, 0x01};
// Each side sends a key share of the first group alone. The second is for machines without it.
constexpr const char* kGroups = "X25519:P-256";
// A TLS record begins with its type. kOurMagic begins the hello of a rank without TLS.
constexpr std::byte kAlertRecord{21};
constexpr std::byte kHandshakeRecord{22};
constexpr std::byte kOurMagic{0xc1};

const unsigned char* raw(std::span<const std::byte> bytes) {
  return reinterpret_cast<const unsigned char*>(bytes.data());
}

// Returns OpenSSL's own text for its last error, which is good enough for errors that should not
// happen.
std::string reason() {
  const char* text = ERR_reason_error_string(ERR_peek_error());
  return text != nullptr ? text : "no reason given";
}

bool was_an_alert(unsigned long error) {
  return ERR_GET_LIB(error) == ERR_LIB_SSL && ERR_GET_REASON(error) >= SSL_AD_REASON_OFFSET;
}

Error tls_refusal(std::string text) {
  return {.code = ErrorCode::kInvalidArgument, .text = std::move(text)};
}

}  // namespace

// The callbacks that OpenSSL calls.
struct TlsCallbacks {
  static TlsSession& session_of(const SSL* ssl) {
    return *static_cast<TlsSession*>(SSL_get_app_data(ssl));
  }

  // The client offers the job's key.
  static int use_session(SSL* ssl, const EVP_MD*, const unsigned char** identity,
                         std::size_t* identity_bytes, SSL_SESSION** session) {
    const Tls& tls = session_of(ssl).tls_;
    *session = tls.known_session(ssl);
    *identity = raw(tls.job_);
    *identity_bytes = tls.job_.size();
    return *session != nullptr ? 1 : 0;
  }

  // The server looks up the key that the client names.
  static int find_session(SSL* ssl, const unsigned char* identity, std::size_t identity_bytes,
                          SSL_SESSION** session) {
    TlsSession& self = session_of(ssl);
    const auto named = std::as_bytes(std::span(identity, identity_bytes));
    self.is_of_another_job_ = !std::ranges::equal(named, self.tls_.job_);
    *session = self.is_of_another_job_ ? nullptr : self.tls_.known_session(ssl);
    return *session != nullptr ? 1 : 0;
  }

  static int read(BIO* bio, char* into, int size) {
    TlsSession& self = *static_cast<TlsSession*>(BIO_get_data(bio));
    BIO_clear_retry_flags(bio);
    if (self.input_ == nullptr || self.input_->empty()) {
      BIO_set_retry_read(bio);
      return -1;
    }
    const std::size_t bytes = std::min(static_cast<std::size_t>(size), self.input_->size());
    std::memcpy(into, self.input_->data(), bytes);
    *self.input_ = self.input_->subspan(bytes);
    return static_cast<int>(bytes);
  }

  static int write(BIO* bio, const char* from, int size) {
    TlsSession& self = *static_cast<TlsSession*>(BIO_get_data(bio));
    const auto bytes = std::as_bytes(std::span(from, static_cast<std::size_t>(size)));
    self.outgoing_.insert(self.outgoing_.end(), bytes.begin(), bytes.end());
    return size;
  }

  static long control(BIO*, int command, long, void*) { return command == BIO_CTRL_FLUSH ? 1 : 0; }

  // The method is created once and kept. OpenSSL takes a non-const pointer but changes nothing.
  static BIO_METHOD* bytes_in_and_out() {
    // NOLINTNEXTLINE(cppcoreguidelines-avoid-non-const-global-variables)
    static BIO_METHOD* const kMethod = [] {
      BIO_METHOD* method = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "ciranda");
      if (method == nullptr) return method;
      BIO_meth_set_read(method, read);
      BIO_meth_set_write(method, write);
      BIO_meth_set_ctrl(method, control);
      return method;
    }();
    return kMethod;
  }
};

// -------------------------------------------------------------------------------------------
// The context of a job

Tls::Tls(Secret key, std::span<const std::byte> job, std::uint64_t records_per_key)
    : key_(std::move(key)),
      job_(job.begin(), job.end()),
      records_per_key_(records_per_key),
      context_(SSL_CTX_new(TLS_method())) {}

Tls::~Tls() {
  SSL_CTX_free(context_);
}

// Sets every option, because the machine's OpenSSL configuration may have changed any of them.
bool Tls::configure() {
  if (context_ == nullptr || TlsCallbacks::bytes_in_and_out() == nullptr) return false;
  SSL_CTX_set_options(context_, SSL_OP_NO_TICKET);
  SSL_CTX_clear_options(context_, SSL_OP_ALLOW_NO_DHE_KEX | SSL_OP_ENABLE_MIDDLEBOX_COMPAT);
  SSL_CTX_set_session_cache_mode(context_, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_psk_use_session_callback(context_, TlsCallbacks::use_session);
  SSL_CTX_set_psk_find_session_callback(context_, TlsCallbacks::find_session);
  return SSL_CTX_set_min_proto_version(context_, TLS1_3_VERSION) == 1 &&
         SSL_CTX_set_max_proto_version(context_, TLS1_3_VERSION) == 1 &&
         SSL_CTX_set_ciphersuites(context_, kSuite) == 1 &&
         SSL_CTX_set1_groups_list(context_, kGroups) == 1 &&
         SSL_CTX_set_num_tickets(context_, 0) == 1;
}

Result<std::unique_ptr<Tls>> Tls::create(const Secret& job_key, std::span<const std::byte> job,
                                         std::uint64_t records_per_key) {
  CIRANDA_ASSERT(!job.empty() && records_per_key > 0 && records_per_key <= kRecordsPerKey);
  auto key = job_key.derive(job, std::as_bytes(std::span(kKeyLabel)));
  if (!key) return key.error();
  ERR_clear_error();
  std::unique_ptr<Tls> tls(new Tls(std::move(key).value(), job, records_per_key));
  if (tls->configure()) return tls;
  return Error{.code = ErrorCode::kUnsupported,
               .text = "this machine's OpenSSL does not offer TLS 1.3 with " + std::string(kSuite) +
                       " (" + reason() + "); check its configuration (OPENSSL_CONF)"};
}

Result<std::unique_ptr<TlsSession>> Tls::client() const {
  return session(/*is_server=*/false);
}

Result<std::unique_ptr<TlsSession>> Tls::server() const {
  return session(/*is_server=*/true);
}

Result<std::unique_ptr<TlsSession>> Tls::session(bool is_server) const {
  if (!key_.intact()) {
    return Error{.code = ErrorCode::kForked, .text = "a forked child has no key of the job"};
  }
  std::unique_ptr<TlsSession> session(new TlsSession(*this, SSL_new(context_), is_server));
  if (session->attach()) return session;
  return Error{.code = ErrorCode::kSystem, .text = "OpenSSL has no memory for a connection"};
}

// Returns the job's key as an OpenSSL session, or null without memory. SSL_SESSION_free wipes the
// copy of the key.
SSL_SESSION* Tls::known_session(SSL* ssl) const {
  std::unique_ptr<SSL_SESSION, void (*)(SSL_SESSION*)> known(SSL_SESSION_new(), SSL_SESSION_free);
  if (known == nullptr ||
      SSL_SESSION_set1_master_key(known.get(), raw(key_.bytes()), Secret::kBytes) != 1 ||
      SSL_SESSION_set_cipher(known.get(), SSL_CIPHER_find(ssl, kSuiteNumber)) != 1 ||
      SSL_SESSION_set_protocol_version(known.get(), TLS1_3_VERSION) != 1) {
    return nullptr;
  }
  return known.release();
}

// -------------------------------------------------------------------------------------------
// A connection

TlsSession::TlsSession(const Tls& tls, SSL* ssl, bool is_server)
    : tls_(tls), records_per_key_(tls.records_per_key_), ssl_(ssl), is_server_(is_server) {}

TlsSession::~TlsSession() {
  SSL_free(ssl_);
}

bool TlsSession::attach() {
  BIO* const bio = ssl_ != nullptr ? BIO_new(TlsCallbacks::bytes_in_and_out()) : nullptr;
  if (bio == nullptr) return false;
  BIO_set_data(bio, this);
  BIO_set_init(bio, 1);
  SSL_set_bio(ssl_, bio, bio);
  SSL_set_app_data(ssl_, this);
  if (is_server_) {
    SSL_set_accept_state(ssl_);
  } else {
    SSL_set_connect_state(ssl_);
  }
  return true;
}

Status TlsSession::shake_hands(std::span<const std::byte>& input) {
  CIRANDA_ASSERT(!established_);
  if (heard_ == 0 && !input.empty()) CIRANDA_TRY(judge_first_byte(input.front()));
  const std::size_t before = input.size();
  ERR_clear_error();
  input_ = &input;
  const int result = SSL_do_handshake(ssl_);
  input_ = nullptr;
  heard_ += before - input.size();
  if (result == 1) {
    // OpenSSL counts a pre-shared key as a reused session. Any other proof is refused.
    if (SSL_session_reused(ssl_) != 1) {
      return tls_refusal("the process there speaks TLS, but does not prove this job's key");
    }
    established_ = true;
    return {};
  }
  if (SSL_get_error(ssl_, result) != SSL_ERROR_WANT_READ) return refused();
  if (heard_ > kHandshakeBytesMax)
    return tls_refusal("it sent too many bytes before it proved the job's key");
  return {};
}

Status TlsSession::judge_first_byte(std::byte first) {
  if (first == kHandshakeRecord || (!is_server_ && first == kAlertRecord)) return {};
  if (is_server_ && first == kOurMagic) {
    outgoing_.assign(kTlsRefusal.begin(), kTlsRefusal.end());
    return tls_refusal("the caller speaks as ranks do without TLS: " +
                       std::string(kTlsForAllOrNone));
  }
  return tls_refusal("its first bytes are not TLS's");
}

Error TlsSession::refused() const {
  const unsigned long error = ERR_peek_error();
  if (is_server_) {
    if (is_of_another_job_) return tls_refusal("a caller belongs to another job");
    if (ERR_GET_REASON(error) == SSL_R_BINDER_DOES_NOT_VERIFY) {
      return tls_refusal("a caller does not hold this job's key");
    }
    return tls_refusal("a caller failed the TLS handshake of a rank: " + reason());
  }
  if (was_an_alert(error)) {
    return tls_refusal(
        "it refused TLS: it may belong to another job or hold another key; its log says which");
  }
  return tls_refusal("the process there speaks TLS, but is not a rank of this job: " + reason());
}

Status TlsSession::seal(std::span<const std::byte> bytes) {
  CIRANDA_ASSERT(established_);
  while (!bytes.empty()) {
    const auto record = bytes.first(std::min<std::size_t>(bytes.size(), SSL3_RT_MAX_PLAIN_LENGTH));
    ERR_clear_error();
    const bool worn_out = ++records_ % records_per_key_ == 0;
    if ((worn_out && SSL_key_update(ssl_, SSL_KEY_UPDATE_NOT_REQUESTED) != 1) ||
        SSL_write(ssl_, record.data(), static_cast<int>(record.size())) <= 0) {
      return Error{.code = ErrorCode::kSystem, .text = "OpenSSL could not encrypt: " + reason()};
    }
    bytes = bytes.subspan(record.size());
  }
  return {};
}

Result<std::size_t> TlsSession::open(std::span<const std::byte>& input, std::span<std::byte> into) {
  CIRANDA_ASSERT(established_ && !into.empty());
  std::size_t opened = 0;
  ERR_clear_error();
  input_ = &input;
  const int result = SSL_read_ex(ssl_, into.data(), into.size(), &opened);
  input_ = nullptr;
  if (result == 1) return opened;
  switch (SSL_get_error(ssl_, result)) {
    case SSL_ERROR_WANT_READ:
      return std::size_t{0};
    case SSL_ERROR_ZERO_RETURN:
      return Error{.code = ErrorCode::kRankLost, .text = "the peer closed the connection"};
    default:
      return Error{.code = ErrorCode::kMalformed,
                   .text = "what came was changed on its way: " + reason()};
  }
}

void TlsSession::sent(std::size_t bytes) {
  CIRANDA_ASSERT(bytes <= outgoing_.size() - sent_);
  sent_ += bytes;
  if (sent_ < outgoing_.size()) return;
  outgoing_.clear();
  sent_ = 0;
}

}  // namespace ciranda
