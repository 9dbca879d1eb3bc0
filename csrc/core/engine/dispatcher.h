#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/engine/frame_exchange.h"
#include "core/engine/peer_watch.h"
#include "core/engine/rank_context.h"
#include "core/engine/run/adasum_operations.h"
#include "core/engine/run/group_backends.h"
#include "core/engine/tensor_table.h"
#include "core/negotiate/negotiator.h"

namespace ciranda {

// What this rank has submitted, from the queue until its handle is done: submissions become
// Requests, Responses become executions of backends. An operation that runs in several parts keeps
// its first error, and is done when all of them are: the others use the user's memory still.
//
// One thread at a time. Never blocks.
class Dispatcher {
 public:
  // All outlive it.
  Dispatcher(RankContext& rank, const Negotiator& negotiator, FrameExchange& frames,
             PeerWatch& peers);

  // What waits in the queue is asked for with the next frame. A change of membership, and what
  // comes after it, is held until all ranks know what this rank asked for before: it may have to
  // ask again (rule 9 of the protocol). A join also waits for the parts of an Adasum.
  void take_submissions();
  // take_submissions() would ask for some of what is held.
  bool may_ask() const { return !held_.empty() && may_ask_for(held_.front()); }
  // What all ranks agreed to, or disagreed about, in order. An error ends the World.
  Status handle(const std::vector<Response>& responses);
  // Lets the backends do what they can without waiting. True if that was anything.
  bool advance();
  // Since the last call, some operation was finished.
  bool take_finished() { return std::exchange(finished_any_, false); }

  // Everything that runs ends with `why`.
  void abort(const Error& why) {
    backends_.abort(why);
    adasum_.abort(why);
  }
  // Everything that was submitted, sent or not.
  void finish_all(const Error& why);

  bool empty() const { return table_.empty() && held_.empty(); }
  std::vector<PendingOperation> pending() const;
  // As GroupBackends'.
  bool idle() const { return backends_.idle() && adasum_.idle(); }
  bool will_wake() const { return backends_.will_wake(); }
  const Error* broken() const { return backends_.broken(); }
  std::uint64_t look_again_ns() const { return backends_.look_again_ns(); }
  void blocked_on(std::vector<Rank>& out) const {
    backends_.blocked_on(out);
    adasum_.blocked_on(out);
  }
  void watched(std::vector<Watched>& out) const { backends_.watched(out); }
  void abandon() noexcept { backends_.abandon(); }

 private:
  BackendContext backend_context(const Group& group);
  HostMemory host_memory();
  std::unique_ptr<RingBackend> ring();
  std::uint32_t insert(Submission&& submission);
  bool may_ask_for(const Submission& submission) const;
  bool advance_backends();
  // Asks for an operation of the table; `in_full`: not by its number.
  void request(std::uint32_t token, bool in_full);
  // As the negotiator knows it.
  CacheId number_of(const std::shared_ptr<const RequestSpec>& spec);
  Status note_agreement(const Response& response);
  Status change_groups(const Response& response, Submission* submission);
  Status start(FusedOp op, const std::vector<Response>& responses);
  // The same for a rank that has joined.
  void stand_in(FusedOp op, const std::vector<Response>& responses);
  Status locate_in_arena(const Response& response, Submission& submission, Execution& execution);
  // An execution runs: what is to be done at its end is under that index. A closure that holds only
  // the index takes no allocation.
  struct Running {
    InlineVector<std::uint32_t, 2> tokens;
    bool timed = false;  // its time is counted
  };
  std::size_t keep(Running running);
  void execution_done(std::size_t index, const Status& status,
                      const std::shared_ptr<DeviceEvent>& finished);
  void part_done(std::uint32_t token, const Status& status,
                 const std::shared_ptr<DeviceEvent>& finished);
  void finish(std::uint32_t token, const Status& status,
              const std::shared_ptr<DeviceEvent>& finished = nullptr);

  RankContext& rank_;
  const Negotiator& negotiator_;
  FrameExchange& frames_;
  PeerWatch& peers_;
  TensorTable table_;
  std::vector<Submission> drained_;  // scratch
  std::deque<Submission> held_;
  struct Numbered {
    std::shared_ptr<const RequestSpec> spec;
    CacheId number = kNoCacheId;
  };
  Numbered last_asked_;         // in a loop it is the same again
  std::size_t unanswered_ = 0;  // asked for, without a Response
  int unfinished_adasums_ = 0;  // in the table
  std::uint64_t planned_ = 0;   // executions of all groups
  std::vector<Running> running_;
  std::vector<std::size_t> free_running_;
  int timed_running_ = 0;
  bool finished_any_ = false;
  AdasumOperations adasum_;
  GroupBackends backends_;
};

}  // namespace ciranda
