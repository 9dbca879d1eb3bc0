// What could break: whoever sits between two ranks and flips, drops, repeats, swaps or cuts bytes,
// at any moment of the handshake and after it, makes a rank hear what its peer did not say, or lets
// it take him for the peer.
#include <gtest/gtest.h>

#include <optional>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "core/wire/handshake.h"
#include "core/wire/sealed.h"
#include "wire/keys.h"

namespace ciranda {
namespace {

using Bytes = std::vector<std::byte>;

enum class What { kNothing, kFlip, kDrop, kRepeat, kSwap, kReplay, kCut };

// A way from one rank to the other, and what is done to the bytes from the `at`-th on.
class Way {
 public:
  // `message_bytes`: of what is said after the handshake.
  Way(What what, std::size_t at, std::size_t message_bytes)
      : what_(what), at_(at), message_bytes_(message_bytes) {}

  Bytes pass(const Bytes& bytes) {
    Bytes out;
    for (const std::byte byte : bytes) pass(byte, out);
    return out;
  }
  std::size_t passed() const { return all_.size(); }
  bool changed() const { return changed_; }

 private:
  void pass(std::byte byte, Bytes& out) {
    const std::size_t position = all_.size();
    all_.push_back(byte);
    if (held_) {
      changed_ = changed_ || byte != *held_;
      out.push_back(byte);
      out.push_back(*held_);
      held_.reset();
    } else if (cut_ || (position == at_ && what_ == What::kCut)) {
      cut_ = changed_ = true;
    } else if (position != at_ || what_ == What::kNothing) {
      out.push_back(byte);
    } else if (what_ == What::kSwap) {
      held_ = byte;
    } else {
      changed_ = true;
      if (what_ == What::kFlip) out.push_back(byte ^ std::byte{0x10});
      if (what_ == What::kRepeat) out.insert(out.end(), 2, byte);
      if (what_ == What::kReplay) {
        out.push_back(byte);
        const std::size_t count = std::min(message_bytes_, all_.size());
        out.insert(out.end(), all_.end() - static_cast<std::ptrdiff_t>(count), all_.end());
      }
    }
  }

  const What what_;
  const std::size_t at_;
  const std::size_t message_bytes_;
  Bytes all_;
  std::optional<std::byte> held_;
  bool cut_ = false;
  bool changed_ = false;
};

// One rank: proves itself, then says three things and writes down what it hears.
template <typename Handshake>
class Side {
 public:
  Side(Handshake handshake, Purpose purpose, std::string name)
      : handshake_(std::move(handshake)), purpose_(purpose), name_(std::move(name)) {}

  // What it says next, after it has heard `bytes`.
  Bytes hear(const Bytes& bytes) {
    input_.insert(input_.end(), bytes.begin(), bytes.end());
    Bytes out;
    if (!broken_ && !peer_) prove(out);
    if (!broken_ && peer_) open();
    return out;
  }

  const std::vector<std::string>& heard() const { return heard_; }
  std::vector<std::string> says() const { return {name_ + "0", name_ + "1", name_ + "2"}; }
  std::optional<Rank> peer() const { return peer_; }

 private:
  void prove(Bytes& out) {
    while (!input_.empty() && handshake_.wanted() > 0) {
      const std::size_t size = std::min(input_.size(), handshake_.wanted());
      broken_ = !handshake_.receive(std::span(input_).first(size), out).ok();
      input_.erase(input_.begin(), input_.begin() + static_cast<std::ptrdiff_t>(size));
      if (broken_) return;
    }
    auto& session = handshake_.session();
    if (!session) return;
    peer_ = session->peer;
    if (purpose_ == Purpose::kControl) {
      FrameSealer sealer(std::move(session->send_key));
      for (const std::string& text : says()) sealer.seal(1, std::as_bytes(std::span(text)), out);
      frames_.emplace(std::move(session->receive_key));
    } else {
      DataSealer sealer(std::move(session->send_key));
      for (const std::string& text : says()) {
        const auto payload = std::as_bytes(std::span(text));
        const SealedDataHeader header =
            sealer.seal({.bytes = static_cast<std::uint32_t>(payload.size())}, payload);
        out.insert(out.end(), header.begin(), header.end());
        out.insert(out.end(), payload.begin(), payload.end());
      }
      data_.emplace(std::move(session->receive_key));
    }
  }

  void open() {
    std::span<const std::byte> rest = input_;
    while (!broken_ && frames_) {
      const auto frame = frames_->open(rest);
      broken_ = !frame.ok();
      if (broken_ || !frame.value()) break;
      const auto payload = frame.value()->payload;
      heard_.emplace_back(reinterpret_cast<const char*>(payload.data()), payload.size());
    }
    while (!broken_ && data_ && rest.size() >= (due_ > 0 ? due_ : kDataHeaderBytes)) {
      if (due_ > 0) {
        broken_ = !data_->check(rest.first(due_)).ok();
        if (!broken_) heard_.emplace_back(reinterpret_cast<const char*>(rest.data()), due_);
        rest = rest.subspan(std::exchange(due_, 0));
        continue;
      }
      SealedDataHeader bytes;
      std::ranges::copy(rest.first<kDataHeaderBytes>(), bytes.begin());
      rest = rest.subspan(kDataHeaderBytes);
      const auto header = data_->open(bytes);
      broken_ = !header.ok();
      if (!broken_) due_ = header.value().bytes;
    }
    input_.assign(rest.begin(), rest.end());
  }

  Handshake handshake_;
  const Purpose purpose_;
  const std::string name_;
  Bytes input_;
  bool broken_ = false;
  std::optional<Rank> peer_;
  std::optional<FrameOpener> frames_;
  std::optional<DataOpener> data_;
  std::size_t due_ = 0;  // bytes of the payload that the last header announced
  std::vector<std::string> heard_;
};

struct OverheardTalk {
  std::size_t to_server = 0;  // bytes that were said
  std::size_t to_client = 0;
  bool changed = false;
  bool complete = false;  // both heard everything
};

bool is_beginning(const std::vector<std::string>& heard, const std::vector<std::string>& said) {
  return heard.size() <= said.size() && std::equal(heard.begin(), heard.end(), said.begin());
}

OverheardTalk overheard(Purpose purpose, What what, bool to_server, std::size_t at) {
  const ConnectionKeys keys = test::keys_of();
  const Hello hello{
      .purpose = purpose, .from = 2, .to = 0, .incarnation = 9, .nonce = test::nonce_of(10)};
  ClientHandshake handshake(keys, hello);
  const Bytes first(handshake.hello().begin(), handshake.hello().end());
  Side client(std::move(handshake), purpose, "client");
  Side server(ServerHandshake(keys, {.self = 0, .incarnation = 7, .ranks = 4}, test::nonce_of(20)),
              purpose, "server");
  const std::size_t message_bytes =
      client.says().front().size() +
      (purpose == Purpose::kControl ? kSealedHeaderBytes + kSealBytes : kDataHeaderBytes);
  Way there(to_server ? what : What::kNothing, at, message_bytes);
  Way back(to_server ? What::kNothing : what, at, message_bytes);
  for (Bytes said = first; !said.empty();) {
    const Bytes answer = server.hear(there.pass(said));
    said = client.hear(back.pass(answer));
    if (said.empty() && answer.empty()) break;
  }
  EXPECT_TRUE(is_beginning(client.heard(), server.says()));
  EXPECT_TRUE(is_beginning(server.heard(), client.says()));
  EXPECT_TRUE(!client.peer() || *client.peer() == 0);
  EXPECT_TRUE(!server.peer() || *server.peer() == 2);
  return {.to_server = there.passed(),
          .to_client = back.passed(),
          .changed = there.changed() || back.changed(),
          .complete = client.heard() == server.says() && server.heard() == client.says()};
}

class ManInTheMiddle : public ::testing::TestWithParam<Purpose> {};
INSTANTIATE_TEST_SUITE_P(, ManInTheMiddle, ::testing::Values(Purpose::kControl, Purpose::kData),
                         [](const auto& purpose) {
                           return std::string(purpose_name(purpose.param));
                         });

TEST_P(ManInTheMiddle, WhoOnlyListensIsNotNoticed) {
  const OverheardTalk untouched = overheard(GetParam(), What::kNothing, true, 0);
  EXPECT_TRUE(untouched.complete);
  EXPECT_GT(untouched.to_server, kHelloBytes + kProofBytes);
  EXPECT_GT(untouched.to_client, 32 + kWelcomeBytes);
}

TEST_P(ManInTheMiddle, NothingIsHeardThatWasNotSaid) {
  const OverheardTalk untouched = overheard(GetParam(), What::kNothing, true, 0);
  for (const What what :
       {What::kFlip, What::kDrop, What::kRepeat, What::kSwap, What::kReplay, What::kCut}) {
    for (const bool to_server : {true, false}) {
      const std::size_t bytes = to_server ? untouched.to_server : untouched.to_client;
      for (std::size_t at = 0; at < bytes; ++at) {
        const OverheardTalk found = overheard(GetParam(), what, to_server, at);
        // What comes on top when all was said is noticed with the next message.
        const bool adds = what == What::kRepeat || what == What::kReplay;
        if (!found.changed || (adds && at == bytes - 1)) continue;
        ASSERT_FALSE(found.complete) << "what " << static_cast<int>(what) << " to "
                                     << (to_server ? "server" : "client") << " at " << at;
      }
    }
  }
}

}  // namespace
}  // namespace ciranda
