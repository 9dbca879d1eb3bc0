#include "core/base/secret.h"

#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/kdf.h>
#include <openssl/params.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <limits>
#include <memory>
#include <utility>

namespace ciranda {
namespace {

// The page holds the key and then this mark, which reads as zero once the kernel has wiped it: a
// key of 32 zeros must never pass for a secret.
constexpr std::size_t kPageBytes = 4096;
constexpr std::byte kIntact{0x5a};

// The algorithms are fetched once and kept: a search by name would cost more than the hash of a
// small frame. libcrypto counts references in them, so they are not const; nothing else changes.
// NOLINTBEGIN(cppcoreguidelines-avoid-non-const-global-variables)
EVP_MAC* hmac() {
  static EVP_MAC* const kHmac = EVP_MAC_fetch(nullptr, OSSL_MAC_NAME_HMAC, nullptr);
  return kHmac;
}
EVP_KDF* hkdf() {
  static EVP_KDF* const kHkdf = EVP_KDF_fetch(nullptr, OSSL_KDF_NAME_HKDF, nullptr);
  return kHkdf;
}
EVP_CIPHER* aes_gcm() {
  static EVP_CIPHER* const kAesGcm = EVP_CIPHER_fetch(nullptr, "AES-128-GCM", nullptr);
  return kAesGcm;
}
// NOLINTEND(cppcoreguidelines-avoid-non-const-global-variables)

OSSL_PARAM sha256() {
  static char name[] = "SHA256";
  return OSSL_PARAM_construct_utf8_string(OSSL_ALG_PARAM_DIGEST, name, 0);
}

// libcrypto reads these parameters and never writes them.
OSSL_PARAM octets(const char* key, std::span<const std::byte> bytes) {
  return OSSL_PARAM_construct_octet_string(key, const_cast<std::byte*>(bytes.data()), bytes.size());
}

const unsigned char* raw(std::span<const std::byte> bytes) {
  return reinterpret_cast<const unsigned char*>(bytes.data());
}

}  // namespace

Result<Secret> Secret::take(std::span<std::byte, kBytes> bytes) {
  void* page =
      ::mmap(nullptr, kPageBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) {
    const int reason = errno;
    wipe(bytes);
    return Error::from_errno("cannot map a page for a key", reason);
  }
  // Old kernels know only MADV_DONTDUMP. A key is usable without either.
  (void)::madvise(page, kPageBytes, MADV_DONTDUMP);
  (void)::madvise(page, kPageBytes, MADV_WIPEONFORK);
  Secret secret(static_cast<std::byte*>(page));
  std::memcpy(secret.page_, bytes.data(), kBytes);
  secret.page_[kBytes] = kIntact;
  wipe(bytes);
  return secret;
}

Secret::Secret(Secret&& other) noexcept : page_(std::exchange(other.page_, nullptr)) {}

Secret& Secret::operator=(Secret&& other) noexcept {
  if (this != &other) {
    drop();
    page_ = std::exchange(other.page_, nullptr);
  }
  return *this;
}

Secret::~Secret() {
  drop();
}

void Secret::drop() {
  if (page_ == nullptr) return;
  wipe({page_, kBytes + 1});
  ::munmap(std::exchange(page_, nullptr), kPageBytes);
}

bool Secret::intact() const {
  return page_ != nullptr && page_[kBytes] == kIntact;
}

std::span<const std::byte, Secret::kBytes> Secret::bytes() const {
  CIRANDA_ASSERT(intact());
  return std::span<const std::byte, kBytes>(page_, kBytes);
}

Result<Secret> Secret::derive(std::span<const std::byte> salt,
                              std::span<const std::byte> info) const {
  // Every use of a key begins here, so a libcrypto without its algorithms is found here.
  if (hkdf() == nullptr || hmac() == nullptr || aes_gcm() == nullptr) {
    return Error{.code = ErrorCode::kUnsupported,
                 .text =
                     "this machine's libcrypto offers no HKDF, no HMAC with SHA-256 or no "
                     "AES-128-GCM; check its configuration (OPENSSL_CONF) and install OpenSSL 3"};
  }
  const std::unique_ptr<EVP_KDF_CTX, void (*)(EVP_KDF_CTX*)> context(EVP_KDF_CTX_new(hkdf()),
                                                                     EVP_KDF_CTX_free);
  const OSSL_PARAM parameters[] = {sha256(), octets(OSSL_KDF_PARAM_KEY, bytes()),
                                   octets(OSSL_KDF_PARAM_SALT, salt),
                                   octets(OSSL_KDF_PARAM_INFO, info), OSSL_PARAM_construct_end()};
  std::array<std::byte, kBytes> derived;
  if (context == nullptr ||
      EVP_KDF_derive(context.get(), reinterpret_cast<unsigned char*>(&derived), kBytes,
                     parameters) != 1) {
    return Error{.code = ErrorCode::kSystem, .text = "libcrypto could not derive a key"};
  }
  return take(derived);
}

MacTag hmac_sha256(const Secret& key, std::initializer_list<std::span<const std::byte>> pieces) {
  const std::unique_ptr<EVP_MAC_CTX, void (*)(EVP_MAC_CTX*)> context(EVP_MAC_CTX_new(hmac()),
                                                                     EVP_MAC_CTX_free);
  const OSSL_PARAM parameters[] = {sha256(), OSSL_PARAM_construct_end()};
  // This fails only without memory: derive() has found the algorithm.
  CIRANDA_ASSERT(context != nullptr &&
                 EVP_MAC_init(context.get(), raw(key.bytes()), Secret::kBytes, parameters) == 1);
  for (const auto piece : pieces) {
    CIRANDA_ASSERT(EVP_MAC_update(context.get(), raw(piece), piece.size()) == 1);
  }
  MacTag tag;
  std::size_t written = 0;
  CIRANDA_ASSERT(EVP_MAC_final(context.get(), reinterpret_cast<unsigned char*>(tag.data()),
                               &written, tag.size()) == 1);
  CIRANDA_ASSERT(written == tag.size());
  return tag;
}

void MessageMac::Free::operator()(evp_cipher_ctx_st* context) const {
  EVP_CIPHER_CTX_free(context);
}

MessageMac::MessageMac(const Secret& key, std::string_view label) : context_(EVP_CIPHER_CTX_new()) {
  MacTag derived = hmac_sha256(key, {std::as_bytes(std::span(label))});
  // This fails only without memory: derive() has found the algorithm.
  CIRANDA_ASSERT(context_ != nullptr && EVP_EncryptInit_ex2(context_.get(), aes_gcm(), raw(derived),
                                                            nullptr, nullptr) == 1);
  wipe(derived);
}

MessageMac::Tag MessageMac::tag(std::uint64_t number, std::span<const std::byte> message) {
  const Piece whole = message;
  return tag(number, std::span(&whole, 1));
}

// GMAC is GCM that encrypts nothing and has the message as its additional data.
MessageMac::Tag MessageMac::tag(std::uint64_t number, std::span<const Piece> pieces) {
  std::array<unsigned char, 12> nonce{};
  for (std::size_t i = 0; i < sizeof number; ++i) {
    nonce[4 + i] = static_cast<unsigned char>(number >> 8 * (7 - i));
  }
  Tag tag;
  int ignored = 0;
  EVP_CIPHER_CTX* const context = context_.get();
  CIRANDA_ASSERT(EVP_EncryptInit_ex2(context, nullptr, nullptr, nonce.data(), nullptr) == 1);
  for (const Piece& piece : pieces) {
    CIRANDA_ASSERT(piece.size() <= std::numeric_limits<int>::max() &&
                   EVP_EncryptUpdate(context, nullptr, &ignored, raw(piece),
                                     static_cast<int>(piece.size())) == 1);
  }
  CIRANDA_ASSERT(EVP_EncryptFinal_ex(context, nullptr, &ignored) == 1 &&
                 EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_AEAD_GET_TAG, static_cast<int>(tag.size()),
                                     tag.data()) == 1);
  return tag;
}

Digest sha256(std::span<const std::byte> bytes) {
  Digest digest;
  std::size_t written = 0;
  // This fails only without memory.
  CIRANDA_ASSERT(EVP_Q_digest(nullptr, "SHA256", nullptr, bytes.data(), bytes.size(),
                              reinterpret_cast<unsigned char*>(digest.data()), &written) == 1 &&
                 written == digest.size());
  return digest;
}

bool equal_in_constant_time(std::span<const std::byte> a, std::span<const std::byte> b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

void wipe(std::span<std::byte> bytes) {
  OPENSSL_cleanse(bytes.data(), bytes.size());
}

}  // namespace ciranda
