#pragma once

#include <array>

#include "core/base/secret.h"
#include "core/wire/handshake.h"

// Keys that are not secret, for tests.
namespace ciranda::test {

inline Secret secret_of(int fill) {
  std::array<std::byte, Secret::kBytes> bytes;
  bytes.fill(static_cast<std::byte>(fill));
  return Secret::take(bytes).value();
}

inline JobId job_of(int fill) {
  JobId job;
  job.fill(static_cast<std::byte>(fill));
  return job;
}

inline ConnectionKeys keys_of(int key = 1, int job = 2, Epoch epoch = 3) {
  return ConnectionKeys::derive(secret_of(key), job_of(job), epoch).value();
}

// The same for connections through TLS.
inline ConnectionKeys tls_keys_of(int key = 1, int job = 2, Epoch epoch = 3) {
  ConnectionKeys keys = keys_of(key, job, epoch);
  keys.tls = Tls::create(secret_of(key), keys.job).value();
  return keys;
}

inline Nonce nonce_of(int fill) {
  Nonce nonce;
  nonce.fill(static_cast<std::byte>(fill));
  return nonce;
}

}  // namespace ciranda::test
