// Nobody passes for a peer without what a server with the key would answer.
#include "fuzz/input.h"

namespace ciranda::fuzz {
namespace {

void listen_to(Input& input, std::size_t piece) {
  ClientHandshake client(keys(), kClient);
  std::vector<std::byte> out;
  (void)feed(client, input.rest(), piece, out);
  CIRANDA_ASSERT(!client.session().has_value() && out.size() <= kProofBytes);
}

void change_what_a_rank_answers(Input& input, std::size_t piece) {
  ServerHandshake server(keys(), kServer, test::nonce_of(20));
  ClientHandshake honest_client(keys(), kClient);
  std::vector<std::byte> honest;
  std::vector<std::byte> proof;
  CIRANDA_ASSERT(feed(server, honest_client.hello(), kHelloBytes, honest));
  CIRANDA_ASSERT(feed(honest_client, honest, honest.size(), proof));
  CIRANDA_ASSERT(feed(server, proof, proof.size(), honest));
  std::vector<std::byte> said = honest;
  input.patch(said);
  ClientHandshake client(keys(), kClient);
  std::vector<std::byte> out;
  (void)feed(client, said, piece, out);
  CIRANDA_ASSERT(client.session().has_value() == (said == honest));
}

}  // namespace
}  // namespace ciranda::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace ciranda::fuzz;
  return play(Input(data, size), listen_to, change_what_a_rank_answers);
}
