// Nobody gets in, or hears more than 32 random bytes, without what a client with the key would say.
#include "fuzz/input.h"

namespace ciranda::fuzz {
namespace {

void listen_to(Input& input, std::size_t piece) {
  ServerHandshake server(keys(), kServer, test::nonce_of(20));
  std::vector<std::byte> out;
  (void)feed(server, input.rest(), piece, out);
  CIRANDA_ASSERT(!server.session().has_value() && out.size() <= sizeof(Nonce));
}

void change_what_a_rank_says(Input& input, std::size_t piece) {
  ServerHandshake server(keys(), kServer, test::nonce_of(20));
  ClientHandshake client(keys(), kClient);
  const Nonce answer = test::nonce_of(20);  // what the server will say
  std::vector<std::byte> honest(client.hello().begin(), client.hello().end());
  CIRANDA_ASSERT(client.receive(answer, honest).ok());
  std::vector<std::byte> said = honest;
  input.patch(said);
  std::vector<std::byte> out;
  (void)feed(server, said, piece, out);
  CIRANDA_ASSERT(server.session().has_value() == (said == honest));
}

}  // namespace
}  // namespace ciranda::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace ciranda::fuzz;
  return play(Input(data, size), listen_to, change_what_a_rank_says);
}
