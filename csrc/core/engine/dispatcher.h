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

// Owns this rank's submissions from the queue until their handles are done. It turns submissions
// into Requests, and Responses into executions of backends. An operation may run in several parts.
// It keeps the error of the first part that fails, and is done when all parts are: until then they
// use the user's memory.
//
// Only for the thread that has the seat. Never blocks.
class Dispatcher {
 public:
  // All must outlive the dispatcher.
  Dispatcher(RankContext& rank, const Negotiator& negotiator, FrameExchange& frames,
             PeerWatch& peers);

  // Adds the Requests of the queued submissions to the next frame. Holds back a change of
  // membership, and everything queued behind it, until all ranks know this rank's earlier Requests,
  // because some of those may have to be sent again (rule 9 of docs/protocol.md). A join also waits
  // for the parts of an Adasum, and so does the end of the group in which an agreed one runs.
  void take_submissions();
  // Returns true if take_submissions() would send the Request of a submission that is held back.
  bool may_ask() const { return !held_.empty() && may_ask_for(held_.front()); }
  // Handles Responses in order, whether the ranks agreed or not. An error ends the World.
  Status handle(const std::vector<Response>& responses);
  // Lets the backends do what they can without waiting. Returns true if anything moved.
  bool advance();
  // Returns true if an operation has finished since the last call.
  bool take_finished() { return std::exchange(finished_any_, false); }

  // Ends all running operations, with the error `why`.
  void abort(const Error& why) {
    backends_.abort(why);
    adasum_.abort(why);
  }
  // This rank hears of no agreement any more: finishes each submission on which the ranks have not
  // agreed, and every later one, with `why`.
  void close(const Error& why);
  bool is_closed() const { return closed_.has_value(); }
  // Finishes every submission with `why`, whether its Request was sent or not.
  void finish_all(const Error& why);

  bool empty() const { return table_.empty() && held_.empty(); }
  std::vector<PendingOperation> pending() const;
  // See GroupBackends.
  DriverNeeds needs() const {
    DriverNeeds needs = backends_.needs();
    if (!adasum_.idle()) needs.add({.idle = false, .all_wake = !needs.idle});
    return needs;
  }
  const Error* broken() const { return backends_.broken(); }
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
  void finish_unagreed(const Error& why);
  bool may_ask_for(const Submission& submission) const;
  bool advance_backends();
  // Sends the Request of an operation in the table. `in_full`: the whole spec, instead of its
  // number.
  void request(std::uint32_t token, bool in_full);
  // Returns the number under which the negotiator knows the spec, or kNoCacheId.
  CacheId number_of(const std::shared_ptr<const RequestSpec>& spec);
  Status note_agreement(const Response& response);
  Status change_groups(const Response& response, Submission* submission);
  Status start(FusedOp op, const std::vector<Response>& responses);
  // Starts this rank's part of an operation if this rank has joined.
  void stand_in(FusedOp op, const std::vector<Response>& responses);
  Status locate_in_arena(const Response& response, Submission& submission, Execution& execution);
  // Says what to do when an execution ends. It is kept under an index because a closure that holds
  // only an index does not allocate.
  struct Running {
    InlineVector<std::uint32_t, 2> tokens;
    bool timed = false;  // its time is counted in EngineStats
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
  Numbered last_asked_;         // a cache: a loop uses the same spec again
  std::size_t unanswered_ = 0;  // submissions whose Request has no Response yet
  int unfinished_adasums_ = 0;  // those in the table
  std::optional<Error> closed_;
  std::uint64_t planned_ = 0;  // executions so far, of all groups
  std::vector<Running> running_;
  std::vector<std::size_t> free_running_;
  int timed_running_ = 0;
  bool finished_any_ = false;
  AdasumOperations adasum_;
  GroupBackends backends_;
};

}  // namespace ciranda
