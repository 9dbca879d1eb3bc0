#include "core/transport/dial/cookie_filter.h"

#include <linux/filter.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <vector>

namespace ciranda {

// Attaches a program of the classic Berkeley packet filter. It sees each packet from the TCP header
// on. A load beyond the packet's end drops the packet.
Status let_in_only(int listener, const Cookie& cookie) {
  constexpr std::uint32_t kLengthByte = 12;  // upper half of the byte: header length in words
  constexpr std::uint32_t kFlagsByte = 13;
  constexpr std::uint32_t kWhole = ~0u;
  constexpr std::uint8_t kWords = sizeof cookie / 4;
  std::vector<sock_filter> program = {
      BPF_STMT(BPF_LD | BPF_B | BPF_ABS, kFlagsByte),
      BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, TH_SYN | TH_RST, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, kWhole),
      BPF_STMT(BPF_LD | BPF_B | BPF_ABS, kLengthByte),
      BPF_STMT(BPF_ALU | BPF_AND | BPF_K, 0xf0),
      BPF_STMT(BPF_ALU | BPF_RSH | BPF_K, 2),
      BPF_STMT(BPF_MISC | BPF_TAX, 0),
  };
  for (std::uint8_t i = 0; i < kWords; ++i) {
    std::uint32_t word = 0;
    std::memcpy(&word, cookie.data() + sizeof word * i, sizeof word);
    const auto to_drop = static_cast<std::uint8_t>(2 * (kWords - 1 - i) + 1);
    program.push_back(BPF_STMT(BPF_LD | BPF_W | BPF_IND, 4u * i));
    program.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ntohl(word), 0, to_drop));
  }
  program.push_back(BPF_STMT(BPF_RET | BPF_K, kWhole));
  program.push_back(BPF_STMT(BPF_RET | BPF_K, 0));
  const sock_fprog filter{.len = static_cast<unsigned short>(program.size()),
                          .filter = program.data()};
  if (::setsockopt(listener, SOL_SOCKET, SO_ATTACH_FILTER, &filter, sizeof filter) == 0) return {};
  return Error::from_errno("SO_ATTACH_FILTER", errno);
}

void let_all_in(int socket) noexcept {
  const int unused = 0;
  (void)::setsockopt(socket, SOL_SOCKET, SO_DETACH_FILTER, &unused, sizeof unused);
}

}  // namespace ciranda
