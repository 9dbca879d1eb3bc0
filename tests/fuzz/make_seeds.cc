// Writes the inputs from which the fuzzers start: `make_seeds tests/fuzz/corpus`. The same bytes in
// every run. An input that once crashed a target is added by hand, under a name that tells why.
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "core/ps/decide/journal.h"
#include "core/ps/decide/messages.h"
#include "core/ps/decide/model_codec.h"
#include "core/wire/introduction.h"
#include "core/wire/messages.h"
#include "core/wire/sealed.h"
#include "fuzz/input.h"
#include "fuzz/recorded_tls.h"
#include "ps/decide/models.h"

namespace ciranda::fuzz {
namespace {

Bytes bytes_of(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

Bytes joined(std::initializer_list<Bytes> parts) {
  Bytes all;
  for (const Bytes& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

Bytes numbers(std::initializer_list<int> values) {
  Bytes bytes;
  for (const int value : values) bytes.push_back(static_cast<std::byte>(value));
  return bytes;
}

Bytes frame_of(std::vector<Request> requests) {
  Bytes out;
  encode({.requests = std::move(requests)}, out);
  return out;
}

Request allreduce(std::string name, Shape shape = {3, 4}) {
  return {.spec = RequestSpec{.name = std::move(name), .tensors = {{.shape = std::move(shape)}}}};
}

class Corpus {
 public:
  explicit Corpus(std::filesystem::path root) : root_(std::move(root)) {}

  void add(const std::string& target, const std::string& name, const Bytes& bytes) const {
    std::filesystem::create_directories(root_ / target);
    std::ofstream file(root_ / target / (name + ".bin"), std::ios::binary);
    file.write(reinterpret_cast<const char*>(bytes.data()),
               static_cast<std::streamsize>(bytes.size()));
  }

 private:
  std::filesystem::path root_;
};

void add_introductions(const Corpus& corpus) {
  std::vector<Introduction> introductions;
  for (const Rank rank : {0, 1, 2}) {
    introductions.push_back({.rank = rank,
                             .size = 3,
                             .host = rank / 2,
                             .hosts = 2,
                             .local_rank = rank % 2,
                             .local_size = rank < 2 ? 2 : 1,
                             .addresses = {{"192.0.2.1", 7}, {"2001:db8::1", 65535}}});
  }
  Bytes one;
  encode(introductions[2], one);
  corpus.add("introduction", "one", one);
  Bytes all;
  encode(introductions, all);
  corpus.add("introduction", "introductions", all);
}

void add_handshakes(const Corpus& corpus) {
  ClientHandshake client(keys(), kClient);
  Bytes conversation(client.hello().begin(), client.hello().end());
  corpus.add("handshake_server", "hello", joined({numbers({0, 255}), conversation}));
  corpus.add("handshake_server", "hello_and_wrong_proof",
             joined({numbers({0, 40}), conversation, Bytes(kProofBytes)}));
  corpus.add("handshake_server", "http",
             joined({numbers({0, 255}), bytes_of("GET / HTTP/1.1\r\n")}));
  corpus.add("handshake_server", "rank", numbers({1, 0}));
  corpus.add("handshake_server", "rank_of_another_epoch", numbers({1, 9, 40, 0, 1}));
  corpus.add("handshake_server", "rank_with_changed_proof", numbers({1, 9, 140, 0, 1}));
  corpus.add("handshake_client", "random_answer",
             joined({numbers({0, 7}), Bytes(sizeof(Nonce) + kWelcomeBytes, std::byte{3})}));
  corpus.add("handshake_client", "rank", numbers({1, 0}));
  corpus.add("handshake_client", "rank_with_changed_version", numbers({1, 0, 32, 0, 2}));
}

void add_frames(const Corpus& corpus) {
  Request known{.cache_id = 7};
  known.contribution.token = 300;
  Request gather = allreduce("gather", {kAnyRows, 5});
  gather.spec->tensors[0].user_dtype = UserDType::kBool;
  gather.spec->kind = OpKind::kAllgather;
  gather.contribution.rows = {9};
  Request arena = allreduce("bucket");
  arena.spec->wire_dtype = DType::kBFloat16;
  arena.spec->in_arena = true;
  arena.spec->arena_bytes = 1 << 20;
  arena.spec->rule = "Adam lr=0.001";
  arena.contribution.arena = {.segment = 1, .offset = 4096};
  Request no_elements = allreduce("", {1LL << 40, 1LL << 40, 1LL << 40, 0});
  no_elements.spec->in_arena = true;
  no_elements.spec->arena_bytes = 4;
  Request on_gpu = allreduce("gpu");
  on_gpu.spec->backend = BackendId::kNccl;
  Bytes leave;
  encode({.kind = FrameKind::kLeave}, leave);
  Request in_group = allreduce("w");
  in_group.spec->group = 1;
  const Request add{.spec = RequestSpec{.kind = OpKind::kAddGroup, .members = {0, 2}}};
  const Request remove{.spec = RequestSpec{.kind = OpKind::kRemoveGroup, .removes = 1}};
  const Request join{.spec = RequestSpec{.kind = OpKind::kJoin}};
  Bytes ready;
  encode({.kind = FrameKind::kReady,
          .ready = {{.op = {7, 0}, .contributions = {{.token = 300}}, .local_ranks = {1}},
                    {.op = {8, 0}, .contributions = {{.token = 1}, {.token = 2}}}}},
         ready);
  corpus.add("frame", "known", frame_of({known}));
  corpus.add("frame", "membership", frame_of({add, in_group, remove, join}));
  corpus.add("frame", "ready", ready);
  corpus.add("frame", "several", frame_of({allreduce("a"), gather, arena, on_gpu, known}));
  corpus.add("frame", "arena_tensor_with_a_zero_after_huge_sizes", frame_of({no_elements}));
  corpus.add("frame", "leave", leave);
  corpus.add("frame", "huge_count", numbers({0, 255, 255, 255, 255, 15}));

  const auto from = [](int rank, const Bytes& frame) {
    return joined(
        {numbers({rank, static_cast<int>(frame.size() & 255), static_cast<int>(frame.size() >> 8)}),
         frame});
  };
  const Bytes two = frame_of({allreduce("a"), allreduce("b")});
  known.cache_id = 1;
  corpus.add(
      "negotiator", "agreed_and_known",
      joined({numbers({3}), from(0, two), from(1, two), from(2, two), from(0, frame_of({known})),
              from(1, frame_of({known})), from(2, frame_of({known}))}));
  corpus.add("negotiator", "mismatch",
             joined({numbers({3}), from(0, two), from(1, frame_of({allreduce("a", {9})})),
                     from(2, two), from(1, leave)}));
  const auto from_all = [&](const Bytes& frame) {
    return joined({from(0, frame), from(1, frame), from(2, frame)});
  };
  // On two hosts, 0 and 2 | 1: the number is 1, and the host of 1 has no member.
  Bytes known_in_group;
  encode({.kind = FrameKind::kReady,
          .ready = {{.op = {1, 0}, .contributions = {{.token = 1}, {.token = 2}}}}},
         known_in_group);
  corpus.add("negotiator", "group",
             joined({numbers({131}), from_all(frame_of({add})), from(0, frame_of({in_group})),
                     from(2, frame_of({in_group})), from(0, known_in_group),
                     from(1, frame_of({in_group})), from_all(frame_of({remove})),
                     from(0, frame_of({in_group})), from(2, frame_of({known}))}));
  corpus.add("negotiator", "group_in_use",
             joined({numbers({3}), from_all(frame_of({add})), from(2, frame_of({in_group})),
                     from_all(frame_of({remove})), from(1, leave), from(0, frame_of({in_group}))}));
  corpus.add("negotiator", "join",
             joined({numbers({3}), from(0, two), from(2, two), from(1, frame_of({join})),
                     from(1, two), from(0, frame_of({add})), from(2, frame_of({add})),
                     from(0, frame_of({join})), from(2, frame_of({join})), from_all(two)}));
  corpus.add(
      "negotiator", "evicted",
      joined({numbers({1}), from(0, two), from(1, two), from(2, two), from(0, frame_of({known}))}));
}

void add_sealed(const Corpus& corpus) {
  corpus.add("sealed", "two_frames",
             joined({numbers({0, 2, 1, 3}), bytes_of("abc"), numbers({2, 0})}));
  corpus.add("sealed", "changed",
             joined({numbers({9, 1, 1, 3}), bytes_of("abc"), numbers({14, 0, 1})}));
  corpus.add("sealed", "huge_length", joined({numbers({255, 0}), Bytes(16, std::byte{0xff})}));
}

void add_tls(const Corpus& corpus) {
  const auto listening = [](Role role, const Bytes& bytes) {
    return joined({numbers({role == Role::kListener ? 0 : 1, 255}), bytes});
  };
  const auto another_key = tls_of(9);
  const auto another_job = tls_of(1, 9);
  const ClientHandshake in_clear(keys(), kClient);
  corpus.add("tls", "server_hears_another_key",
             listening(Role::kListener, record(*another_key, *another_key).client.handshake));
  corpus.add("tls", "server_hears_another_job",
             listening(Role::kListener, record(*another_job, *another_job).client.handshake));
  corpus.add("tls", "server_hears_a_rank_in_clear",
             listening(Role::kListener, {in_clear.hello().begin(), in_clear.hello().end()}));
  // A hello of 16 KiB, of which more is to come.
  Bytes too_much = numbers({22, 3, 1, 64, 0, 1, 0, 63, 252});
  too_much.resize(TlsSession::kHandshakeBytesMax + 1000);
  corpus.add("tls", "server_hears_too_much", listening(Role::kListener, too_much));
  corpus.add("tls", "server_hears_http",
             listening(Role::kListener, bytes_of("GET / HTTP/1.1\r\n")));
  corpus.add("tls", "client_hears_another_connection",
             listening(Role::kCaller, record(tls(), tls(), 2).server.handshake));
  corpus.add("tls", "client_hears_a_refusal",
             listening(Role::kCaller, {kTlsRefusal.begin(), kTlsRefusal.end()}));
  // What a rank says, with bits flipped: a place and a mask.
  corpus.add("tls", "server_hears_a_rank", numbers({2, 40}));
  corpus.add("tls", "client_hears_a_rank", numbers({3, 0}));
  corpus.add("tls", "server_hears_a_changed_hello", numbers({2, 255, 60, 0, 1}));
  corpus.add("tls", "server_hears_another_record_version", numbers({2, 255, 2, 0, 1}));
  corpus.add("tls", "client_hears_a_changed_answer", numbers({3, 255, 160, 0, 1}));
  // How many records follow, and which.
  corpus.add("tls", "records_in_order", numbers({4, 255, 5, 0, 1, 2, 3, 4}));
  corpus.add("tls", "records_in_order_for_the_client", numbers({5, 6, 5, 0, 1, 2, 3, 4}));
  corpus.add("tls", "record_repeated", numbers({4, 255, 2, 0, 0}));
  corpus.add("tls", "record_left_out", numbers({5, 255, 2, 0, 2}));
  corpus.add("tls", "record_changed", numbers({4, 255, 1, 0, 10, 0, 1}));
  corpus.add("tls", "record_and_bytes_in_clear", numbers({4, 255, 2, 0, 200, 4, 23, 3, 3, 0}));
}

void add_settings(const Corpus& corpus) {
  corpus.add("settings", "ours",
             bytes_of("\1CIRANDA_RANK=1\nCIRANDA_SIZE=4\nCIRANDA_LOCAL_RANK=1\n"
                      "CIRANDA_LOCAL_SIZE=2\nCIRANDA_JOB_ID=j\nCIRANDA_OVERLAP=auto\n"
                      "CIRANDA_STALL_WARNING_SECONDS=5\nCIRANDA_TIMELINE=/tmp/t.json"));
  corpus.add("settings", "slurm",
             bytes_of("\1SLURM_PROCID=1\nSLURM_LOCALID=0\nSLURM_STEP_NUM_TASKS=2\n"
                      "SLURM_STEP_NUM_NODES=1\nSLURM_JOB_ID=7\nSLURM_STEP_ID=0"));
  corpus.add("settings", "interfaces", bytes_of("\2eth*,10.0.0.0/8,!docker0,2000::/3"));
  corpus.add("settings", "bad_network",
             bytes_of("\2"
                      "10.0.0.0/33"));
}

void add_servers(const Corpus& corpus) {
  const ps::Model model = ps::testing::model_of({{20, 3}, {9}}, {.kind = ps::ModeKind::kSsp});
  Bytes bytes = numbers({1});
  encode(model, bytes);
  corpus.add("ps_message", "model", bytes);
  const std::pair<const char*, ps::Message> messages[] = {
      {"enter", ps::Enter{.job_id = "job", .worker = 1, .workers = 3}},
      {"declare", ps::Declare{.model_bytes = 300, .decided = 7}},
      {"push", ps::Push{.worker = 1,
                        .seq = 8,
                        .base = 200,
                        .clock = 8,
                        .rules = {ps::testing::exact_rule(), ps::testing::exact_rule()},
                        .used = {true, false, true},
                        .of = {.task = 5, .part = 2, .settled = 3}}},
      {"fetch_state", ps::FetchState{.table = 1, .array = 2}},
      {"average", ps::Average{.name = "loss", .value = 0.25}},
      {"mark", ps::Mark{.checkpoint = 300}},
      {"take_task", ps::TakeTask{.done = 4, .failed = true, .text = "why"}},
      {"schedule", ps::Schedule{.task = 5, .copies = 2, .call = "train [5]"}},
      {"close_tasks", ps::CloseTasks{.tasks = 5}},
      {"ask_task", ps::AskTask{.task = 5, .waits = true, .failures = 1}},
      {"given", ps::Given{.task = 5, .settled = 3, .call = "train [5]"}},
      {"task_status", ps::TaskStatus{.task = 5, .done = true, .settled = 3, .text = "1.5"}},
      {"vector_work",
       ps::VectorWork{
           .number = 3, .sums = {{.into = 2, .terms = {{0, 1.0}, {1, -0.5}}}}, .dots = {{1, 2}}}},
      {"vector_values", ps::VectorValues{.dots = {0.5}}},
      {"pull_rows", ps::PullRows{.table = 1, .count = 3}},
      {"push_rows",
       ps::PushRows{.seq = 4, .table = 1, .count = 3, .rule = ps::testing::exact_rule()}},
      {"welcome", ps::Welcome{.decided = 7, .scheduled = 5}},
      {"refused", ps::Refused{.text = "worker 1 is there already"}},
      {"ready", ps::Ready{.version = 200, .clock = 8}},
      {"ack", ps::Ack{.worker = 1, .seq = 8, .version = 201, .clock = 8, .held_ns = 1 << 20}},
      {"averaged", ps::Averaged{.mean = 0.5, .workers = 2}},
      {"stats", ps::Stats{.version = 201,
                          .outcomes = {199, 1, 0, 0},
                          .staleness = {150, 51},
                          .workers = {{.here = true, .pushes = 100}, {.pushes = 101}}}}};
  for (const auto& [name, message] : messages) {
    bytes = numbers({0});
    encode(message, bytes);
    corpus.add("ps_message", name, bytes);
  }

  const ps::Push push = std::get<ps::Push>(messages[2].second);
  const std::pair<const char*, ps::Change> changes[] = {
      {"applied", {.pushes = {push, push}, .scale = 0.5}},
      {"skipped",
       {.kind = ps::Change::Kind::kSkipped, .pushes = {push}, .outcome = ps::Outcome::kStale}},
      {"entered", {.kind = ps::Change::Kind::kEntered, .worker = 1, .life = 2, .process = 3}},
      {"left", {.kind = ps::Change::Kind::kLeft, .worker = 1}},
      {"scheduled",
       {.kind = ps::Change::Kind::kScheduled, .task = 5, .copies = 2, .text = "train [5]"}},
      {"task_done", {.kind = ps::Change::Kind::kTaskDone, .task = 5, .text = "1.5"}},
      {"tasks_closed", {.kind = ps::Change::Kind::kTasksClosed, .task = 5}},
      {"worked",
       {.kind = ps::Change::Kind::kWorked, .work = {.number = 1, .sums = {}, .dots = {{0, 0}}}}}};
  for (const auto& [name, change] : changes) {
    bytes = numbers({2});
    encode(change, bytes);
    corpus.add("ps_message", std::string("change_") + name, bytes);
  }

  // A mode, then what strangers do: a caller, 4 times what it does, and its numbers, among them how
  // many bits are flipped (none, but where it says so) and what memory comes with it.
  const Bytes two_enter = numbers({0, 1, 64, 0, 1, 0, 4, 65, 1, 1, 0, 4});
  const Bytes two_declare = numbers({68, 0, 0, 4, 69, 0, 0, 4});
  const auto pushes = [](int caller, int seq, int base, int memory) {
    return numbers({28 + caller, caller, seq, base, seq, 1, 0, 0, 0, 0, 0, memory});
  };
  const Bytes both = joined({two_enter, two_declare, pushes(0, 1, 0, 4), pushes(1, 1, 0, 4)});
  for (const int mode : {0, 3, 6, 1, 10, 2, 11, 20}) {
    corpus.add("ps_protocol", "two_push_in_mode_" + std::to_string(mode),
               joined({numbers({mode}), both, pushes(0, 2, 1, 4), pushes(1, 2, 0, 255)}));
    corpus.add("ps_protocol", "one_dies_in_mode_" + std::to_string(mode),
               joined({numbers({mode}), both, pushes(0, 2, 1, 4), numbers({4}),
                       numbers({0, 64, 0, 2, 0, 4}), pushes(1, 2, 1, 4)}));
    corpus.add("ps_protocol", "leases_end_in_mode_" + std::to_string(mode),
               joined({numbers({mode}), both, numbers({8, 120}), pushes(0, 2, 1, 4)}));
  }
  corpus.add("ps_protocol", "without_memory",
             joined({numbers({0}), two_enter, numbers({68, 0, 0, 2})}));
  corpus.add("ps_protocol", "fetches",
             joined({numbers({0}), both, numbers({72, 1, 2, 0, 4, 72, 4, 0, 0, 4, 76, 0, 4}),
                     numbers({16, 0, 4, 20, 0, 0}), pushes(0, 2, 1, 4)}));
  // The third caller coordinates: two tasks, of which each of the others has one.
  corpus.add("ps_protocol", "tasks",
             joined({numbers({0}), both, numbers({2, 66, 2, 1, 0, 4}),
                     numbers({38, 1, 1, 0, 4, 38, 2, 2, 0, 4}),
                     numbers({32, 0, 0, 0, 4, 33, 0, 0, 0, 4, 32, 1, 0, 0, 4, 46, 1, 1, 0, 4}),
                     numbers({42, 2, 0, 4, 33, 2, 1, 0, 4})}));
  corpus.add("ps_protocol", "rows",
             joined({numbers({0}), both, numbers({56, 0, 1, 0, 0, 56, 0, 2, 0, 0}),
                     numbers({61, 1, 1, 1, 0, 0, 0, 0, 61, 2, 1, 0, 0, 0, 0, 0})}));
  corpus.add("ps_protocol", "vectors",
             joined({numbers({0}), both, numbers({2, 66, 2, 1, 0, 4}),
                     numbers({50, 1, 3, 0, 1, 3, 0, 4, 50, 2, 0, 3, 3, 3, 0, 4})}));
  corpus.add("ps_protocol", "no_message",
             joined({numbers({0}), two_enter, numbers({12, 2, 0, 99, 1})}));
}

// The models of two parts, for how many servers more than one they are read, and changes: a file, a
// record, what becomes of it, and with what.
void add_checkpoints(const Corpus& corpus) {
  for (const int servers : {0, 1, 2}) {
    corpus.add("checkpoint", "whole_for_" + std::to_string(servers + 1), numbers({0, 0, servers}));
  }
  for (const int model : {1, 2, 3}) {
    corpus.add("checkpoint", "of_two_jobs_" + std::to_string(model), numbers({0, model, 1}));
    corpus.add("checkpoint", "of_model_" + std::to_string(model), numbers({model, model, 2}));
  }
  for (const int file : {0, 1, 2, 3, 4}) {
    const std::string name = std::to_string(file);
    corpus.add("checkpoint", "misses_a_record_of_" + name, numbers({0, 0, 1, file, 0, 0}));
    corpus.add("checkpoint", "shorter_note_" + name, numbers({0, 0, 1, file, 0, 2, 3, 0}));
    corpus.add("checkpoint", "shorter_data_" + name, numbers({0, 0, 1, file, 1, 3, 3, 0}));
    corpus.add("checkpoint", "other_note_" + name, numbers({0, 0, 1, file, 0, 4, 0, 30, 0, 3}));
    corpus.add("checkpoint", "other_data_" + name, numbers({0, 0, 1, file, 1, 5, 0, 0, 0, 3}));
  }
}

}  // namespace
}  // namespace ciranda::fuzz

int main(int count, char** arguments) {
  if (count != 2) return 2;
  const ciranda::fuzz::Corpus corpus(arguments[1]);
  ciranda::fuzz::add_introductions(corpus);
  ciranda::fuzz::add_handshakes(corpus);
  ciranda::fuzz::add_frames(corpus);
  ciranda::fuzz::add_sealed(corpus);
  ciranda::fuzz::add_tls(corpus);
  ciranda::fuzz::add_settings(corpus);
  ciranda::fuzz::add_servers(corpus);
  ciranda::fuzz::add_checkpoints(corpus);
}
