#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "core/base/fd.h"
#include "core/base/result.h"
#include "core/ps/decide/journal.h"
#include "core/ps/decide/server_protocol.h"
#include "core/ps/io/record_file.h"
#include "core/ps/io/snapshot.h"

namespace ciranda::ps {

// What an answer to a push promises, should its server be killed.
enum class Durability : std::uint8_t {
  kMemory,  // nothing: what came since the latest snapshot is lost, and counted (Stats::lost)
  kLog,     // it is there, unless the whole machine is lost
  kDisk,    // it is there
};

struct StateOptions {
  std::string folder;
  Durability durability = Durability::kLog;
  std::uint64_t snapshot_ns = 60'000'000'000;  // how often one is made, where something has changed
};

// A server's state in a folder of its own: snapshots, and the changes since the latest.
// `snapshot-G` is whole once it has its name; `log-G` has what came after it was begun. A snapshot
// is written by a forked child, which sees the memory as it was, while the server goes on.
//
// Not thread-safe. Blocks for the disk alone.
class StateFiles final : public Journal {
 public:
  // Makes the folder where it is missing, and locks it: kInvalidArgument where another server has
  // it. Then makes `protocol`, which is new and must outlive this, what the folder says, and keeps
  // its changes. kMalformed, kMismatch name the file that is not this server's, or not whole.
  static Result<std::unique_ptr<StateFiles>> open(StateOptions options, ServerProtocol& protocol,
                                                  std::uint64_t now_ns);
  ~StateFiles() override;
  StateFiles(const StateFiles&) = delete;
  StateFiles& operator=(const StateFiles&) = delete;

  // In a sentence, what was found in the folder; empty: nothing.
  const std::string& found() const { return found_; }
  // Whose state that was; empty: nobody's.
  const std::string& job() const { return job_; }

  void write(const Change& change, const Data& data) override;
  // Everything that was written is as safe as promised when it returns, but for what
  // lacks_snapshot() says. An error: nothing more may be answered.
  Status settle();
  // The first snapshot is being made: no answer may say yet that the parameters are here.
  bool lacks_snapshot() const { return generation_ == 0 && protocol_.has_parameters(); }
  // Begins a snapshot when it is time, and looks after one that is being made. A snapshot that
  // fails is said on stderr and leaves the one before.
  void tend(std::uint64_t now_ns);
  std::uint64_t next_deadline_ns() const;
  // The server ends, and another one may go on: what it holds is on the disk.
  Status finish();
  // The job is over: nothing is left behind.
  void discard();

 private:
  StateFiles(StateOptions options, ServerProtocol& protocol)
      : options_(std::move(options)), protocol_(protocol) {}
  Status claim();
  Status recover(std::uint64_t now_ns);
  Status read_snapshot(std::uint64_t now_ns);
  Status read_log(const std::string& path, std::uint64_t& changes, bool& torn);
  Status open_log(std::uint64_t generation);
  Status begin_snapshot(std::uint64_t now_ns);
  bool look_after_child(bool wait);
  void remove_before(std::uint64_t generation);
  FileNames names(std::uint64_t generation) const;
  std::string path(const char* what, std::uint64_t generation) const;
  bool keeps_log() const { return options_.durability != Durability::kMemory; }

  const StateOptions options_;
  ServerProtocol& protocol_;
  std::string found_;
  std::string job_;
  Fd folder_;                     // locked
  std::uint64_t generation_ = 0;  // of the latest whole snapshot; 0: none
  std::uint64_t log_generation_ = 0;
  std::optional<RecordWriter> log_;  // none: kMemory, or no snapshot yet
  Status log_failed_;
  bool log_synced_ = true;
  bool changed_ = false;            // since a snapshot was begun
  SnapshotChild child_;             // that makes snapshot log_generation_
  std::uint64_t begun_ns_ = 0;      // when the latest was
  std::vector<std::byte> encoded_;  // scratch
};

}  // namespace ciranda::ps
