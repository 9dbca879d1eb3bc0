// Two ranks that read the same frames decide the same, whatever the frames say.
#include "core/negotiate/negotiator.h"
#include "core/plan/fusion.h"
#include "fuzz/input.h"

namespace ciranda::fuzz {
namespace {

constexpr int kRanks = 3;

bool same(const Response& a, const Response& b) {
  const auto text = [](const Response& response) {
    return response.error.has_value() ? response.error->text : std::string();
  };
  const auto changed = [](const Response& response) {
    return response.changed ? response.changed->ranks : std::vector<Rank>();
  };
  return a.verdict == b.verdict && a.index == b.index && a.cache_id == b.cache_id &&
         a.contributions == b.contributions && a.joined == b.joined &&
         a.last_joined == b.last_joined && changed(a) == changed(b) && text(a) == text(b);
}

void run(Input input) {
  const std::uint8_t shape = input.u8();
  Negotiator::Options options{.size = kRanks, .cache_entries = shape % 4u};
  if (shape >= 128) options.hosts = {{0, 2}, {1}};
  Negotiator one(options);
  Negotiator other(options);
  for (std::uint64_t tick = 0; !input.empty(); ++tick) {
    const Rank from = input.u8() % kRanks;
    const auto frame = input.bytes(input.u16() % 2048u);
    std::vector<Response> first;
    std::vector<Response> second;
    const Status status = one.handle_frame(from, frame, tick, first);
    const Status again = other.handle_frame(from, frame, tick + 1, second);
    CIRANDA_ASSERT(status.ok() == again.ok() && first.size() == second.size());
    for (std::size_t i = 0; i < first.size(); ++i) {
      CIRANDA_ASSERT(same(first[i], second[i]));
      if (first[i].verdict != Response::Verdict::kRun) continue;
      for (const auto& [rank, contribution] : first[i].contributions)
        CIRANDA_ASSERT(first[i].group->contains(rank));  // I18
    }
    CIRANDA_ASSERT(one.joined() == other.joined() && one.joined().size() < kRanks);  // I20
    (void)plan_fusion(first, {});
    if (!status.ok()) {
      CIRANDA_ASSERT(status.error().text == again.error().text);
      return;
    }
  }
}

}  // namespace
}  // namespace ciranda::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  ciranda::fuzz::run({data, size});
  return 0;
}
